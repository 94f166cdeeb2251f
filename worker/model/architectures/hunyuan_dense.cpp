// Hunyuan's dense models and Hunyuan-MT (Tencent 2025, github.com/Tencent-Hunyuan): Qwen 3's graph, but each head of q
// and k is normed behind its rotation.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_hunyuan_dense(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.bias = layer.qkv_bias(heads),
                             .q_gain = layer.vector("attn_q_norm", heads.size),
                             .k_gain = layer.vector("attn_k_norm", heads.size),
                             .norms_turned = true});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.gated_product("ffn_gate", "ffn_up", attention.normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(hunyuan_dense, "hunyuan-dense", describe_hunyuan_dense);

}  // namespace bulkhead::model
