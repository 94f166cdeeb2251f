// dots.llm1 (rednote-hilab 2025, arXiv 2506.05767): Qwen 3's attention, and feed-forwards as in DeepSeek-V3: leading
// dense layers, then experts that a router chooses by sigmoids and biases, beside one that every token takes.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

void describe_dots1(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const FeedForwards feed_forwards = model.feed_forwards(true);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .q_gain = layer.vector("attn_q_norm", heads.size),
                     .k_gain = layer.vector("attn_k_norm", heads.size),
                     .epsilon = epsilon,
                     .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", epsilon, normed);
  }
  model.output(epsilon);
}

BULKHEAD_ARCHITECTURE(dots1, "dots1", describe_dots1);

}  // namespace bulkhead::model
