// Qwen 3's mixtures of experts (Yang et al. 2025, arXiv 2505.09388), such as Qwen3-30B-A3B: Qwen 3's attention, and
// gated feed-forwards that a router chooses, with weights that add up to one.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

void describe_qwen3moe(GraphBuilder& model) {
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  Router router = model.required_router();
  const std::uint32_t hidden = model.expert_feed_forward(router);
  router.renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.bias = layer.qkv_bias(heads),
                             .q_gain = layer.vector("attn_q_norm", heads.size),
                             .k_gain = layer.vector("attn_k_norm", heads.size)});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.append(layer.experts(router, "ffn_norm", attention.epsilon, attention.normed, hidden));
  }
  model.output(attention.epsilon);
}

BULKHEAD_ARCHITECTURE(qwen3moe, "qwen3moe", describe_qwen3moe);

}  // namespace bulkhead::model
