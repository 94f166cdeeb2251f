// Qwen 3.5 (Qwen team 2026): of four layers three are gated delta nets, which carry a state of fixed size
// from position to position; the fourth attends to all positions, with a gate on what comes of it.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const DeltaHeads delta = model.delta_heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const std::vector<bool> recurrent = model.recurrent_layers();
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkvg = model.floats("q, k, v, gates", LayerBuilder::gated_qkv_width(heads));
  const ActivationIndex plain = model.floats("attention without gates", heads.query_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex mixed =
      model.floats("delta net's q, k, v, gates", LayerBuilder::delta_mixed_width(delta));
  const ActivationIndex read = model.input("delta net's result", delta.value_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    if (recurrent[i]) {
      layer.delta_net(delta, epsilon, normed, mixed, read);
      layer.product_added(layer.rows("ssm_out", delta.value_width(), width), read, kStream);
    } else {
      layer.gated_attention(heads, rope, epsilon, normed, qkvg, plain, attended);
      layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);
    }
    layer.norm(kStream, "post_attention_norm", normed, epsilon);
    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen35, "qwen35", describe);

}  // namespace bulkhead::model
