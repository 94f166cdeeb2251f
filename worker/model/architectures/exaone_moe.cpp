// K-EXAONE (LG AI Research 2026, huggingface.co/LGAI-EXAONE/K-EXAONE-236B-A23B): norms before each branch and of each
// head of q and k. Three of four layers see a sliding window, and only the heads of these layers turn by position. The
// leading layers have dense feed-forwards, the others experts, which a router chooses by sigmoids plus biases, and one
// more expert that every token takes.
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// In each group of this many layers, the last one sees all positions.
constexpr std::uint32_t kExaoneMoePeriod = 4;

void describe_exaone_moe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  const std::uint32_t window = model.window();
  const std::vector<bool> windowed = model.windowed_layers(kExaoneMoePeriod);
  const FeedForwards feed_forwards = model.feed_forwards(true);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attention({.qkv = attention.qkv,
                     .heads = heads,
                     .q_gain = layer.vector("attn_q_norm", heads.size),
                     .k_gain = layer.vector("attn_k_norm", heads.size),
                     .epsilon = attention.epsilon,
                     .rope = windowed[i] ? attention.rope : kAbsent},
                    attention.attended, {.window = windowed[i] ? window : 0});
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attention.attended,
                        kStream);

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(exaone_moe, "exaone-moe", describe_exaone_moe);

}  // namespace bulkhead::model
