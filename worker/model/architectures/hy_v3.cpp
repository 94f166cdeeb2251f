// Hy3 (Tencent 2026, "HYV3ForCausalLM"): the graph of dots1.cpp. The file does not say how many leading layers have
// dense feed-forwards.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {
namespace {

void describe_hy_v3(GraphBuilder& model) {
  describe_dots1_with(model, model.feed_forwards_by_tensors());
}

}  // namespace

BULKHEAD_ARCHITECTURE(hy_v3, "hy_v3", describe_hy_v3);

}  // namespace bulkhead::model
