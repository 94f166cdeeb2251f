// Qwen 3's mixtures of experts (Yang et al. 2025, arXiv 2505.09388), such as Qwen3-30B-A3B: Qwen 3's attention, and
// gated feed-forwards that a router chooses, with weights that add up to one.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

void describe_qwen3moe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  Router router = model.required_router();
  const std::uint32_t hidden = model.expert_feed_forward(router);
  router.renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .bias = layer.qkv_bias(heads),
                     .q_gain = layer.vector("attn_q_norm", heads.size),
                     .k_gain = layer.vector("attn_k_norm", heads.size),
                     .epsilon = epsilon,
                     .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.append(layer.experts(router, "ffn_norm", epsilon, normed, hidden));
  }
  model.output(epsilon);
}

BULKHEAD_ARCHITECTURE(qwen3moe, "qwen3moe", describe_qwen3moe);

}  // namespace bulkhead::model
