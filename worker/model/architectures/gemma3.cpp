// Gemma 3 (Gemma team 2025, arXiv 2503.19786): a norm before and behind each branch, norms of q and k, and GELU in
// the gate. Five of six layers see a sliding window, and their positions turn by other frequencies. EmbeddingGemma
// (gemma_embedding.cpp) has the same layers.
#include <cmath>

#include "worker/model/architectures/shared.hpp"
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

// The 27B divides scores not by the root of a head's size, but by the root of an even share of the embedding's width.
// Its files don't say so, but its number of layers identifies it.
constexpr std::uint32_t kGemma3LayersOf27B = 62;

}  // namespace

float describe_gemma3_layers(GraphBuilder& model, bool both_ways) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const RopeIndex window_rope = model.window_rope(heads, RopePairing::kHalves);
  const std::uint32_t window = both_ways ? window_of_each_side(model) : model.window(0);
  const std::vector<bool> windowed = model.windowed_layers(6);
  const double score_scale =
      model.layer_count() == kGemma3LayersOf27B ? 1 / std::sqrt(1.0 * width / heads.heads) : 0;
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());
  const ActivationIndex branch = model.floats("branch", width);

  model.embed(std::sqrt(static_cast<float>(width)));
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    const bool slides = window != 0 && windowed[i];
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .q_gain = layer.vector("attn_q_norm", heads.size),
                     .k_gain = layer.vector("attn_k_norm", heads.size),
                     .epsilon = epsilon,
                     .rope = slides ? window_rope : rope,
                     .scale = score_scale},
                    attended, {.window = slides ? window : 0, .both_ways = both_ways});
    layer.product({layer.rows("attn_output", heads.query_width(), width)}, attended, branch);
    layer.norm_added(branch, "post_attention_norm", kStream, epsilon);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kGelu);
    layer.product({layer.rows("ffn_down", model.feed_forward(), width)}, hidden, branch);
    layer.norm_added(branch, "post_ffw_norm", kStream, epsilon);
  }
  return epsilon;
}

namespace {

void describe_gemma3(GraphBuilder& model) {
  model.output(describe_gemma3_layers(model, false));
  model.cap_logits("final_logit_softcapping");
}

}  // namespace

BULKHEAD_ARCHITECTURE(gemma3, "gemma3", describe_gemma3);

}  // namespace bulkhead::model
