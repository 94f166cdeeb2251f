// Allocates pieces of a ring of staging memory. The caller frees the pieces in the order in which it took them. This
// class does not use Vulkan.
#pragma once

#include <cstdint>
#include <optional>

namespace bulkhead::gpu {

class StagingRing {
 public:
  struct Piece {
    std::uint64_t offset = 0;  // within the buffer
    std::uint64_t begin = 0;   // the ring's position before, for undo()
    std::uint64_t end = 0;     // the ring's position after, for free_until()
  };

  StagingRing() = default;
  explicit StagingRing(std::uint64_t bytes) : bytes_(bytes) {}

  std::uint64_t bytes() const { return bytes_; }

  // Returns a contiguous piece, or nothing if there is no room until something is freed. `wanted` must be at most
  // bytes().
  std::optional<Piece> take(std::uint64_t wanted) {
    wanted = (wanted + kAlignment - 1) / kAlignment * kAlignment;
    if (head_ == tail_) head_ = tail_ = 0;  // empty: no wrap to jump over
    std::uint64_t start = head_;
    if (start % bytes_ + wanted > bytes_)
      start += bytes_ - start % bytes_;  // a piece does not wrap
    if (start + wanted - tail_ > bytes_) return std::nullopt;
    const Piece piece{start % bytes_, head_, start + wanted};
    head_ = piece.end;
    return piece;
  }

  // Takes back the newest piece.
  void undo(const Piece& piece) { head_ = piece.begin; }
  // Frees everything up to the end of a piece.
  void free_until(std::uint64_t end) { tail_ = end; }

  static constexpr std::uint64_t kAlignment = 256;

 private:
  std::uint64_t bytes_ = 0;
  // Bytes handed out and freed since the start.
  std::uint64_t head_ = 0, tail_ = 0;
};

}  // namespace bulkhead::gpu
