// Nemotron-4 and Minitron (Parmar et al. 2024, arXiv 2402.16819; Muralidharan et al. 2024, arXiv 2407.14679): layer
// norms, heads of which a part rotates, and a feed-forward without a gate, whose function is the squared ReLU.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_nemotron(GraphBuilder& model) {
  const std::uint32_t width = model.embedding(), inner = model.feed_forward();
  const HeadShape heads = model.heads();
  const float epsilon = model.layer_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex up = model.floats("up", inner);
  const ActivationIndex hidden = model.input("hidden", inner);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    // Nemotron's own norms add 1 to each gain. The file's converter has added it already.
    layer.layer_norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.optional_bias("attn_output", width));

    layer.layer_norm(kStream, "ffn_norm", normed, epsilon);
    layer.product({layer.rows("ffn_up", width, inner)}, normed, up,
                  layer.optional_bias("ffn_up", inner));
    layer.append(SquaredRelu{up, hidden});
    layer.product_added(layer.rows("ffn_down", inner, width), hidden, kStream,
                        layer.optional_bias("ffn_down", width));
  }
  model.centred_output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(nemotron, "nemotron", describe_nemotron);

}  // namespace bulkhead::model
