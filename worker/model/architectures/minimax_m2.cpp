// MiniMax-M2 (MiniMax 2025, github.com/MiniMax-AI/MiniMax-M2): q and k are normed over all of their heads together, and
// half of each head's entries turn by position. A router chooses experts by sigmoids plus biases, and their weights add
// up to one.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_minimax_m2(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  FeedForwards feed_forwards = model.feed_forwards(true);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.norm_within(qkv, 0, heads.query_width(), "attn_q_norm", epsilon);
    layer.norm_within(qkv, heads.query_width(), heads.kv_width(), "attn_k_norm", epsilon);
    layer.attention({.qkv = qkv, .heads = heads, .rope = rope}, attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", epsilon, normed);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(minimax_m2, "minimax-m2", describe_minimax_m2);

}  // namespace bulkhead::model
