// AFM-4.5B (Arcee AI 2025, huggingface.co/arcee-ai/AFM-4.5B): Llama's attention, and a feed-forward without a gate,
// whose function is the squared ReLU.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_arcee(GraphBuilder& model) {
  const std::uint32_t width = model.embedding(), inner = model.feed_forward();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kAdjacent);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex up = model.floats("up", inner);
  const ActivationIndex hidden = model.input("hidden", inner);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .rope = rope}, attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.product({layer.rows("ffn_up", width, inner)}, normed, up);
    layer.append(SquaredRelu{up, hidden});
    layer.product_added(layer.rows("ffn_down", inner, width), hidden, kStream);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(arcee, "arcee", describe_arcee);

}  // namespace bulkhead::model
