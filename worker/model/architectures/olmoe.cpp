// OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): q and k are normed over all of their heads together, and a router
// chooses experts, whose weights are their shares in the softmax over all experts.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_olmoe(GraphBuilder& model) {
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  const Router router = model.required_router();
  // The width of one expert's hidden layer, not of all experts of a token together.
  const std::uint32_t hidden =
      model.count("expert_feed_forward_length", kMaxWidth, model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.norm_within(attention.qkv, 0, heads.query_width(), "attn_q_norm", attention.epsilon);
    layer.norm_within(attention.qkv, heads.query_width(), heads.kv_width(), "attn_k_norm",
                      attention.epsilon);
    layer.attend(attention);

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.append(layer.experts(router, "ffn_norm", attention.epsilon, attention.normed, hidden));
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(olmoe, "olmoe", describe_olmoe);

}  // namespace bulkhead::model
