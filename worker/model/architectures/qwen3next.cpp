// Qwen3-Next (Qwen team 2025). Qwen 3.5 with experts descends from this architecture and has the same layers. The
// tensors differ: in Qwen3-Next, value heads that share a key head are neighbours, and one tensor holds the betas
// and alphas.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_qwen3next(GraphBuilder& model) {
  DeltaMixers mixers = model.delta_mixers();
  mixers.delta.neighbours = true;
  model.delta_mixers_with_experts(mixers);
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen3next, "qwen3next", describe_qwen3next, kDrafts);

}  // namespace bulkhead::model
