// Granite 3 and 4 without experts (IBM 2024): Llama's graph with four scales.
//
// The branches are multiplied by `residual_scale` before they are added to the residual stream. Here the stream holds
// its value divided by that scale instead. So branches are added unchanged, the first value is the token's row times
// embedding_scale / residual_scale, and the epsilon of each norm is divided by the scale's square. Apart from epsilon,
// a norm's result does not depend on its input's magnitude.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_granite(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const double residual = model.positive("residual_scale", 1);
  const auto epsilon =
      static_cast<float>(static_cast<double>(model.rms_epsilon()) / (residual * residual));
  // Files of models without rotary positions say that these are not fine-tuned.
  const RopeIndex rope = model.flag("rope.scaling.finetuned", true)
                             ? model.rope(heads, RopePairing::kAdjacent)
                             : kAbsent;
  const double score_scale = model.score_scale();
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed(static_cast<float>(model.positive("embedding_scale", 1) / residual));
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .bias = layer.qkv_bias(heads),
                     .rope = rope,
                     .scale = score_scale},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.optional_bias("attn_output", width));

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(epsilon, static_cast<float>(model.positive("logit_scale", 1)));
}

}  // namespace

BULKHEAD_ARCHITECTURE(granite, "granite", describe_granite);

}  // namespace bulkhead::model
