// Hunyuan-A13B (Tencent 2025, github.com/Tencent-Hunyuan/Hunyuan-A13B): each head of q and k is normed behind its
// rotation. A router chooses experts by their shares in the softmax, and the chosen shares are scaled so that they add
// up to one. Every token takes one more expert.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_hunyuan_moe(GraphBuilder& model) {
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  FeedForwards feed_forwards = model.feed_forwards(false);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.bias = layer.qkv_bias(heads),
                             .q_gain = layer.vector("attn_q_norm", heads.size),
                             .k_gain = layer.vector("attn_k_norm", heads.size),
                             .norms_turned = true});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(hunyuan_moe, "hunyuan-moe", describe_hunyuan_moe);

}  // namespace bulkhead::model
