// Llama 2 and 3, Mistral, and models with the same graph (Touvron et al. 2023, arXiv 2302.13971): grouped attention
// with rotary positions, a gated feed-forward, and an RMS norm before each. Mixtral (Jiang et al. 2024, arXiv
// 2401.04088) has experts instead of the feed-forward, with weights that add up to one. In files for embeddings
// attention may see a text in both directions.
#include "worker/model/architectures/shared.hpp"
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {

void describe_llama_with(GraphBuilder& model, bool both_ways) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.rms_epsilon();
  // In files, the rows of q and k are permuted so that pairs are adjacent.
  const RopeIndex rope = model.rope(heads, RopePairing::kAdjacent);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  std::optional<Router> router = model.router();
  if (router) router->renormalise = true;
  const DenseFeedForward dense =
      router ? DenseFeedForward() : model.dense_feed_forward(model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.qkv(heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = rope},
                    attended, {.both_ways = both_ways});
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.optional_bias("attn_output", width));

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    if (router) {
      layer.append(layer.experts(*router, "ffn_norm", epsilon, normed, model.feed_forward()));
      continue;
    }
    layer.feed_forward(dense, normed);
  }
  if (both_ways) return end_encoder(model, epsilon);
  model.output(epsilon);
}

// For the other architectures with this graph, which are refused if they ask for attention in both directions.
void describe_llama(GraphBuilder& model) {
  describe_llama_with(model, false);
}

BULKHEAD_ARCHITECTURE(llama, "llama", [](GraphBuilder& model) {
  describe_llama_with(model, !model.flag("attention.causal", true));
});

}  // namespace bulkhead::model
