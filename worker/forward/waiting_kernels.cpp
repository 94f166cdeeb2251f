#include "worker/forward/waiting_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "config/base/log.hpp"
#include "gpu/kernels/units.hpp"
#include "worker/forward/step_layout.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// gpu_optimizations.persistent_step: auto.
constexpr bool kPersistentByDefault = false;
// Steps that have gained by kernels without barriers between them: wider ones lose where products
// are bound by arithmetic.
constexpr std::uint32_t kChainedColumns = 16;

// The slots of the persistent kernel that the model takes; empty: it can't have one.
std::vector<k::PersistentSlot> persistent_slots(const StepContext& context) {
  const ModelWeights& weights = context.weights;
  if (context.mapping.rows || !context.mapping.attention_together ||
      !weights.rotating_rows_paired || any_separate_gate(weights)) {
    return {};
  }
  std::vector<k::PersistentSlot> slots;
  const auto add = [&](const DeviceMatrix& matrix, k::Epilogue epilogue) {
    k::MatvecShape shape;
    shape.type = matrix.type;
    shape.epilogue = epilogue;
    const k::PersistentSlot slot = k::persistent_slot(context.mapping, shape);
    if (std::find(slots.begin(), slots.end(), slot) == slots.end()) slots.push_back(slot);
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const Segment& segment : layer.qkv)
      add(segment.matrix, k::Epilogue::kQkv);
    add(layer.attention_output, k::Epilogue::kAdd);
    add(layer.gate, k::Epilogue::kGated);
    add(layer.down, k::Epilogue::kAdd);
  }
  if (slots.size() > k::kPersistentSlots) slots.clear();
  return slots;
}

// How many workgroups of the persistent kernel for so many columns run at the same time, tried on
// the device; 0: it can't be told.
Result<std::uint32_t> workgroups_at_once(const StepContext& context, gpu::CommandRing& ring,
                                         std::uint32_t columns) {
  // More than any device's processors take of such large workgroups.
  constexpr std::uint32_t kMany = 1024;
  BULKHEAD_TRY(const gpu::Kernel kernel, context.device->make_kernel(k::persistent_step(
                                             context.mapping, context.attention,
                                             context.persistent.slots, tile_of(columns))));
  BULKHEAD_TRY(const gpu::Buffer told, context.device->allocate(sizeof(k::PersistentSync),
                                                                gpu::Memory::kReadback, "probe"));
  k::PersistentPush push{};
  push.sync = context.persistent.sync.address();
  push.parameters = context.parameters.address();
  push.workgroups = kMany;
  const gpu::BufferSlice sync = gpu::slice(context.persistent.sync);
  BULKHEAD_TRY(const auto id, ring.record([&](gpu::Recorder& recorder) {
    recorder.fill(sync, 0);
    recorder.barrier();
    recorder.dispatch(kernel, gpu::push_bytes(push), kMany);
    recorder.barrier();
    recorder.copy(sync, gpu::slice(told));
    recorder.barrier();
    recorder.fill(sync, 0);
  }));
  BULKHEAD_TRY(const auto ticket, ring.submit(id));
  BULKHEAD_RETURN_IF_ERROR(ring.wait(ticket));
  ring.drop(id);
  k::PersistentSync words{};
  std::memcpy(&words, told.mapped().data(), sizeof words);
  return words.peak < kMany ? words.peak : 0;
}

void want_persistent(StepContext& context, config::PersistentStep setting) {
  // A CPU has few processors to wait on each other.
  if (setting == config::PersistentStep::kOff ||
      context.device->info().kind == gpu::DeviceKind::kCpu) {
    return;
  }
  if (setting == config::PersistentStep::kAuto && !kPersistentByDefault) return;
  PersistentLayers& persistent = context.persistent;
  persistent.slots = persistent_slots(context);
  if (!persistent.slots.empty()) {
    persistent.columns = k::kPersistentColumns;
  } else if (context.attention.kv == k::KvFormat::kQ8) {
    spdlog::warn(
        "persistent_step: not with engine.kv_type q8_0, whose keys and values are rounded by a "
        "kernel of their own; layers are dispatched");
  }
}

void want_chain(StepContext& context, config::ChainedKernels setting) {
  if (setting == config::ChainedKernels::kOff || !context.mapping.units ||
      !context.mapping.attention_together) {
    return;
  }
  // Where it has been tried: a dispatch's workgroups start in order there.
  constexpr std::uint32_t kNvidia = 0x10de;
  if (setting == config::ChainedKernels::kAuto && context.device->info().vendor_id != kNvidia)
    return;
  if (context.attention.kv == k::KvFormat::kQ8) {
    spdlog::info(
        "chained_kernels: not with engine.kv_type q8_0, whose keys and values are rounded by a "
        "kernel of their own; barriers stand between dispatches");
    return;
  }
  context.chain.columns = kChainedColumns;
}

// Workgroups wait for each other, so that no more may be started than run at the same time.
Status prepare_persistent(StepContext& context, gpu::Optimizations& parts) {
  PersistentLayers& persistent = context.persistent;
  BULKHEAD_TRY(persistent.sync,
               context.device->allocate(sizeof(k::PersistentSync), gpu::Memory::kDeviceLocal,
                                        "persistent step"));
  const std::uint32_t zeros[4] = {};
  gpu::BlitQueue& blit = *parts.blit_queue;
  BULKHEAD_RETURN_IF_ERROR(
      blit.upload(std::as_bytes(std::span(zeros)), gpu::slice(persistent.sync)));
  BULKHEAD_RETURN_IF_ERROR(blit.finish_uploads());
  persistent.workgroups = 0xffffffffU;
  for (std::uint32_t columns = 1; columns <= persistent.columns; columns *= 2) {
    BULKHEAD_TRY(const std::uint32_t at_once,
                 workgroups_at_once(context, *parts.command_ring, columns));
    persistent.workgroups = std::min(persistent.workgroups, at_once);
  }
  if (persistent.workgroups == 0) {
    spdlog::warn(
        "persistent_step: how many workgroups run at once is not to be told; layers are "
        "dispatched");
    persistent.columns = 0;
  } else {
    spdlog::info("persistent_step: layers in one dispatch of {} workgroups", persistent.workgroups);
  }
  return {};
}

}  // namespace

void want_waiting_kernels(StepContext& context, const config::GpuOptimizations& settings,
                          const gpu::Optimizations& parts) {
  // Its list of operations is made for memory that stays.
  if (settings.enabled && parts.memory_pool->enabled())
    want_persistent(context, settings.persistent_step);
  want_chain(context, settings.chained_kernels);
}

Status prepare_waiting_kernels(StepContext& context, gpu::Optimizations& parts) {
  if (context.persistent.columns > 0) BULKHEAD_RETURN_IF_ERROR(prepare_persistent(context, parts));
  if (context.chain.columns > 0) {
    const std::uint64_t bytes =
        std::uint64_t{chain_counts(context.config, context.chain.columns)} * k::kChainCountBytes;
    BULKHEAD_TRY(context.chain.counts,
                 context.device->allocate(bytes, gpu::Memory::kDeviceLocal, "chain of kernels"));
  }
  return {};
}

}  // namespace bulkhead::forward
