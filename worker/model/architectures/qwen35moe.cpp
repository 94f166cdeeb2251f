// Qwen 3.5 with experts (Qwen team 2026): Qwen 3.5's gated delta nets and gated attention, a router's choice
// of experts, and another expert that all tokens take, as much of it as a gate of its own says.
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
  Router router = model.required_router();
  router.renormalise = true;
  const std::uint32_t expert_width = model.count("expert_feed_forward_length", kMaxWidth);
  const std::uint32_t shared_width =
      model.count("expert_shared_feed_forward_length", kMaxWidth, expert_width);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkvg = model.floats("q, k, v, gates", LayerBuilder::gated_qkv_width(heads));
  const ActivationIndex plain = model.floats("attention without gates", heads.query_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex mixed =
      model.floats("delta net's q, k, v, gates", LayerBuilder::delta_mixed_width(delta));
  const ActivationIndex read = model.input("delta net's result", delta.value_width());
  const ActivationIndex shared_hidden = model.input("shared expert's hidden", shared_width);
  const ActivationIndex shared = model.floats("shared expert's result", width);

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
    layer.gated_product("ffn_gate_shexp", "ffn_up_shexp", normed, shared_hidden, Gate::kSilu);
    layer.product({layer.rows("ffn_down_shexp", shared_width, width)}, shared_hidden, shared);
    Experts experts = layer.experts(router, "post_attention_norm", epsilon, normed, expert_width);
    layer.share(experts, shared, "ffn_gate_inp_shexp");
    layer.append(experts);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen35moe, "qwen35moe", describe);

}  // namespace bulkhead::model
