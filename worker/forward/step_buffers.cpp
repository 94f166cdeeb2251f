#include "worker/forward/step_buffers.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

void set_rotation(const StepContext& context, const Activations& a, std::uint32_t slot,
                  const PlannedOperands& planned, k::FusedOperands& made) {
  const model::Rotate& rotate = *planned.rotate;
  const DeviceRope rope = context.weights.rope(rotate.rope);
  const k::AttentionShape shape =
      attention_shape(context.graph, rotate.heads, rotate.rope, context.kv_format);
  made.first_row = planned.first_row;
  made.bias = context.weights.vector(rotate.bias);
  made.rope_pairs = rope.pairs;
  made.fine = rope.fine;
  made.coarse = rope.coarse;
  made.pages = context.page_tables(slot, rotate.kv);
  made.keys = context.kv[rotate.kv].keys;
  made.values = context.kv[rotate.kv].values;
  made.q = a.at(context.plan, Scratch::kRotatedQ);
  made.q_scale = q_scale(rotate.scale, rotate.heads);
  made.head = shape.head;
  made.heads = shape.heads;
  made.kv_heads = shape.kv_heads;
  made.head_padded = shape.head_padded();
  made.kv_float = shape.kv == k::KvFormat::kF32 ? 1 : 0;
  const std::uint32_t stride = context.page_stride(rotate.kv);
  made.page_stride = stride == 0 ? static_cast<std::uint32_t>(shape.page_bytes()) : stride;
}

k::FusedOperands operands_of(const StepContext& context, const Activations& a, std::uint32_t slot,
                             const PlannedOperands& planned) {
  k::FusedOperands made{};
  made.stream = a.at(model::kStream);
  made.scales = a.at(context.plan, Scratch::kScales);
  made.stream_width = context.graph.embedding;
  made.stream_stride = static_cast<std::uint32_t>(
      activation_stride(context.mapping, context.graph.activations[model::kStream]));
  made.epsilon = planned.epsilon;
  if (planned.next_input != kAbsent) {
    made.next_gain = context.weights.vector(planned.next_gain);
    made.next_input = a.at(planned.next_input);
    made.next_stride = stride_of(context, planned.next_input);
  }
  if (planned.rotate) set_rotation(context, a, slot, planned, made);
  if (planned.bias != kAbsent) {
    made.bias = context.weights.vector(planned.bias) + std::uint64_t{planned.first_row} * 4;
    made.second_bias = context.weights.vector(planned.second_bias);
  }
  return made;
}

void list_operands(const StepContext& context, Activations& a) {
  a.operand_values.clear();
  for (std::uint32_t slot = 0; slot < context.slots; ++slot) {
    for (const PlannedOperands& planned : context.plan.operands)
      a.operand_values.push_back(operands_of(context, a, slot, planned));
  }
}

}  // namespace

std::uint32_t stride_of(const StepContext& context, model::ActivationIndex activation) {
  return static_cast<std::uint32_t>(
      activation_stride(context.mapping, context.plan.activations[activation]));
}

float q_scale(double scale, const model::HeadShape& heads) {
  constexpr double kLog2E = 1.4426950408889634;
  return static_cast<float>(scale != 0 ? kLog2E * scale
                                       : kLog2E / std::sqrt(static_cast<double>(heads.size)));
}

Result<bool> acquire_block(const StepContext& context, gpu::MemoryPool& pool,
                           Activations& activations) {
  Activations& a = activations;
  a.block = {};
  BULKHEAD_TRY(a.block, pool.acquire(a.block_bytes, "step activations"));
  const std::uint64_t before = std::exchange(a.block_address, a.block.slice().address);
  for (gpu::MemoryPool::Lease& piece : a.pieces) {
    const gpu::BufferSlice slice = piece.slice();
    if (slice.bytes == 0) continue;
    piece = gpu::MemoryPool::Lease::view(a.block.slice(), slice.address - before, slice.bytes);
  }
  if (a.block_address == before) return true;
  list_operands(context, a);
  return false;
}

Result<Activations> acquire_activations(const StepContext& context, gpu::MemoryPool& pool,
                                        std::span<const StepShape> shapes) {
  const ScratchPlan scratch = plan_scratch(context.graph, context.plan, context.mapping, shapes,
                                           {context.context, context.slots, pool.enabled()});
  Activations a;
  a.logits_rows = scratch.logits_rows;
  a.pieces.resize(scratch.pieces.size());
  if (!pool.enabled()) {
    a.block_bytes = scratch.bytes();
    BULKHEAD_TRY(a.block, pool.acquire(a.block_bytes, "step activations"));
    a.block_address = a.block.slice().address;
  }
  // The logits of many sequences and a large vocabulary would take a whole heap, or fit none, and they are kept as
  // long as the model is. So they get their own buffer.
  const std::size_t logits =
      context.plan.activations.size() + static_cast<std::size_t>(Scratch::kLogits);
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < a.pieces.size(); ++i) {
    const ScratchPiece& piece = scratch.pieces[i];
    if (piece.bytes == 0) continue;
    if (i == logits && piece.bytes > pool.heap_bytes() / 2 && pool.enabled()) {
      BULKHEAD_TRY(a.logits, context.device->allocate(piece.bytes, gpu::Memory::kDeviceLocal,
                                                      piece.name.c_str()));
      a.pieces[i] = gpu::MemoryPool::Lease::view(gpu::slice(a.logits), 0, piece.bytes);
      continue;
    }
    if (pool.enabled()) {
      BULKHEAD_TRY(a.pieces[i], pool.acquire(piece.bytes, piece.name.c_str()));
      continue;
    }
    a.pieces[i] = gpu::MemoryPool::Lease::view(a.block.slice(), offset, piece.bytes);
    constexpr std::uint64_t kAlignment = gpu::MemoryPool::kLeaseAlignment;
    offset += (piece.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // These are not in scratch memory, because a plain program's parameters are kept, too.
  if (!context.plan.operands.empty()) {
    list_operands(context, a);
    BULKHEAD_TRY(a.operands, pool.acquire(scratch.operand_bytes, "fused operands"));
  }
  if (scratch.attention_count_bytes > 0) {
    BULKHEAD_TRY(a.attention_counts,
                 pool.acquire(scratch.attention_count_bytes, "attention counts"));
  }
  return a;
}

Status upload_operands(const Activations& activations, gpu::BlitQueue& blit) {
  if (!activations.operand_values.empty()) {
    BULKHEAD_RETURN_IF_ERROR(blit.upload(std::as_bytes(std::span(activations.operand_values)),
                                         activations.operands.slice()));
  }
  if (!activations.attention_counts.valid()) return {};
  const gpu::BufferSlice counts = activations.attention_counts.slice();
  const std::vector<std::byte> zeros(counts.bytes);
  return blit.upload(zeros, counts);
}

}  // namespace bulkhead::forward
