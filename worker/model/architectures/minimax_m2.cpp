// MiniMax-M2 (MiniMax 2025, github.com/MiniMax-AI/MiniMax-M2): q and k are normed over all of their heads together, and
// half of each head's entries turn by position. A router chooses experts by sigmoids plus biases, and their weights add
// up to one.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_minimax_m2(GraphBuilder& model) {
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  FeedForwards feed_forwards = model.feed_forwards(true);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.norm_within(attention.qkv, 0, heads.query_width(), "attn_q_norm", attention.epsilon);
    layer.norm_within(attention.qkv, heads.query_width(), heads.kv_width(), "attn_k_norm",
                      attention.epsilon);
    layer.attend(attention);

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(minimax_m2, "minimax-m2", describe_minimax_m2);

}  // namespace bulkhead::model
