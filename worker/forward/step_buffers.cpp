// The buffers that steps work in, the operands that lie in them, and which shapes there are.
#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "gpu/kernels/units.hpp"
#include "worker/forward/step_layout.hpp"
#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// The widest column tile: buffers have room for the columns that pad the last tile.
constexpr std::uint32_t kTile = 16, kUnitsTile = 128;
constexpr std::uint32_t kLeastUnitsTile = 8;
std::uint32_t widest_tile(const StepContext& context) {
  return context.mapping.units ? kUnitsTile : kTile;
}

// The widest column tile of any product in a step of so many columns.
std::uint32_t tile_of_products(const StepContext& context, std::uint32_t columns) {
  std::uint32_t tile = context.mapping.units ? kLeastUnitsTile : kTile;
  const auto include = [&](const DeviceMatrix& matrix, k::Epilogue epilogue) {
    k::MatvecShape shape;
    shape.type = matrix.type;
    shape.rows = static_cast<std::uint32_t>(matrix.layout.rows);
    shape.groups = matrix.layout.groups;
    shape.epilogue = epilogue;
    if (epilogue == k::Epilogue::kGated) shape.rows /= 2;
    tile = std::max(tile, k::matvec(context.mapping, shape, columns).columns_per_workgroup);
  };
  for (const LayerWeights& layer : context.weights.layers) {
    for (const Segment& segment : layer.qkv)
      include(segment.matrix, k::Epilogue::kQkv);
    include(layer.attention_output, k::Epilogue::kAdd);
    include(layer.gate, layer.gate_up_joined ? k::Epilogue::kGated : k::Epilogue::kStore);
    if (!layer.gate_up_joined) include(layer.up, k::Epilogue::kStore);
    include(layer.down, k::Epilogue::kAdd);
  }
  include(context.weights.output_matrix(), k::Epilogue::kStore);
  return tile;
}

// Of one slot: [layer][kFusedOfLayer].
std::vector<k::FusedOperands> fused_operands(const StepContext& context, const Activations& a,
                                             std::uint32_t slot) {
  const model::ModelConfig& config = context.config;
  const std::vector<LayerWeights>& layers = context.weights.layers;
  k::FusedOperands common;
  common.stream = a.stream.slice().address;
  common.scales = a.scales.slice().address;
  common.stream_width = config.embedding;
  common.stream_stride = stream_stride(context);
  common.epsilon = config.rms_epsilon;
  common.next_input = a.normed.slice().address;
  common.next_stride = k::input_stride(context.mapping, config.embedding);
  common.rope_pairs = context.weights.rope_pairs;
  common.fine = context.weights.rope_fine;
  common.coarse = context.weights.rope_coarse;
  common.pages = parameters_of(context, slot) + context.parameter_layout.pages;
  common.q = a.q.slice().address;
  common.q_scale = q_scale(config);
  common.head = config.head_size;
  common.heads = config.heads;
  common.kv_heads = config.kv_heads;
  common.head_padded = context.attention.head_padded();
  common.kv_float = context.attention.kv == k::KvFormat::kF32 ? 1 : 0;
  std::vector<k::FusedOperands> all(layers.size() * kFusedOfLayer, common);
  for (std::size_t index = 0; index < layers.size(); ++index) {
    const LayerWeights& layer = layers[index];
    k::FusedOperands* const mine = all.data() + index * kFusedOfLayer;
    for (std::size_t segment = 0; segment < layer.qkv.size(); ++segment) {
      k::FusedOperands& qkv = mine[kQkvSegments + segment];
      qkv.first_row = layer.qkv[segment].first_row;
      qkv.bias = layer.qkv_bias;
      qkv.keys = context.kv[index];
      qkv.values = qkv.keys + context.kv_half;
    }
    mine[kOutput].next_gain = layer.feed_forward_norm;
    mine[kDown].next_gain = index + 1 < layers.size() ? layers[index + 1].attention_norm : 0;
  }
  return all;
}

void list_operands(const StepContext& context, Activations& a) {
  a.fused_operands.clear();
  if (context.mapping.rows) return;
  for (std::uint32_t slot = 0; slot < context.slots; ++slot) {
    const auto of_slot = fused_operands(context, a, slot);
    a.fused_operands.insert(a.fused_operands.end(), of_slot.begin(), of_slot.end());
  }
}

}  // namespace

