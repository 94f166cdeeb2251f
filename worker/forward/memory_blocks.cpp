#include "worker/forward/memory_blocks.hpp"

#include <algorithm>

namespace bulkhead::forward {
namespace {

// The number of blocks, if the device allows such large ones. More than one, so that one block is filled while the
// next is allocated.
constexpr std::uint64_t kFewBlocks = 16;
constexpr std::uint64_t kSmallestTarget = std::uint64_t{256} << 20;

std::uint64_t aligned_piece(std::uint64_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

}  // namespace

BlockPlan plan_blocks(std::span<const std::uint64_t> pieces, std::uint64_t largest) {
  std::uint64_t total = 0;
  for (const std::uint64_t piece : pieces)
    total += aligned_piece(piece);
  const std::uint64_t target = std::min(std::max(total / kFewBlocks, kSmallestTarget), largest);
  BlockPlan plan;
  for (const std::uint64_t piece : pieces) {
    const bool fits = !plan.blocks.empty() && plan.blocks.back() + aligned_piece(piece) <= target;
    if (!fits) plan.blocks.push_back(0);
    plan.places.push_back({static_cast<std::uint32_t>(plan.blocks.size() - 1), plan.blocks.back()});
    plan.blocks.back() += aligned_piece(piece);
  }
  return plan;
}

}  // namespace bulkhead::forward
