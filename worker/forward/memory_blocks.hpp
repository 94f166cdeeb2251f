// Puts many pieces of device memory into a few blocks, because each block costs time and a descriptor when a
// successor imports it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::forward {

struct Place {
  std::uint32_t block = 0;
  std::uint64_t offset = 0;  // a multiple of kPieceAlignment
};

inline constexpr std::uint64_t kPieceAlignment = 4096;

struct BlockPlan {
  std::vector<std::uint64_t> blocks;  // their sizes in bytes
  std::vector<Place> places;          // of the pieces; their blocks are in rising order
};

// Places the pieces in order, each within one block of at most `largest` bytes. A larger piece gets a block of its
// own, which the device then refuses. The same sizes always give the same plan.
BlockPlan plan_blocks(std::span<const std::uint64_t> pieces, std::uint64_t largest);

}  // namespace bulkhead::forward