std::vector<StepShape> step_shapes(std::uint32_t max_columns, std::uint32_t mixed,
                                   std::uint32_t max_outputs, std::uint32_t most) {
  // Decoding wants the narrow ones close to each other. Prompts come in any length, and what a wide
  // shape has too much costs little beside the columns that are there.
  std::vector<std::uint32_t> columns;
  for (const std::uint32_t narrow : {1U, 2U, 4U, 8U, 16U, 32U}) {
    if (narrow < max_columns) columns.push_back(narrow);
  }
  const auto narrow = static_cast<std::ptrdiff_t>(columns.size());
  mixed = std::min(mixed, max_columns);
  for (std::uint64_t wide = 64; wide * 2 < mixed; wide *= 4)
    columns.push_back(static_cast<std::uint32_t>(wide));
  if (mixed > 32) columns.push_back(mixed);
  // How a wide step's products are shared depends on its shape: neither fits what is between.
  if (const std::uint32_t between = mixed + (max_columns - mixed) / 2;
      between > std::max(mixed, 64U))
    columns.push_back(between);
  if (columns.empty() || columns.back() < max_columns) columns.push_back(max_columns);
  while (columns.size() > most && std::ssize(columns) > narrow + 1)
    columns.erase(columns.begin() + narrow);
  std::vector<StepShape> shapes;
  for (const std::uint32_t each : columns)
    shapes.push_back({each, std::min(each, max_outputs)});
  return shapes;
}

StepShape shape_for(std::span<const StepShape> shapes, std::uint32_t columns,
                    std::uint32_t outputs) {
  for (const StepShape& shape : shapes) {
    if (columns <= shape.columns && outputs <= shape.outputs) return shape;
  }
  return shapes.back();
}

Result<bool> acquire_block(const StepContext& context, gpu::MemoryPool& pool,
                           Activations& activations) {
  Activations& a = activations;
  a.block = {};
  BULKHEAD_TRY(a.block, pool.acquire(a.block_bytes, "step activations"));
  const std::uint64_t before = std::exchange(a.block_address, a.block.slice().address);
  for (gpu::MemoryPool::Lease* const part :
       {&a.stream, &a.normed, &a.qkv, &a.q, &a.partials, &a.attended, &a.gate, &a.up, &a.hidden,
        &a.output_normed, &a.logits, &a.greedy_partials, &a.logprob_sums, &a.scales}) {
    const gpu::BufferSlice slice = part->slice();
    if (slice.bytes == 0) continue;
    *part = gpu::MemoryPool::Lease::view(a.block.slice(), slice.address - before, slice.bytes);
  }
  if (a.block_address == before) return true;
  list_operands(context, a);
  return false;
}

