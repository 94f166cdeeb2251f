// Gemma 2 (Gemma team 2024, arXiv 2408.00118): a norm before and behind each branch, GELU in the gate, caps on scores
// and logits, and a sliding window in every other layer, beginning with the first.
#include <cmath>
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// The 27B divides scores not by the root of a head's size, but by the root of an even share of the embedding's width.
// Its files don't say so, but its number of layers identifies it.
constexpr std::uint32_t kLayersOf27B = 46;

void describe_gemma2(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const std::uint32_t window = model.window(4'096);
  const std::vector<bool> windowed = model.windowed_layers(2);
  const float score_cap = model.cap("attn_logit_softcapping", 50);
  const double score_scale =
      model.layer_count() == kLayersOf27B ? 1 / std::sqrt(1.0 * width / heads.heads) : 0;
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());
  const ActivationIndex branch = model.floats("branch", width);

  model.embed(std::sqrt(static_cast<float>(width)));
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    const ScoreRules rules{.window = windowed[i] ? window : 0, .soft_cap = score_cap};
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .rope = rope, .scale = score_scale}, attended,
                    rules);
    layer.product({layer.rows("attn_output", heads.query_width(), width)}, attended, branch);
    layer.norm_added(branch, "post_attention_norm", kStream, epsilon);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kGelu);
    layer.product({layer.rows("ffn_down", model.feed_forward(), width)}, hidden, branch);
    layer.norm_added(branch, "post_ffw_norm", kStream, epsilon);
  }
  model.output(epsilon);
  model.cap_logits("final_logit_softcapping", 30);
}

}  // namespace

BULKHEAD_ARCHITECTURE(gemma2, "gemma2", describe_gemma2);

}  // namespace bulkhead::model
