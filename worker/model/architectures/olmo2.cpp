// OLMo 2 (OLMo team 2025, arXiv 2501.00656): the branches read the residual stream as it is, and what
// they make is normed before it is added; q and k are normed over all of their heads together.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_olmo2(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
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
    layer.attention({.qkv = qkv, .heads = heads, .rope = rope}, attended);
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
