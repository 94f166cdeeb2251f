#include "worker/forward/chain.hpp"

#include <cstdint>

#include "gpu/kernels/kernels.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// The widest steps that are faster with kernels without barriers between them. In wider steps products are limited by
// arithmetic, and lose time.
constexpr std::uint32_t kChainedColumns = 16;

}  // namespace

void want_chain(StepContext& context, config::ChainedKernels setting) {
  if (setting == config::ChainedKernels::kOff || !context.mapping.units ||
      !context.mapping.attention_together) {
    return;
  }
  // Chains have been tried only on NVIDIA's devices, where a dispatch's workgroups start in order.
  constexpr std::uint32_t kNvidia = 0x10de;
  if (setting == config::ChainedKernels::kAuto && context.device->info().vendor_id != kNvidia)
    return;
  context.chain.columns = kChainedColumns;
}

Status prepare_chain(StepContext& context) {
  if (context.chain.columns == 0) return {};
  const std::uint64_t bytes =
      std::uint64_t{chain_counts(context.plan, context.chain.columns)} * k::kChainCountBytes;
  BULKHEAD_TRY(context.chain.counts,
               context.device->allocate(bytes, gpu::Memory::kDeviceLocal, "chain of kernels"));
  return {};
}

}  // namespace bulkhead::forward
