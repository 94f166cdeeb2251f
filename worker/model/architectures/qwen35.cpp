// Qwen 3.5 (Qwen team 2026). Three of four layers are gated delta nets, which carry a state of fixed size
// from position to position. Each fourth layer attends to all positions, and gates multiply its result.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_qwen35(GraphBuilder& model) {
  const DeltaMixers mixers = model.delta_mixers();
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (const std::uint32_t i : model.layers()) {
    LayerBuilder layer = model.layer(i);
    layer.mix(mixers);
    layer.norm(kStream, "post_attention_norm", mixers.normed, mixers.epsilon);
    layer.gated_product("ffn_gate", "ffn_up", mixers.normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), model.embedding()), hidden,
                        kStream);
  }
  model.output(mixers.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen35, "qwen35", describe_qwen35, kDrafts);

}  // namespace bulkhead::model
