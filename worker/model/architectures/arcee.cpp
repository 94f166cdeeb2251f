// AFM-4.5B (Arcee AI 2025, huggingface.co/arcee-ai/AFM-4.5B): Llama's attention, and a feed-forward without a gate,
// whose function is the squared ReLU.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_arcee(GraphBuilder& model) {
  const std::uint32_t width = model.embedding(), inner = model.feed_forward();
  const GroupedAttention attention = model.grouped_attention(RopePairing::kAdjacent);
  const ActivationIndex up = model.floats("up", inner);
  const ActivationIndex hidden = model.input("hidden", inner);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention);

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.product({layer.rows("ffn_up", width, inner)}, attention.normed, up);
    layer.append(SquaredRelu{up, hidden});
    layer.product_added(layer.rows("ffn_down", inner, width), hidden, kStream);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(arcee, "arcee", describe_arcee);

}  // namespace bulkhead::model
