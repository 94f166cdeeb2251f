// Qwen3-Next (Qwen team 2025), from which Qwen 3.5 with experts came. Here value heads that share a key head
// are neighbours, and their betas and alphas lie in one tensor.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_qwen3next(GraphBuilder& model) {
  DeltaMixers mixers = model.delta_mixers();
  mixers.delta.neighbours = true;
  model.delta_mixers_with_experts(mixers);
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen3next, "qwen3next", describe_qwen3next);

}  // namespace bulkhead::model
