// gpt-oss (OpenAI 2025, arXiv 2508.10925): biases everywhere, attention with a sink for each head and a
// sliding window in every other layer, and experts whose gates are kept within bounds.
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_gpt_oss(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const std::uint32_t window = model.window();
  const std::vector<bool> windowed = model.windowed_layers(2);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const std::uint32_t hidden = model.count("expert_feed_forward_length", kMaxWidth);
  Router router = model.required_router();
  router.renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended, {.window = windowed[i] ? window : 0, .sinks = layer.sinks(heads)});
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.bias("attn_output", width));

    layer.norm(kStream, "post_attention_norm", normed, epsilon);
    Experts experts = layer.experts(router, "post_attention_norm", epsilon, normed, hidden);
    layer.add_biases(experts);
    experts.function = Gate::kClamped;
    layer.append(experts);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(gpt_oss, "gpt-oss", describe_gpt_oss);

}  // namespace bulkhead::model
