#include "worker/forward/step_emitter.hpp"

#include <cstring>
#include <string>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// Recording a dispatch checks the same, but only once the weights are loaded.
Status check_extent(const StepContext& context, const gpu::KernelSpec& spec, const Extent& extent) {
  const std::uint32_t groups[] = {extent.x, extent.y, extent.z};
  for (int i = 0; i < 3; ++i) {
    const std::uint32_t most = context.device->max_groups(i);
    if (groups[i] <= most) continue;
    return Error(
        ErrorCode::kUnsupported,
        fmt::format("kernel {}: it takes {} workgroups, and {} computes {} at most: a tensor "
                    "of the model has too many rows for this device (the vocabulary has "
                    "{}). Serve the model on another device (models[].device; `bulkhead "
                    "doctor` lists them)",
                    spec.name, groups[i], context.device->info().name, most,
                    context.graph.vocabulary));
  }
  return {};
}

}  // namespace

Status StepEmitter::append(const gpu::KernelSpec& spec, StepOp op, const Extent& extent) {
  if (context_.wanted != nullptr) {
    BULKHEAD_RETURN_IF_ERROR(check_extent(context_, spec, extent));
    context_.wanted->push_back(spec);
    return {};
  }
  if (context_.alive) context_.alive();
  BULKHEAD_TRY(op.kernel, context_.device->make_kernel(spec));
  op.x = extent.x;
  op.y = extent.y;
  op.z = extent.z;
  op.bytes_moved = extent.bytes_moved;
  program_.push_back(op);
  return {};
}

Status DispatchedSteps::dispatch(const gpu::KernelSpec& spec, std::span<const std::byte> push,
                                 const Extent& extent) {
  StepOp op;
  if (push.size() > op.push.size())
    return Error(ErrorCode::kInternal, "kernel " + std::string(spec.name) + " takes too much");
  std::memcpy(op.push.data(), push.data(), push.size());
  return append(spec, op, extent);
}

Status ChainedLinks::dispatch(const gpu::KernelSpec& spec, std::span<const std::byte> push,
                              const Extent& extent) {
  const gpu::KernelSpec link = k::chained(spec);
  StepOp op;
  if (link.push_bytes == 0 || push.size() % 8 != 0 ||
      push.size() + sizeof(k::ChainPush) > op.push.size())
    return Error(ErrorCode::kInternal, "kernel " + std::string(spec.name) + " in a chain");
  if (link_ >= chain_links(context_.plan))
    return Error(ErrorCode::kInternal, "a chain of too many links");
  std::memcpy(op.push.data(), push.data(), push.size());
  const bool broken = link_ != 0 && link_ == context_.chain.broken_link;
  const k::ChainPush waits{context_.chain.counts.address(), failed_, link_,
                           groups_before_ + (broken ? 1 : 0)};
  std::memcpy(op.push.data() + push.size(), &waits, sizeof waits);
  groups_ += extent.x * extent.y * extent.z;
  return append(link, op, extent);
}

void ChainedLinks::barrier() {
  if (groups_ == 0) return;
  groups_before_ = groups_;
  groups_ = 0;
  ++link_;
}

}  // namespace bulkhead::forward
