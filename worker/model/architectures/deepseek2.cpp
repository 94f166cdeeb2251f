// DeepSeek-V2 and V3 (DeepSeek-AI 2024, arXiv 2405.04434 and 2412.19437), GLM-4.7-Flash and other models of the
// same graph: attention over latents, experts chosen by scores, and experts that every token takes.
//
// The keys and values of all heads are products of one latent vector of the position. The cache keeps the latent
// vector and a few key entries that turn by position. The keys themselves are never computed: the head's query times
// its key matrix is a query of the latents, and the head's value matrix multiplies the latents' weighted sum.
#include <cmath>

#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {
namespace {

struct Latents {
  std::uint32_t heads = 0;
  std::uint32_t latent = 0;           // entries
  std::uint32_t plain = 0, turn = 0;  // of a head's query, and of its key
  std::uint32_t value = 0;            // of a head
  std::uint32_t q_rank = 0;           // of the queries' own latent; 0: they have none

  std::uint32_t key() const { return plain + turn; }
  std::uint32_t row() const { return latent + turn; }  // entries of a row of the cache
};

Latents read_latents(GraphBuilder& model) {
  Latents made;
  made.heads = model.count("attention.head_count", kMaxHeads);
  made.latent = model.count("attention.kv_lora_rank", kMaxHeadSize);
  made.q_rank = model.count("attention.q_lora_rank", kMaxWidth, 0);
  if (model.status().ok() && !model.has_key("attention.key_length_mla"))
    model.refuse(
        "is an older conversion without attn_k_b and attn_v_b (metadata key "
        "attention.key_length_mla is missing); take a file made after April 2025, or "
        "convert the weights again");
  const std::uint32_t key = model.count("attention.key_length_mla", kMaxHeadSize);
  made.value = model.count("attention.value_length_mla", kMaxHeadSize);
  made.turn = model.count("rope.dimension_count", kMaxHeadSize);
  made.plain = key > made.turn ? key - made.turn : 1;
  const auto agrees = [&](const char* name, std::uint32_t wanted) {
    return model.count(name, kMaxHeadSize, wanted) == wanted;
  };
  if (model.status().ok() &&
      (key <= made.turn || made.turn % 2 != 0 || made.row() > kMaxHeadSize ||
       !agrees("attention.head_count_kv", 1) || !agrees("attention.key_length", made.row()) ||
       !agrees("attention.value_length", made.latent)))
    model.corrupt("the sizes of heads, latents and the entries that turn don't agree");
  return made;
}

// Says by how much queries grow at positions beyond the original context, as in Mistral Large 3.
struct Temperature {
  float scale = 0;
  std::uint32_t span = 1;  // positions
};

Temperature read_temperature(GraphBuilder& model) {
  const double scale = model.number("attention.temperature_scale", 0);
  if (!(scale >= 0 && scale < 1e3))
    model.corrupt("attention.temperature_scale is not a number from 0 to 1000");
  if (scale == 0) return {};
  const bool named = model.has_key("attention.temperature_length");
  return {static_cast<float>(scale), model.count(named ? "attention.temperature_length"
                                                       : "rope.scaling.original_context_length",
                                                 kMaxContext)};
}

struct Buffers {
  ActivationIndex low, q_low, q, plain, absorbed, latents, values, gathered;
};

// Computes q. Its `row` (latent and key entries that turn) begins in `low` at the entry that is returned.
std::uint32_t project(LayerBuilder& layer, const Latents& sizes, const Buffers& at,
                      std::uint32_t width, ActivationIndex normed, VectorIndex q_gain,
                      float epsilon) {
  const MatrixPart row = layer.rows("attn_kv_a_mqa", width, sizes.row());
  const std::uint32_t q_width = sizes.heads * sizes.key();
  if (sizes.q_rank == 0) {
    layer.product({layer.rows("attn_q", width, q_width)}, normed, at.q);
    layer.product({row}, normed, at.low);
    return 0;
  }
  layer.product({layer.rows("attn_q_a", width, sizes.q_rank), row}, normed, at.low);
  layer.append(Norm{at.low, at.q_low, q_gain, epsilon, 0, sizes.q_rank});
  layer.product({layer.rows("attn_q_b", sizes.q_rank, q_width)}, at.q_low, at.q);
  return sizes.q_rank;
}

}  // namespace

void describe_deepseek2(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const Latents sizes = read_latents(model);
  const float epsilon = model.rms_epsilon();
  const RopeIndex rope = model.rope({sizes.heads, 1, sizes.turn}, RopePairing::kAdjacent);
  const double scale = model.score_growth(rope) / std::sqrt(static_cast<double>(sizes.key()));
  const ActivationIndex normed = model.input("normed stream", width);
  Buffers at{};
  at.low = model.floats("low ranks of q, key and value", sizes.q_rank + sizes.row());
  at.q_low = sizes.q_rank != 0 ? model.input("normed low rank of q", sizes.q_rank) : kAbsent;
  at.q = model.floats("q", std::uint64_t{sizes.heads} * sizes.key());
  at.plain = model.input("q's plain entries", sizes.plain, sizes.heads);
  at.absorbed = model.floats("q of latents", sizes.latent, sizes.heads);
  at.latents = model.input("attention's latents", sizes.latent, sizes.heads);
  at.values = model.floats("heads' values", std::uint64_t{sizes.heads} * sizes.value);
  const Temperature temperature = read_temperature(model);
  at.gathered = model.input("attention result", std::uint64_t{sizes.heads} * sizes.value);
  // If a file has biases of scores but does not say how scores are made, the model is of V3's kind.
  const FeedForwards feed_forwards = model.feed_forwards(model.some_layer_has("exp_probs_b.bias"));

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    const VectorIndex q_gain =
        sizes.q_rank != 0 ? layer.vector("attn_q_a_norm", sizes.q_rank) : kAbsent;
    RotateLatent rotate;
    rotate.first = project(layer, sizes, at, width, normed, q_gain, epsilon);
    layer.copy(at.q, at.plain);
    layer.slice_product("attn_k_b", sizes.heads, sizes.latent, at.plain, at.absorbed);
    rotate.q = at.q;
    rotate.absorbed = at.absorbed;
    rotate.row = at.low;
    rotate.heads = {sizes.heads, 1, sizes.row()};
    rotate.gain = layer.vector("attn_kv_a_norm", sizes.latent);
    rotate.epsilon = epsilon;
    rotate.rope = rope;
    rotate.kv = model.add(KvStore{1, sizes.row(), sizes.latent});
    rotate.scale = scale;
    rotate.temperature = temperature.scale;
    rotate.temperature_span = temperature.span;
    layer.append(rotate);
    layer.append(Attend{rotate.heads, rotate.kv, at.latents, {}});
    layer.slice_product("attn_v_b", sizes.heads, sizes.value, at.latents, at.values);
    layer.copy(at.values, at.gathered);
    layer.product_added(layer.rows("attn_output", std::uint64_t{sizes.heads} * sizes.value, width),
                        at.gathered, kStream);

    layer.norm(kStream, "ffn_norm", normed, epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", epsilon, normed);
  }
  model.output(epsilon);
}

BULKHEAD_ARCHITECTURE(deepseek2, "deepseek2", describe_deepseek2);

}  // namespace bulkhead::model
