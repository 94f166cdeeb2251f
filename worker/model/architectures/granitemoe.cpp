// Granite 3 and 4 with experts (IBM 2024), some with another expert that all tokens take: Granite's four scales, and
// a residual stream that is divided by its scale, as granite.cpp explains.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_granitemoe(GraphBuilder& model) {
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
  FeedForwards experts;
  experts.router = model.required_router();
  experts.router->renormalise = true;
  experts.expert_width = model.feed_forward();
  model.add_shared_expert(experts, model.count("expert_shared_feed_forward_length", kMaxWidth, 0));

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
    layer.append(layer.experts_beside_shared(experts, "ffn_norm", epsilon, normed));
  }
  model.output(epsilon, static_cast<float>(model.positive("logit_scale", 1)));
}

}  // namespace

BULKHEAD_ARCHITECTURE(granitemoe, "granitemoe", describe_granitemoe);

}  // namespace bulkhead::model