Result<Activations> acquire_activations(const StepContext& context, gpu::MemoryPool& pool,
                                        std::span<const StepShape> shapes) {
  const model::ModelConfig& config = context.config;
  StepShape widest{0, 0};
  std::uint64_t partial_columns = 0, partials = 0;  // of columns
  for (const StepShape& shape : shapes) {
    widest.columns = std::max(widest.columns, shape.columns);
    widest.outputs = std::max(widest.outputs, shape.outputs);
    const k::AttentionMode mode =
        k::attention_mode(context.mapping, context.attention, shape.columns, context.context);
    const std::uint64_t splits = k::partial_splits(context.mapping, mode, context.context);
    if (splits == 0) continue;
    partial_columns = std::max<std::uint64_t>(partial_columns, shape.columns);
    partials = std::max(partials, shape.columns * splits);
  }
  // Kept memory takes any tile. What is allocated for a step and freed after it is as small as a
  // step of its shape allows.
  const auto padded = [&](std::uint32_t count) {
    return up_to(count, pool.enabled() ? widest_tile(context) : tile_of_products(context, count));
  };
  const std::uint64_t columns = padded(widest.columns);
  // Rows of logits are large, and the units write no column beyond the step's own.
  const bool exact = !pool.enabled() && context.mapping.units;
  const std::uint64_t outputs = exact ? widest.outputs : up_to(widest.outputs, kTile);
  const auto stride = [&](std::uint32_t width) { return k::input_stride(context.mapping, width); };
  const std::uint32_t attended = config.heads * config.head_size;
  Activations a;
  // Without the pool: first how much it all is, then the parts of one allocation.
  std::uint64_t& block_bytes = a.block_bytes;
  const auto bytes = [&](gpu::MemoryPool::Lease& lease, std::uint64_t count,
                         const char* name) -> Status {
    if (pool.enabled()) {
      BULKHEAD_TRY(lease, pool.acquire(count, name));
      return {};
    }
    const std::uint64_t offset = block_bytes;
    constexpr std::uint64_t kAlignment = gpu::MemoryPool::kLeaseAlignment;
    block_bytes = (block_bytes + count + kAlignment - 1) / kAlignment * kAlignment;
    if (a.block.valid()) lease = gpu::MemoryPool::Lease::view(a.block.slice(), offset, count);
    return {};
  };
  const auto floats = [&](gpu::MemoryPool::Lease& lease, std::uint64_t count, const char* name) {
    return bytes(lease, count * sizeof(float), name);
  };
  const auto acquire_all = [&]() -> Status {
    BULKHEAD_RETURN_IF_ERROR(floats(a.stream, columns * stream_stride(context), "residual stream"));
    BULKHEAD_RETURN_IF_ERROR(floats(a.normed, columns * stride(config.embedding), "normed stream"));
    BULKHEAD_RETURN_IF_ERROR(floats(a.qkv, columns * qkv_width(config), "q, k, v"));
    BULKHEAD_RETURN_IF_ERROR(
        floats(a.q, columns * config.heads * context.attention.head_padded(), "rotated q"));
    if (partials > 0) {
      BULKHEAD_RETURN_IF_ERROR(
          floats(a.partials, partials * config.heads * k::partial_floats(context.attention),
                 "attention partials"));
    }
    BULKHEAD_RETURN_IF_ERROR(floats(a.attended, columns * stride(attended), "attention result"));
    if (any_separate_gate(context.weights)) {
      BULKHEAD_RETURN_IF_ERROR(floats(a.gate, columns * config.feed_forward, "gate"));
      BULKHEAD_RETURN_IF_ERROR(floats(a.up, columns * config.feed_forward, "up"));
    }
    BULKHEAD_RETURN_IF_ERROR(floats(a.hidden, columns * stride(config.feed_forward), "hidden"));
    if (outputs > 0) {
      BULKHEAD_RETURN_IF_ERROR(
          floats(a.output_normed, std::uint64_t{padded(widest.outputs)} * stride(config.embedding),
                 "normed outputs"));
      a.logits_rows = static_cast<std::uint32_t>(outputs);
      BULKHEAD_RETURN_IF_ERROR(
          floats(a.logits, outputs * config.vocabulary * context.slots, "logits"));
      BULKHEAD_RETURN_IF_ERROR(
          floats(a.greedy_partials, outputs * greedy_chunks(config) * 4, "greedy partials"));
      BULKHEAD_RETURN_IF_ERROR(
          floats(a.logprob_sums, outputs * greedy_chunks(config) * 2, "sums of weights"));
    }
    if (!context.mapping.rows) BULKHEAD_RETURN_IF_ERROR(floats(a.scales, columns, "norms' scales"));
    return {};
  };
  BULKHEAD_RETURN_IF_ERROR(acquire_all());
  if (!pool.enabled()) {
    BULKHEAD_TRY(a.block, pool.acquire(block_bytes, "step activations"));
    a.block_address = a.block.slice().address;
    block_bytes = 0;
    BULKHEAD_RETURN_IF_ERROR(acquire_all());
  }
  if (!context.mapping.rows) {
    // No scratch memory: a plain program's parameters stay, too.
    const std::size_t count = context.weights.layers.size() * kFusedOfLayer * context.slots;
    BULKHEAD_TRY(a.fused, pool.acquire(count * sizeof(k::FusedOperands), "fused operands"));
    list_operands(context, a);
    if (partial_columns > 0) {
      BULKHEAD_TRY(a.attention_counts,
                   pool.acquire(partial_columns * config.heads * k::kAttentionCountBytes,
                                "attention counts"));
    }
  }
  return a;
}

Status upload_operands(const Activations& activations, gpu::BlitQueue& blit) {
  if (activations.fused_operands.empty()) return {};
  BULKHEAD_RETURN_IF_ERROR(
      blit.upload(std::as_bytes(std::span(activations.fused_operands)), activations.fused.slice()));
  if (activations.attention_counts.valid()) {
    const gpu::BufferSlice counts = activations.attention_counts.slice();
    const std::vector<std::byte> zeros(counts.bytes);
    BULKHEAD_RETURN_IF_ERROR(blit.upload(zeros, counts));
  }
  return {};
}

}  // namespace bulkhead::forward
