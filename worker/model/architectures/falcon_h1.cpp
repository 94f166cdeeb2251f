// Falcon-H1 (TII 2025, arXiv 2507.22448): each layer has attention and Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) side
// by side. Both read the same norm, and both results are added to the residual stream. Files contain the model's
// multipliers in their weights. In most models what Mamba-2 reads of its state is not normed.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// Files have this tensor's name without an ending.
Norm feed_forward_norm(GraphBuilder& model, const LayerBuilder& layer,
                       const GroupedAttention& attention) {
  Norm norm;
  norm.out = attention.normed;
  norm.width = model.embedding();
  norm.gain = model.add(VectorRow{{{model.tensor(layer.name("ffn_norm"), norm.width)}}});
  norm.epsilon = attention.epsilon;
  return norm;
}

void describe_falcon_h1(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const HeadShape& heads = attention.heads;
  DeltaHeads mamba = model.mamba_heads();
  mamba.norms = model.some_layer_has("ssm_norm.weight");
  const ActivationIndex mixed =
      model.floats("Mamba's x, B, C, gates", mamba.mixed_width());
  const ActivationIndex read = model.input("Mamba's result", mamba.value_width());
  const DenseFeedForward dense = model.dense_feed_forward(model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", attention.normed, attention.epsilon);
    // Both branches read the norm before anything is added to the stream.
    layer.mamba(mamba, attention.epsilon, attention.normed, mixed, read);
    layer.product(layer.qkv(heads, width), attention.normed, attention.qkv);
    layer.attention({.qkv = attention.qkv,
                     .heads = heads,
                     .bias = layer.qkv_bias(heads),
                     .rope = attention.rope},
                    attention.attended);
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attention.attended,
                        kStream, layer.optional_bias("attn_output", width));
    layer.product_added(layer.rows("ssm_out", mamba.value_width(), width), read, kStream);

    layer.append(feed_forward_norm(model, layer, attention));
    layer.feed_forward(dense, attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(falcon_h1, "falcon-h1", describe_falcon_h1);

}  // namespace bulkhead::model
