// ERNIE 4.5's mixtures of experts (Baidu 2025, "ERNIE 4.5 Technical Report"): Llama's attention. The first layers have
// dense feed-forwards, the others experts and one more expert that every token takes. The router chooses by the softmax
// plus a bias, and the weights of the chosen experts add up to one.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_ernie4_5_moe(GraphBuilder& model) {
  const GroupedAttention attention = model.grouped_attention(RopePairing::kAdjacent);
  const HeadShape& heads = attention.heads;
  FeedForwards feed_forwards = model.feed_forwards(false);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;
  if (model.count("interleave_moe_layer_step", kMaxLayers, 1) != 1)
    model.refuse("has dense layers between those with experts (ernie4_5-moe." +
                 std::string("interleave_moe_layer_step is not 1)"));

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.bias = layer.qkv_bias(heads)});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(ernie4_5_moe, "ernie4_5-moe", describe_ernie4_5_moe);

}  // namespace bulkhead::model
