// Seed-OSS (ByteDance Seed 2025, github.com/ByteDance-Seed/seed-oss): Qwen 2's graph, but the file names
// the norm before the feed-forward post_attention_norm.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void describe_seed_oss(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.optional_bias("attn_output", width));

    layer.norm(kStream, "post_attention_norm", normed, epsilon);
    layer.gated_product("ffn_gate", "ffn_up", normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(seed_oss, "seed_oss", describe_seed_oss);

}  // namespace bulkhead::model
