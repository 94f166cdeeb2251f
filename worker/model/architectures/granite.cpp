// Granite 3 and 4 without experts (IBM 2024): Llama's graph with four scales.
//
// The branches are multiplied by `residual_scale` before they are added to the residual stream. Here the stream holds
// its value divided by that scale instead. So branches are added unchanged, the first value is the token's row times
// embedding_scale / residual_scale, and the epsilon of each norm is divided by the scale's square. Apart from epsilon,
// a norm's result does not depend on its input's magnitude.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

void describe_scaled_llama(GraphBuilder& model, const HeadShape& heads, RopeIndex rope,
                           const LlamaScales& scales) {
  const std::uint32_t width = model.embedding();
  const auto epsilon = static_cast<float>(static_cast<double>(model.rms_epsilon()) /
                                          (scales.residual * scales.residual));
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const DenseFeedForward dense = model.dense_feed_forward(model.feed_forward());

  model.embed(static_cast<float>(scales.embedding / scales.residual));
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv,
                     .heads = heads,
                     .bias = layer.qkv_bias(heads),
                     .rope = rope,
                     .scale = scales.scores},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.optional_bias("attn_output", width));

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.feed_forward(dense, normed);
  }
  model.output(epsilon, static_cast<float>(scales.logit_divisor));
}

namespace {

void describe_granite(GraphBuilder& model) {
  const HeadShape heads = model.heads();
  // Files of models without rotary positions say that these are not fine-tuned.
  const RopeIndex rope = model.flag("rope.scaling.finetuned", true)
                             ? model.rope(heads, RopePairing::kAdjacent)
                             : kAbsent;
  LlamaScales scales;
  scales.embedding = model.positive("embedding_scale", 1);
  scales.residual = model.positive("residual_scale", 1);
  scales.scores = model.score_scale();
  scales.logit_divisor = model.positive("logit_scale", 1);
  describe_scaled_llama(model, heads, rope, scales);
}

}  // namespace

BULKHEAD_ARCHITECTURE(granite, "granite", describe_granite);

}  // namespace bulkhead::model
