// Command R7B and Command A (Cohere 2025, arXiv 2504.00698): attention and the feed-forward read the same layer norm,
// and both results are added to the residual stream. Three of four layers see a sliding window, and only the heads of
// these layers turn by position. Older models (architecture command-r) have no windows. In Command R+ heads are normed.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {
namespace {

// In each group of this many layers, the last one sees all positions.
constexpr std::uint32_t kCohere2Period = 4;

// Each head of q or k has a layer norm with gains of its own.
void norm_heads(GraphBuilder& model, LayerBuilder& layer, HeadNorms norms, const char* gains) {
  norms.gains =
      model.add(VectorRow{{{model.float_rows(layer.name(gains), norms.size, norms.heads)}}});
  layer.append(norms);
}

}  // namespace

void describe_cohere2(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.layer_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kAdjacent);
  const std::uint32_t window = model.window(0);
  const std::vector<bool> windowed = model.windowed_layers(kCohere2Period);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  const bool norms_heads = model.some_layer_has("attn_q_norm.weight");

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    const bool slides = window != 0 && windowed[i];
    layer.plain_layer_norm(kStream, "attn_norm", normed, epsilon);
    // Norms follow the biases, which the rotation adds if there are no norms.
    const VectorIndex bias = layer.qkv_bias(heads);
    layer.product(layer.qkv(heads, width), normed, qkv, norms_heads ? bias : kAbsent);
    if (norms_heads) {
      HeadNorms norms{qkv, 0, heads.heads, heads.size, kAbsent, epsilon};
      norm_heads(model, layer, norms, "attn_q_norm.weight");
      norms.first = heads.query_width();
      norms.heads = heads.kv_heads;
      norm_heads(model, layer, norms, "attn_k_norm.weight");
    }
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .bias = norms_heads ? kAbsent : bias,
                     .rope = slides || window == 0 ? rope : kAbsent},
                    attended, {.window = slides ? window : 0});
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.plain_centred_output(epsilon, static_cast<float>(1 / model.positive("logit_scale", 1)));
}

BULKHEAD_ARCHITECTURE(cohere2, "cohere2", describe_cohere2);

}  // namespace bulkhead::model
