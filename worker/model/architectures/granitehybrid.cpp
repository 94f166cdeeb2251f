// Granite 4.0 H (IBM 2025, huggingface.co/ibm-granite/granite-4.0-h-small): Granite's scales and a residual stream that
// is divided by its scale, as granite.cpp explains. Most layers have Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) in
// place of attention. Feed-forwards are dense, or experts and one more expert that every token takes.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_granitehybrid(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  std::vector<bool> attends;
  const HeadShape heads = model.heads_of_some(attends);
  const DeltaHeads mamba = model.mamba_heads();
  const double residual = model.positive("residual_scale", 1);
  const float mamba_epsilon = model.rms_epsilon();
  const auto epsilon =
      static_cast<float>(static_cast<double>(mamba_epsilon) / (residual * residual));
  // Files of models without rotary positions say that these are not fine-tuned.
  const RopeIndex rope = model.flag("rope.scaling.finetuned", true)
                             ? model.rope(heads, RopePairing::kAdjacent)
                             : kAbsent;
  const double score_scale = model.score_scale();
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex mixed = model.floats("Mamba's x, B, C, gates", mamba.mixed_width());
  const ActivationIndex read = model.input("Mamba's result", mamba.value_width());
  FeedForwards experts;
  experts.router = model.router();
  ActivationIndex hidden = kAbsent;
  if (experts.router) {
    experts.router->renormalise = true;
    experts.expert_width = model.feed_forward();
    model.add_shared_expert(experts,
                            model.count("expert_shared_feed_forward_length", kMaxWidth, 0));
  } else {
    hidden = model.input("hidden", model.feed_forward());
  }

  model.embed(static_cast<float>(model.positive("embedding_scale", 1) / residual));
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    if (attends[i]) {
      layer.product(layer.qkv(heads, width), normed, qkv);
      layer.attention({.qkv = qkv,
                       .heads = heads,
                       .bias = layer.qkv_bias(heads),
                       .rope = rope,
                       .scale = score_scale},
                      attended);
      layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);
    } else {
      layer.mamba(mamba, mamba_epsilon, normed, mixed, read);
      layer.product_added(layer.rows("ssm_out", mamba.value_width(), width), read, kStream);
    }

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    if (experts.router) {
      layer.append(layer.experts_beside_shared(experts, "ffn_norm", epsilon, normed));
      continue;
    }
    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(epsilon, static_cast<float>(model.positive("logit_scale", 1)));
}

}  // namespace

BULKHEAD_ARCHITECTURE(granitehybrid, "granitehybrid", describe_granitehybrid);

}  // namespace bulkhead::model
