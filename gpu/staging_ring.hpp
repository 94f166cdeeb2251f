// Room in a ring of staging memory, given out in order and freed in order. Knows nothing of Vulkan.
#pragma once

#include <cstdint>
#include <optional>

namespace bulkhead::gpu {

class StagingRing {
 public:
  struct Piece {
    std::uint64_t offset = 0;  // in the buffer
    std::uint64_t begin = 0;   // where the ring stood before, for undo()
    std::uint64_t end = 0;     // where it stands after, for free_until()
  };

  StagingRing() = default;
  explicit StagingRing(std::uint64_t bytes) : bytes_(bytes) {}

  std::uint64_t bytes() const { return bytes_; }

  // A contiguous piece; none: no room before something is freed. `wanted` is at most bytes().
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

  // Takes back the latest piece.
  void undo(const Piece& piece) { head_ = piece.begin; }
  // Everything up to the end of a piece is free.
  void free_until(std::uint64_t end) { tail_ = end; }

  static constexpr std::uint64_t kAlignment = 256;

 private:
  std::uint64_t bytes_ = 0;
  // Bytes ever given out and ever freed.
  std::uint64_t head_ = 0, tail_ = 0;
};

}  // namespace bulkhead::gpu
