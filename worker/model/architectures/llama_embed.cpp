// llama-embed-nemotron (NVIDIA 2025, huggingface.co/nvidia/llama-embed-nemotron-8b): Llama's layers, whose attention
// sees a text in both directions. Its files are for embeddings alone.
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

void describe_llama_embed(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  GroupedAttention attention = model.grouped_attention(RopePairing::kAdjacent);
  attention.rules.both_ways = true;
  const DenseFeedForward dense = model.dense_feed_forward(model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attention({.qkv = attention.qkv,
                     .heads = attention.heads,
                     .bias = layer.qkv_bias(attention.heads),
                     .rope = attention.rope},
                    attention.attended, attention.rules);
    layer.product_added(layer.rows("attn_output", attention.heads.query_width(), width),
                        attention.attended, kStream, layer.optional_bias("attn_output", width));
    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(dense, attention.normed);
  }
  end_encoder(model, attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(llama_embed, "llama-embed", describe_llama_embed);

}  // namespace bulkhead::model
