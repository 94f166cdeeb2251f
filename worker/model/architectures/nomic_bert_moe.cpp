// Nomic Embed v2 (Nussbaum and Duderstadt 2025, arXiv 2502.07972): BERT with rotary positions instead of a table, and
// with experts in every second layer. Two experts of a token are weighed by the softmax over all.
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

void describe_nomic_bert_moe(GraphBuilder& model) {
  const RopeIndex rope = model.rope(model.heads(), RopePairing::kHalves);
  const std::uint32_t period = model.count("moe_every_n_layers", kMaxLayers);
  describe_encoder(model, {.rope = rope, .function = Gate::kGelu, .expert_period = period});
}

}  // namespace

BULKHEAD_ARCHITECTURE(nomic_bert_moe, "nomic-bert-moe", describe_nomic_bert_moe);

}  // namespace bulkhead::model
