// Mellum 2 (JetBrains 2026, huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base): the graph of qwen3moe.cpp. Three of four
// layers see a sliding window, and YaRN, which stretches longer contexts, applies only to the other layers.
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// In each group of this many layers, the last one sees all positions.
constexpr std::uint32_t kMellumPeriod = 4;

void describe_mellum(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  const std::uint32_t window = model.window(0);
  const std::vector<bool> windowed =
      window != 0 ? model.windowed_layers(kMellumPeriod) : std::vector<bool>(model.layer_count());
  const RopeIndex window_rope =
      window != 0 ? model.window_rope(heads, RopePairing::kHalves, model.rope_base()) : kAbsent;
  Router router = model.required_router();
  const std::uint32_t hidden = model.expert_feed_forward(router);
  router.renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attention({.qkv = attention.qkv,
                     .heads = heads,
                     .q_gain = layer.vector("attn_q_norm", heads.size),
                     .k_gain = layer.vector("attn_k_norm", heads.size),
                     .epsilon = attention.epsilon,
                     .rope = windowed[i] ? window_rope : attention.rope},
                    attention.attended, {.window = windowed[i] ? window : 0});
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attention.attended,
                        kStream);

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.append(layer.experts(router, "ffn_norm", attention.epsilon, attention.normed, hidden));
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(mellum, "mellum", describe_mellum);

}  // namespace bulkhead::model
