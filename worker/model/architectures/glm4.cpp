// GLM-4 (GLM team 2024, arXiv 2406.12793): Llama's graph with biases of q, k and v, rotation of half of a head's
// entries, gate and up in one tensor, and a norm before and behind each branch. The text part of GLM-4.1V has the
// same graph, but pairs the entries of a head's two halves (RopePairing::kHalves).
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_glm4(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope =
      model.rope(heads, model.has_rope_sections() ? RopePairing::kHalves : RopePairing::kAdjacent);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());
  const ActivationIndex branch = model.floats("branch", width);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product({layer.rows("attn_output", heads.query_width(), width)}, attended, branch);
    layer.norm_added(branch, "post_attention_norm", kStream, epsilon);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.fused_gated_product("ffn_up", normed, hidden, Gate::kSilu);
    layer.product({layer.rows("ffn_down", model.feed_forward(), width)}, hidden, branch);
    layer.norm_added(branch, "post_ffw_norm", kStream, epsilon);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(glm4, "glm4", describe_glm4);

}  // namespace bulkhead::model
