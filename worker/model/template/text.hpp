// Text that remembers which of its bytes came from a user.
//
// A special token's name inside user text must stay text, whatever the template does with that text: cuts it, joins
// it, replaces parts of it, writes it as JSON. So every string of the interpreter is a Text, and every operation
// preserves the marks.
//
// A Text is a view of a shared, immutable buffer, so cutting copies nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "worker/model/template/memory.hpp"

namespace bulkhead::jinja {

enum class Origin : bool { kTemplate, kUser };

// The bytes [begin, end) of a buffer, which came from a user. Sorted, not empty, not adjacent.
struct UserRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

struct TextBuffer {
  std::atomic<std::uint32_t> references{1};
  CountedString bytes;
  CountedVector<UserRange> user;
  bool ascii = true;
  bool markup = false;  // see Text::markup()
};

class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, Origin origin);
  Text(const Text& other);
  Text(Text&& other) noexcept;
  Text& operator=(Text other) noexcept;
  ~Text();

  std::string_view view() const {
    return buffer_ == nullptr ? std::string_view()
                              : std::string_view(buffer_->bytes).substr(begin_, size_);
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // True only if every byte is ASCII; may be false for ASCII text that was cut from other text.
  // True for the result of `| safe` and `| escape`, and for what is cut from it: added to other text, it makes that
  // text HTML, as Python's Markup does. Some templates write prompts that have gone through this.
  bool markup() const { return buffer_ != nullptr && buffer_->markup; }
  Text as_markup() const;
  bool ascii() const { return buffer_ == nullptr || buffer_->ascii; }

  // Returns bytes [begin, begin + count), as many as there are. The result is valid UTF-8 only if it begins and ends
  // between characters.
  Text sub(std::size_t begin, std::size_t count = std::string_view::npos) const;
  bool user_at(std::size_t byte) const;
  bool has_user_bytes() const;

  // Calls each(std::string_view, Origin) for the stretches of one origin, in order.
  template <typename Each>
  void for_runs(const Each& each) const {
    const std::string_view all = view();
    std::size_t at = 0;
    const std::size_t first = first_range();
    for (std::size_t i = first; buffer_ != nullptr && i < buffer_->user.size(); ++i) {
      if ((i - first) % kRangesOfStep == kRangesOfStep - 1) count_step();
      const UserRange& range = buffer_->user[i];
      if (range.begin >= begin_ + size_) break;
      const std::size_t from = range.begin > begin_ ? range.begin - begin_ : 0;
      const std::size_t to = std::min<std::size_t>(range.end - begin_, size_);
      if (from > at) each(all.substr(at, from - at), Origin::kTemplate);
      each(all.substr(from, to - from), Origin::kUser);
      at = to;
    }
    if (at < all.size()) each(all.substr(at), Origin::kTemplate);
  }

 private:
  friend class TextBuilder;
  static constexpr std::size_t kRangesOfStep = 4;
  static void count_step();         // in the rendering that this thread is in the middle of
  std::size_t first_range() const;  // the first that ends after begin_
  static void release(TextBuffer* buffer);

  TextBuffer* buffer_ = nullptr;
  std::uint32_t begin_ = 0;
  std::uint32_t size_ = 0;
};

// Builds a Text. Throws TemplateError (kLimit) beyond 4 GiB, long after the memory's own limit.
class TextBuilder {
 public:
  TextBuilder() = default;
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;
  ~TextBuilder() { Text::release(buffer_); }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& text);
  void append(char32_t code, Origin origin);
  void reserve(std::size_t bytes);
  std::size_t size() const { return buffer_ == nullptr ? 0 : buffer_->bytes.size(); }
  // Afterwards the builder is empty.
  Text take();

 private:
  TextBuffer& buffer();
  TextBuffer* buffer_ = nullptr;
};

}  // namespace bulkhead::jinja
