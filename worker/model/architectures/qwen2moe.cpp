// Qwen 1.5 and 2 with experts (Yang et al. 2024, arXiv 2407.10671): Qwen 2's attention, a router's choice
// of experts whose weights are shares of all experts', and another expert that all tokens take, as
// much of it as a gate of its own says.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const Router router = model.required_router();
  const std::uint32_t expert_width =
      model.count("expert_feed_forward_length", kMaxWidth, model.feed_forward() / router.used);
  const std::uint32_t shared_width =
      model.count("expert_shared_feed_forward_length", kMaxWidth, model.feed_forward());
  const ActivationIndex shared_hidden = model.input("shared expert's hidden", shared_width);
  const ActivationIndex shared = model.floats("shared expert's result", width);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.gated_product("ffn_gate_shexp", "ffn_up_shexp", normed, shared_hidden, Gate::kSilu);
    layer.product({layer.rows("ffn_down_shexp", shared_width, width)}, shared_hidden, shared);
    Experts experts = layer.experts(router, "ffn_norm", epsilon, normed, expert_width);
    layer.share(experts, shared, "ffn_gate_inp_shexp");
    layer.append(experts);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen2moe, "qwen2moe", describe);

}  // namespace bulkhead::model
