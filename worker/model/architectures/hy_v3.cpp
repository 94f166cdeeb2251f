// Hy3 (Tencent 2026, "HYV3ForCausalLM"): the graph of dots1.cpp. The file does not say how many leading layers have
// dense feed-forwards.
#include <string>

#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {
namespace {

FeedForwards hy_v3_feed_forwards(GraphBuilder& model) {
  FeedForwards made;
  made.router = model.scored_router(true);
  if (!made.router) {
    model.corrupt("metadata key hy_v3.expert_count is missing");
    made.router = Router{.experts = 1, .used = 1};
  }
  // Dense layers have no router.
  while (made.dense_layers < model.layer_count() &&
         !model.has_tensor("blk." + std::to_string(made.dense_layers) + ".ffn_gate_inp.weight"))
    ++made.dense_layers;
  if (made.dense_layers > 0) made.dense_hidden = model.input("hidden", model.feed_forward());
  made.expert_width = model.expert_feed_forward(*made.router);
  model.add_shared_expert(
      made, model.count("expert_shared_feed_forward_length", kMaxWidth, made.expert_width));
  return made;
}

void describe_hy_v3(GraphBuilder& model) {
  describe_dots1_with(model, hy_v3_feed_forwards(model));
}

}  // namespace

BULKHEAD_ARCHITECTURE(hy_v3, "hy_v3", describe_hy_v3);

}  // namespace bulkhead::model
