#include "worker/forward/scratch_plan.hpp"

#include <algorithm>

#include "gpu/memory_pool.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// The widest column tile: buffers have room for the columns that pad the last tile.
constexpr std::uint32_t kTile = 16, kUnitsTile = 128;
constexpr std::uint32_t kLeastUnitsTile = 8;

std::uint64_t up_to(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns the widest column tile of any product in a step of this many columns.
std::uint32_t tile_of_products(const ModelPlan& plan, const k::Mapping& mapping,
                               std::uint32_t columns) {
  std::uint32_t tile = mapping.units ? kLeastUnitsTile : kTile;
  const auto include = [&](MatrixIndex index, k::Epilogue epilogue) {
    const k::MatvecShape shape = product_shape(*plan.matrices[index].packed, epilogue);
    tile = std::max(tile, k::matvec(mapping, shape, columns).columns_per_workgroup);
  };
  for (const PlanStep& step : plan.steps) {
    if (const auto* const products = std::get_if<ProductsStep>(&step)) {
      for (const ProductStep& product : products->products)
        include(product.matrix, product.epilogue);
    }
  }
  if (plan.output != kAbsent) include(plan.output, k::Epilogue::kStore);
  return tile;
}

// Returns how many floats attention's partial results take, and for how many columns.
std::uint64_t partials_of(const ModelPlan& plan, const k::Mapping& mapping,
                          std::span<const StepShape> shapes, std::uint32_t context,
                          std::uint64_t& columns) {
  std::uint64_t floats = 0;
  for (const k::AttentionShape& attention : plan.attention_shapes) {
    for (const StepShape& shape : shapes) {
      const std::uint64_t splits = k::partial_splits(mapping, attention, shape.columns, context);
      if (splits == 0) continue;
      columns = std::max<std::uint64_t>(columns, shape.columns);
      floats = std::max(floats, std::uint64_t{shape.columns} * splits * attention.heads *
                                    k::partial_floats(attention));
    }
  }
  return floats;
}

}  // namespace

std::uint64_t activation_stride(const k::Mapping& mapping, const model::Activation& activation) {
  switch (activation.form) {
    case model::Activation::Form::kStream:  // kernels read its rows in groups of four
      return mapping.rows ? activation.width : up_to(activation.width, 4);
    case model::Activation::Form::kFloats:
      return activation.width;
    case model::Activation::Form::kInput:
      return k::input_stride(mapping, activation.width);
  }
  return 0;
}

std::uint64_t ScratchPlan::bytes() const {
  std::uint64_t sum = 0;
  for (const ScratchPiece& piece : pieces)
    sum += up_to(piece.bytes, gpu::MemoryPool::kLeaseAlignment);
  return sum;
}

ScratchPlan plan_scratch(const model::ModelGraph& graph, const ModelPlan& plan,
                         const k::Mapping& mapping, std::span<const StepShape> shapes,
                         const ScratchOptions& options) {
  StepShape widest{0, 0};
  for (const StepShape& shape : shapes) {
    widest.columns = std::max(widest.columns, shape.columns);
    widest.outputs = std::max(widest.outputs, shape.outputs);
  }
  // Kept memory must fit any tile. Memory that is allocated for a step and freed after it is as small as a step of
  // its shape allows.
  const auto padded = [&](std::uint32_t count) {
    const std::uint32_t widest_tile = mapping.units ? kUnitsTile : kTile;
    return up_to(count, options.kept ? widest_tile : tile_of_products(plan, mapping, count));
  };
  const std::uint64_t columns = padded(widest.columns);
  // Rows of logits are large, and with matrix units no kernel writes columns beyond the step's own.
  const bool exact = !options.kept && mapping.units;
  const std::uint64_t outputs = exact ? widest.outputs : up_to(widest.outputs, kTile);

  ScratchPlan made;
  std::uint64_t partial_columns = 0;  // columns of the widest step that has partial results
  const auto floats = [&made](std::string name, std::uint64_t count) {
    made.pieces.push_back({std::move(name), count * sizeof(float)});
  };
  for (const model::Activation& activation : plan.activations)
    floats(activation.name,
           columns * activation.per_column * activation_stride(mapping, activation));
  floats("rotated q", columns * plan.q_width);
  floats("attention partials",
         partials_of(plan, mapping, shapes, options.context, partial_columns));
  floats("norms' scales", plan.fuses ? columns : 0);
  floats("normed outputs",
         outputs == 0 ? 0 : padded(widest.outputs) * k::input_stride(mapping, graph.embedding));
  made.logits_rows = static_cast<std::uint32_t>(outputs);
  floats("logits", outputs * graph.vocabulary * options.slots);
  floats("hidden states", outputs * graph.embedding * options.slots);
  floats("greedy partials", outputs * greedy_chunks(graph) * 4);
  floats("sums of weights", outputs * greedy_chunks(graph) * 2);
  floats("ends of top-p", outputs * k::kSampleCutBytes / sizeof(float));
  made.operand_bytes = options.slots * plan.operands.size() * sizeof(k::FusedOperands);
  made.attention_count_bytes =
      plan.fuses ? partial_columns * plan.most_heads * k::kAttentionCountBytes : 0;
  return made;
}

}  // namespace bulkhead::forward
