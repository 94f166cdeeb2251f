// StarCoder2 (Lozhkov et al. 2024, arXiv 2402.19173): layer norms and biases everywhere, and a feed-forward
// without a gate.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_starcoder2(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.layer_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.layer_norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.bias("attn_output", width));

    layer.layer_norm(kStream, "ffn_norm", normed, epsilon);
    layer.activated_product("ffn_up", normed, hidden, Gate::kGelu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream,
                        layer.bias("ffn_down", width));
  }
  model.centred_output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(starcoder2, "starcoder2", describe_starcoder2);

}  // namespace bulkhead::model
