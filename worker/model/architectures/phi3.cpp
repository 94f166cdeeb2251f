// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini (Abdin et al. 2024, arXiv 2404.14219): Llama's graph with q, k,
// v in one tensor, gate and up in another, and rotary positions that LongRoPE stretches.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_phi3(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  // Files of Phi-3-mini-4k and Phi-3-medium-4k name a window of 2,047 positions, half of their context. As in
  // llama.cpp, every layer sees all positions: converters have written wrong windows, too.
  (void)model.window(0);
  const RopeIndex rope = model.long_rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.fused_gated_product("ffn_up", normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(phi3, "phi3", describe_phi3);

}  // namespace bulkhead::model
