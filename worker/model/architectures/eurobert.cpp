// EuroBERT (Boizard et al. 2025, arXiv 2503.05500) and jina-embeddings-v5-nano: Llama's layers, whose attention sees a
// text in both directions.
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

void describe_eurobert(GraphBuilder& model) {
  GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  attention.rules.both_ways = true;
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention);
    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.gated_product("ffn_gate", "ffn_up", attention.normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), model.embedding()), hidden,
                        kStream);
  }
  end_encoder(model, attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(eurobert, "eurobert", describe_eurobert);

}  // namespace bulkhead::model
