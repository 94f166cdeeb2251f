// Hands out power-of-two blocks within one heap, as offsets. This class does not use Vulkan.
//
// This is a buddy allocator: it halves a free block until the request just fits, and it joins two free halves at
// once. A block can only lie at multiples of its size, so a request fails only when each of these places holds a live
// block or a part of one. (With n live blocks, where a larger block counts as often as the requested size fits into
// it, a heap with more than n such places has a free one.) A heap whose size is no power of two starts as the
// power-of-two blocks that add up to it. Every operation takes a few steps in a map; none allocates device memory.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace bulkhead::gpu {

class BuddyHeap {
 public:
  static constexpr std::uint64_t kSmallestBlock = 256;  // bytes

  // Returns the size of the block that holds `bytes`.
  static std::uint64_t block_bytes(std::uint64_t bytes) {
    return std::bit_ceil(bytes < kSmallestBlock ? kSmallestBlock : bytes);
  }

  explicit BuddyHeap(std::uint64_t bytes)
      : bytes_(bytes / kSmallestBlock * kSmallestBlock), free_bytes_(bytes_), free_(64) {
    std::uint64_t offset = 0;
    while (offset < bytes_) {
      const std::uint64_t block = std::bit_floor(bytes_ - offset);
      put(offset, block);
      offset += block;
    }
  }

  // Returns the offset of a free block of exactly `block` bytes (a power of two). The offset is a multiple of
  // `block`. Returns nothing if there is no room.
  std::optional<std::uint64_t> take(std::uint64_t block) {
    std::size_t level = level_of(block);
    while (level < free_.size() && free_[level].empty())
      ++level;
    if (level == free_.size()) return std::nullopt;
    const std::uint64_t offset = *free_[level].begin();
    free_[level].erase(free_[level].begin());
    for (std::uint64_t half = std::uint64_t{1} << level; half > block;) {
      half /= 2;
      put(offset + half, half);
    }
    free_bytes_ -= block;
    return offset;
  }

  void give_back(std::uint64_t offset, std::uint64_t block) {
    free_bytes_ += block;
    while (true) {
      const std::uint64_t buddy = offset ^ block;
      auto& peers = free_[level_of(block)];
      const auto found = peers.find(buddy);
      if (found == peers.end()) break;
      peers.erase(found);
      offset &= ~block;
      block *= 2;
    }
    put(offset, block);
  }

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t free_bytes() const { return free_bytes_; }
  // Returns the largest request that take() can serve.
  std::uint64_t largest_free() const {
    for (std::size_t level = free_.size(); level-- > 0;)
      if (!free_[level].empty()) return std::uint64_t{1} << level;
    return 0;
  }

 private:
  static std::size_t level_of(std::uint64_t block) {
    return static_cast<std::size_t>(std::countr_zero(block));
  }
  void put(std::uint64_t offset, std::uint64_t block) { free_[level_of(block)].insert(offset); }

  std::uint64_t bytes_, free_bytes_;
  std::vector<std::set<std::uint64_t>>
      free_;  // [log2 of block] -> offsets; the lowest is taken first
};

}  // namespace bulkhead::gpu
