// Hunyuan-A13B (Tencent 2025, github.com/Tencent-Hunyuan/Hunyuan-A13B): each head of q and k is normed behind its
// rotation. A router chooses experts by their shares in the softmax, which then add up to one, beside an expert that
// every token takes.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_hunyuan_moe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  FeedForwards feed_forwards = model.feed_forwards(false);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;

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
                     .norms_turned = true,
                     .epsilon = epsilon,
                     .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", epsilon, normed);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(hunyuan_moe, "hunyuan-moe", describe_hunyuan_moe);

}  // namespace bulkhead::model
