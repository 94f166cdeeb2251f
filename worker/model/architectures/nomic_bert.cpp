// Nomic Embed (Nussbaum et al. 2024, arXiv 2402.01613): BERT with rotary positions instead of a table, and with gated
// feed-forwards.
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

void describe_nomic_bert(GraphBuilder& model) {
  const RopeIndex rope = model.rope(model.heads(), RopePairing::kHalves);
  describe_encoder(model, {.rope = rope, .function = Gate::kSilu, .gated = true});
}

}  // namespace

BULKHEAD_ARCHITECTURE(nomic_bert, "nomic-bert", describe_nomic_bert);

}  // namespace bulkhead::model
