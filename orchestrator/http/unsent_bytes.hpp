// Bytes that wait to be sent, in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

// Dropping bytes from the front moves the other bytes only once the dropped ones take most of the memory. So a large
// answer that is sent in slices costs time in proportion to its size, and not to the square of its size.
class UnsentBytes {
 public:
  std::size_t size() const { return bytes_.size() - gone_; }
  bool empty() const { return size() == 0; }
  // Returns the first bytes, `most` at most. append() and drop() invalidate the view.
  std::string_view front(std::size_t most = std::string_view::npos) const {
    return std::string_view(bytes_).substr(gone_, most);
  }
  void append(std::string_view more) { bytes_ += more; }
  // Makes room for that many more bytes, so that appending them can't fail.
  void reserve_for(std::size_t more) { bytes_.reserve(bytes_.size() + more); }
  // Drops that many bytes from the front; there must be as many.
  void drop(std::size_t count) {
    gone_ += std::min(count, size());
    if (gone_ < size()) return;
    bytes_.erase(0, gone_);
    gone_ = 0;
    if (bytes_.empty() && bytes_.capacity() > kKeptBytes) std::string().swap(bytes_);
  }

 private:
  static constexpr std::size_t kKeptBytes = std::size_t{64}
                                            << 10;  // memory that stays for the next answer

  std::string bytes_;
  std::size_t gone_ = 0;  // how many of bytes_ have been dropped
};

}  // namespace bulkhead::orchestrator
