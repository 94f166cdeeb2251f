// GLM-4.5 and GLM-4.5-Air (Zhipu AI 2025, arXiv 2508.06471). q, k and v have biases, half of each head's entries
// turn by position, and some models norm q and k. Experts are chosen as in DeepSeek-V3.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_glm4moe(GraphBuilder& model) {
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  const FeedForwards feed_forwards = model.feed_forwards(true);

  model.embed();
  for (const std::uint32_t i : model.layers()) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    Rotate rotate{.bias = layer.qkv_bias(heads)};
    layer.add_head_gains(rotate, heads.size);
    layer.attend(attention, rotate);

    layer.norm(kStream, "post_attention_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "post_attention_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(glm4moe, "glm4moe", describe_glm4moe, kDrafts);

}  // namespace bulkhead::model
