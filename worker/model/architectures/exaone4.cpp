// EXAONE 4 (LG AI Research 2025, arXiv 2507.11407): there is no norm before a branch; the branch's result is normed
// before it is added to the residual stream. Each head of q and k is normed. In the larger models three of four layers
// see a sliding window, and only the heads of these layers turn by position.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// In each group of this many layers, the last one sees all positions.
constexpr std::uint32_t kExaone4Period = 4;

void describe_exaone4(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const std::uint32_t window = model.window(0);
  const std::vector<bool> windowed = model.windowed_layers(kExaone4Period);
  const ActivationIndex input = model.input("stream as input", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());
  const ActivationIndex branch = model.floats("branch", width);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    const bool slides = window != 0 && windowed[i];
    layer.copy(kStream, input);
    layer.product(layer.qkv(heads, width), input, qkv);
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .q_gain = layer.vector("attn_q_norm", heads.size),
                     .k_gain = layer.vector("attn_k_norm", heads.size),
                     .epsilon = epsilon,
                     .rope = slides || window == 0 ? rope : kAbsent},
                    attended, {.window = slides ? window : 0});
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

BULKHEAD_ARCHITECTURE(exaone4, "exaone4", describe_exaone4);

}  // namespace bulkhead::model
