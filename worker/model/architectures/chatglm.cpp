// ChatGLM3 and the first GLM-4 (GLM team 2024, arXiv 2406.12793): the graph of glm4.cpp without the norms behind the
// branches. q, k and v are one tensor, and so are their biases.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_chatglm(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const GroupedAttention attention = model.grouped_attention(RopePairing::kAdjacent);
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.bias = layer.qkv_bias(attention.heads)});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.fused_gated_product("ffn_up", attention.normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(chatglm, "chatglm", describe_chatglm);

}  // namespace bulkhead::model
