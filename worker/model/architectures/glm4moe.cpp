// GLM-4.5 and GLM-4.5-Air (Zhipu AI 2025, arXiv 2508.06471). q, k and v have biases, half of each head's entries
// turn by position, and some models norm q and k. Experts are chosen as in DeepSeek-V3.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_glm4moe(GraphBuilder& model) {
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
                     .bias = layer.qkv_bias(heads),
                     .q_gain = layer.optional_vector("attn_q_norm", heads.size),
                     .k_gain = layer.optional_vector("attn_k_norm", heads.size),
                     .epsilon = epsilon,
                     .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "post_attention_norm", normed, epsilon);
    layer.feed_forward(feed_forwards, "post_attention_norm", epsilon, normed);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(glm4moe, "glm4moe", describe_glm4moe);

}  // namespace bulkhead::model
