// jina-embeddings-v3 (Sturua et al. 2024, arXiv 2409.10173): BERT with rotary positions instead of a table. The
// adapters for its tasks are files of their own.
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

void describe_jina_bert_v3(GraphBuilder& model) {
  const RopeIndex rope = model.rope(model.heads(), RopePairing::kHalves);
  describe_encoder(model, {.rope = rope, .function = Gate::kGelu});
}

}  // namespace

BULKHEAD_ARCHITECTURE(jina_bert_v3, "jina-bert-v3", describe_jina_bert_v3);

}  // namespace bulkhead::model
