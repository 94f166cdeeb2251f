// BERT (Devlin et al. 2018, arXiv 1810.04805) and what shares its graph, such as bge, e5, MiniLM and mxbai-embed, with
// GELU in its tanh form.
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

void describe_bert(GraphBuilder& model) {
  describe_encoder(model, {.function = Gate::kGelu});
}

}  // namespace

BULKHEAD_ARCHITECTURE(bert, "bert", describe_bert);

}  // namespace bulkhead::model
