// OLMo 2 (OLMo team 2025, arXiv 2501.00656) and OLMo 3: there is no norm before a branch; the branch's result is
// normed before it is added to the residual stream. q and k are normed over all of their heads together. In OLMo 3
// three of four layers see a sliding window, and YaRN, which stretches longer contexts, applies only to the other
// layers.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// In each group of this many layers, the last one sees all positions.
constexpr std::uint32_t kPeriod = 4;

void describe_olmo2(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const std::uint32_t window = model.window(0);
  const std::vector<bool> windowed =
      window != 0 ? model.windowed_layers(kPeriod) : std::vector<bool>(model.layer_count());
  const RopeIndex window_rope =
      window != 0 ? model.window_rope(heads, RopePairing::kHalves, model.rope_base()) : rope;
  const ActivationIndex input = model.input("stream as input", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());
  const ActivationIndex branch = model.floats("branch", width);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.copy(kStream, input);
    layer.product(layer.qkv(heads, width), input, qkv);
    layer.norm_within(qkv, 0, heads.query_width(), "attn_q_norm", epsilon);
    layer.norm_within(qkv, heads.query_width(), heads.kv_width(), "attn_k_norm", epsilon);
    layer.attention({.qkv = qkv, .heads = heads, .rope = windowed[i] ? window_rope : rope},
                    attended, {.window = windowed[i] ? window : 0});
    layer.product({layer.rows("attn_output", heads.query_width(), width)}, attended, branch);
    layer.norm_added(branch, "post_attention_norm", kStream, epsilon);

    layer.copy(kStream, input);
    layer.gated_product("ffn_gate", "ffn_up", input, hidden, Gate::kSilu);
    layer.product({layer.rows("ffn_down", model.feed_forward(), width)}, hidden, branch);
    layer.norm_added(branch, "post_ffw_norm", kStream, epsilon);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(olmo2, "olmo2", describe_olmo2);

}  // namespace bulkhead::model
