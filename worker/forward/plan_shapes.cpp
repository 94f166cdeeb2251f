// Derives from a model's graph and matrices the shapes that kernels are specialised for, and the weights' sizes.
#include "gpu/kernels/delta.hpp"
#include "gpu/kernels/experts.hpp"
#include "worker/forward/model_plan.hpp"
#include "worker/forward/rope_table.hpp"
#include "worker/model/graph_builder.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

// The kernels compute whatever a file may ask for.
static_assert(model::kMaxExperts <= k::kMostExperts);
static_assert(model::kMaxUsedExperts <= k::kMostUsedExperts);
static_assert(model::kMaxExpertGroups <= k::kMostExpertGroups);
static_assert(model::kMaxDeltaSize <= k::kMostDeltaSize);

k::AttentionShape attention_shape(const model::ModelGraph& graph, const model::HeadShape& heads,
                                  model::RopeIndex rope, k::KvFormat kv) {
  const bool halves = rope != kAbsent && graph.ropes[rope].pairing == model::RopePairing::kHalves;
  return {heads.size, heads.heads, heads.kv_heads, kv, halves};
}

k::AttentionShape attention_shape(const model::ModelGraph& graph, const model::Attend& attend,
                                  k::KvFormat kv) {
  k::AttentionShape shape = attention_shape(graph, attend.heads, kAbsent, kv);
  shape.window = attend.rules.window;
  shape.soft_cap = attend.rules.soft_cap;
  shape.sinks = attend.rules.sinks != kAbsent;
  shape.value_entries = graph.kv[attend.kv].value_entries;
  shape.plain_out = graph.activations[attend.out].form == model::Activation::Form::kFloats;
  shape.both_ways = attend.rules.both_ways;
  return shape;
}

k::AttentionShape attention_shape(const model::ModelGraph& graph, const model::RotateLatent& rotate,
                                  k::KvFormat kv) {
  k::AttentionShape shape = attention_shape(graph, rotate.heads, rotate.rope, kv);
  shape.value_entries = graph.kv[rotate.kv].value_entries;
  return shape;
}

namespace {

k::StateRule rule_of(model::StateRule rule) {
  switch (rule) {
    case model::StateRule::kDelta:
      return k::StateRule::kDelta;
    case model::StateRule::kSum:
      return k::StateRule::kSum;
    case model::StateRule::kChannels:
      return k::StateRule::kChannels;
  }
  return k::StateRule::kDelta;
}

}  // namespace

k::DeltaShape delta_shape(const model::DeltaHeads& heads) {
  return {heads.size,       heads.keys,       heads.values,        heads.taps,
          heads.neighbours, heads.value_size, rule_of(heads.rule), heads.norms};
}

k::Gate gate_of(model::Gate function) {
  switch (function) {
    case model::Gate::kSilu:
      return k::Gate::kSilu;
    case model::Gate::kGelu:
      return k::Gate::kGelu;
    case model::Gate::kClamped:
      return k::Gate::kClamped;
    case model::Gate::kSigmoid:
      return k::Gate::kSigmoid;
    case model::Gate::kSquaredRelu:
      return k::Gate::kSquaredRelu;
    case model::Gate::kSiluTo7:
      return k::Gate::kSiluTo7;
    case model::Gate::kSiluTo16:
      return k::Gate::kSiluTo16;
  }
  return k::Gate::kSilu;
}

k::RouterShape router_shape(const model::Router& router) {
  k::RouterShape shape{router.experts, router.used, router.shared_gate, router.renormalise};
  shape.norms = router.gain != kAbsent;
  shape.sigmoid = router.sigmoid;
  shape.biased_choice = router.choice_bias != kAbsent;
  shape.groups = router.groups;
  shape.groups_used = router.groups_used;
  return shape;
}

k::MatvecShape product_shape(const PackedMatrix& matrix, k::Epilogue epilogue) {
  k::MatvecShape shape;
  shape.type = matrix.type();
  shape.rows = static_cast<std::uint32_t>(matrix.slice_rows());
  shape.groups = matrix.layout().groups;
  shape.epilogue = epilogue;
  if (epilogue == k::Epilogue::kGated) shape.rows /= 2;
  return shape;
}

std::vector<std::uint64_t> weight_sizes(const model::ModelGraph& graph, const ModelPlan& plan,
                                        std::uint32_t context) {
  std::vector<std::uint64_t> sizes;
  for (const PlannedMatrix& matrix : plan.matrices)
    sizes.push_back(matrix.packed->layout().bytes);
  std::uint64_t floats = 0;
  const auto add = [&floats](std::uint64_t count) { floats = vector_start(floats) + count; };
  for (const model::VectorRow& row : graph.vectors) {
    std::uint64_t count = 0;
    for (const model::VectorRow::Part& part : row.parts)
      count += entries_of(graph, part);
    add(count);
  }
  for (const model::Rope& rope : graph.ropes) {
    add(rope_fine_floats(rope));
    add(rope_coarse_floats(rope, context));
  }
  sizes.push_back(floats * sizeof(float));
  return sizes;
}

}  // namespace bulkhead::forward
