// Qwen 2 and 2.5 (Yang et al. 2024, arXiv 2407.10671): grouped attention with rotary positions and biases of q, k and
// v, a gated feed-forward, and an RMS norm before each.
#include "worker/model/architectures/shared.hpp"
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {

namespace {

void describe_qwen2_with(GraphBuilder& model, bool both_ways) {
  const std::uint32_t width = model.embedding();
  GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  attention.rules.both_ways = both_ways;
  const HeadShape& heads = attention.heads;
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.bias = layer.qkv_bias(heads)});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.gated_product("ffn_gate", "ffn_up", attention.normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  if (both_ways) return end_encoder(model, attention.epsilon);
  model.output(attention.epsilon);
  model.bias_logits();
}

}  // namespace

// For the other architectures with this graph, which are refused if they ask for attention in both directions.
void describe_qwen2(GraphBuilder& model) {
  describe_qwen2_with(model, false);
}

BULKHEAD_ARCHITECTURE(qwen2, "qwen2", [](GraphBuilder& model) {
  describe_qwen2_with(model, !model.flag("attention.causal", true));
});

}  // namespace bulkhead::model
