// dots.llm1 (rednote-hilab 2025, arXiv 2506.05767): Qwen 3's attention, and feed-forwards as in DeepSeek-V3: leading
// dense layers, then layers with experts, which a router chooses by sigmoids plus biases, and one more expert that
// every token takes.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

void describe_dots1_with(GraphBuilder& model, const FeedForwards& feed_forwards) {
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.q_gain = layer.vector("attn_q_norm", heads.size),
                             .k_gain = layer.vector("attn_k_norm", heads.size)});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

void describe_dots1(GraphBuilder& model) {
  describe_dots1_with(model, model.feed_forwards(true));
}

BULKHEAD_ARCHITECTURE(dots1, "dots1", describe_dots1);

}  // namespace bulkhead::model
