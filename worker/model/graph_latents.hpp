// Attention over latents (DeepSeek-AI 2024, arXiv 2405.04434) for architectures' files: its keys, and a layer's
// operations.
//
// The keys and values of all heads are products of one latent vector of the position. The cache keeps the latent
// vector and a few key entries that turn by position. The keys themselves are never computed: the head's query times
// its key matrix is a query of the latents, and the head's value matrix multiplies the latents' weighted sum.
//
// Converters up to April 2025 wrote the matrices of all heads as one tensor, attn_kv_b, whose product with a latent is
// [head][key's plain entries, value]. Later ones write two tensors with a slice for each head: attn_v_b, and attn_k_b,
// in which the key's matrix is transposed, because the product with the query needs the transposed matrix.
#pragma once

#include <cstdint>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

struct LatentAttention {
  std::uint32_t heads = 0;
  std::uint32_t latent = 0;           // entries
  std::uint32_t plain = 0, turn = 0;  // of a head's query, and of its key
  std::uint32_t value = 0;            // of a head
  std::uint32_t q_rank = 0;           // of the queries' own latent; 0: they have none
  float epsilon = 0;
  RopeIndex rope = kAbsent;  // kAbsent: the entries that may turn don't
  double scale = 0;          // of the scores
  // By how much queries grow at positions beyond the original context, as in Mistral Large 3 (Rotate).
  float temperature = 0;
  std::uint32_t temperature_span = 1;
  ActivationIndex normed = kAbsent;  // the normalised stream, which feed-forwards read, too
  ActivationIndex low = kAbsent, q_low = kAbsent, q = kAbsent, plain_q = kAbsent,
                  absorbed = kAbsent, latents = kAbsent, values = kAbsent, gathered = kAbsent;

  std::uint32_t key() const { return plain + turn; }
  std::uint32_t row() const { return latent + turn; }  // entries of a row of the cache
};

// Reads the sizes, and makes the activations. `kv_heads` is what the file says: 1, or in a file whose layers have
// attn_kv_b the number of heads. Rotation, scale and temperature are left to the caller.
LatentAttention read_latents(GraphBuilder& model, std::uint32_t kv_heads);
// Adds attention over latents to a layer: the norm attn_norm, and what attn_output makes of the result, which is added
// to the stream.
void append_latents(GraphBuilder& model, LayerBuilder& layer, const LatentAttention& shape);

}  // namespace bulkhead::model
