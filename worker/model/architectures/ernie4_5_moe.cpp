// ERNIE 4.5's mixtures of experts (Baidu 2025, "ERNIE 4.5 Technical Report"): Llama's attention; leading dense
// feed-forwards, then experts beside one that every token takes. The router chooses by the softmax plus a bias, and the
// weights of the chosen experts add up to one.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_ernie4_5_moe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kAdjacent);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  FeedForwards feed_forwards = model.feed_forwards(false);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;
  if (model.count("interleave_moe_layer_step", kMaxLayers, 1) != 1)
    model.refuse("has dense layers between those with experts (ernie4_5-moe." +
                 std::string("interleave_moe_layer_step is not 1)"));

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", epsilon, normed);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(ernie4_5_moe, "ernie4_5-moe", describe_ernie4_5_moe);

}  // namespace bulkhead::model
