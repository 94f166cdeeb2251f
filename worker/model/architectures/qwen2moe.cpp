// Qwen 1.5 and 2 with experts (Yang et al. 2024, arXiv 2407.10671). The attention is Qwen 2's. A router chooses
// experts for each token; an expert's weight is its share in the softmax over all experts. Every token also takes
// a shared expert, and a gate says how much of the shared expert's result the token gets.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_qwen2moe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  FeedForwards experts;
  experts.router = model.required_router();
  experts.expert_width = model.expert_feed_forward(*experts.router);
  model.add_shared_expert(
      experts, model.count("expert_shared_feed_forward_length", kMaxWidth, model.feed_forward()),
      "ffn_gate_inp_shexp");

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.append(layer.experts_beside_shared(experts, "ffn_norm", epsilon, normed));
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen2moe, "qwen2moe", describe_qwen2moe);

}  // namespace bulkhead::model
