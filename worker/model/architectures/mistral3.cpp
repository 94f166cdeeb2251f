// Ministral 3, and Mistral Small and Devstral of the same time (Mistral AI 2025): Llama's graph, stretched by YaRN,
// with queries that grow at positions beyond the original context.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_mistral3(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kAdjacent);
  const double temperature = model.number("attention.temperature_scale", 0);
  if (!(temperature >= 0 && temperature < 1e3))
    model.corrupt("attention.temperature_scale is not a number from 0 to 1000");
  const std::uint32_t span = temperature != 0 ? model.count("rope.scaling.original_context_length",
                                                            kMaxContext, model.context())
                                              : 1;
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .bias = layer.qkv_bias(heads),
                     .rope = rope,
                     .temperature = static_cast<float>(temperature),
                     .temperature_span = span},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.optional_bias("attn_output", width));

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(mistral3, "mistral3", describe_mistral3);

}  // namespace bulkhead::model
