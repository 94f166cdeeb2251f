// OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): q and k are normed over all of their heads together, and a router
// chooses experts, whose weights are their shares in the softmax over all experts.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_olmoe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const Router router = model.required_router();
  // The width of one expert's hidden layer, not of all experts of a token together.
  const std::uint32_t hidden =
      model.count("expert_feed_forward_length", kMaxWidth, model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.norm_within(qkv, 0, heads.query_width(), "attn_q_norm", epsilon);
    layer.norm_within(qkv, heads.query_width(), heads.kv_width(), "attn_k_norm", epsilon);
    layer.attention({.qkv = qkv, .heads = heads, .rope = rope}, attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.append(layer.experts(router, "ffn_norm", epsilon, normed, hidden));
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(olmoe, "olmoe", describe_olmoe);

}  // namespace bulkhead::model
