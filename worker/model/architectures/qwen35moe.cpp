// Qwen 3.5 with experts (Qwen team 2026). Its layers mix positions as Qwen 3.5's do. A router chooses experts
// for each token. Every token also takes a shared expert, and a gate says how much of the shared expert's
// result the token gets.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_qwen35moe(GraphBuilder& model) {
  model.delta_mixers_with_experts(model.delta_mixers());
}

}  // namespace

BULKHEAD_ARCHITECTURE(qwen35moe, "qwen35moe", describe_qwen35moe, kDrafts);

}  // namespace bulkhead::model
