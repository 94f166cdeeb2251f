#include "worker/model/graph_latents.hpp"

#include <algorithm>

namespace bulkhead::model {
namespace {

// Computes q. Its row (latent and key entries that turn) begins in `low` at the entry that is returned.
std::uint32_t project(LayerBuilder& layer, const LatentAttention& shape, std::uint32_t width) {
  const MatrixPart row = layer.rows("attn_kv_a_mqa", width, shape.row());
  const std::uint32_t q_width = shape.heads * shape.key();
  if (shape.q_rank == 0) {
    layer.product({layer.rows("attn_q", width, q_width)}, shape.normed, shape.q);
    layer.product({row}, shape.normed, shape.low);
    return 0;
  }
  const VectorIndex gain = layer.vector("attn_q_a_norm", shape.q_rank);
  layer.product({layer.rows("attn_q_a", width, shape.q_rank), row}, shape.normed, shape.low);
  layer.append(Norm{shape.low, shape.q_low, gain, shape.epsilon, 0, shape.q_rank});
  layer.product({layer.rows("attn_q_b", shape.q_rank, q_width)}, shape.q_low, shape.q);
  return shape.q_rank;
}

void read_sizes(GraphBuilder& model, LatentAttention& made, std::uint32_t kv_heads) {
  made.heads = model.count("attention.head_count", kMaxHeads);
  made.latent = model.count("attention.kv_lora_rank", kMaxHeadSize);
  made.q_rank = model.count("attention.q_lora_rank", kMaxWidth, 0);
  made.turn = model.count("rope.dimension_count", kMaxHeadSize);
  // Older files have the sizes of heads in the keys that now have those of the cache.
  const bool named = model.has_count("attention.key_length_mla");
  const std::uint32_t key =
      model.count(named ? "attention.key_length_mla" : "attention.key_length", kMaxHeadSize);
  made.value =
      model.count(named ? "attention.value_length_mla" : "attention.value_length", kMaxHeadSize);
  made.plain = key > made.turn ? key - made.turn : 1;
  const bool joined = !named || model.some_layer_has("attn_kv_b.weight");
  // Nothing else reads attention.value_length. In files of Kimi Linear it is 72, the size of no head.
  const std::uint32_t row =
      joined ? made.row() : model.count("attention.key_length", kMaxHeadSize, made.row());
  if (model.status().ok() &&
      (key <= made.turn || made.turn % 2 != 0 || made.row() > kMaxHeadSize ||
       (kv_heads != 1 && !(joined && kv_heads == made.heads)) || row != made.row()))
    model.corrupt("the sizes of heads, latents and the entries that turn don't agree");
}

struct HeadProducts {
  SliceProduct keys, values;
};

// Returns the products with the heads' matrices, which make queries of latents, and values.
HeadProducts head_products(GraphBuilder& model, LayerBuilder& layer, const LatentAttention& shape) {
  HeadProducts made;
  const bool named = model.has_count("attention.key_length_mla");
  if (named && !model.has_tensor(layer.name("attn_kv_b.weight"))) {
    made.keys.rows = layer.slices("attn_k_b", shape.plain, shape.latent, shape.heads);
    made.values.rows = layer.slices("attn_v_b", shape.latent, shape.value, shape.heads);
    made.keys.stride = shape.latent;
    made.values.stride = shape.value;
  } else {
    const std::uint64_t rows = std::uint64_t{shape.plain} + shape.value;
    made.keys.rows = made.values.rows = layer.rows("attn_kv_b", shape.latent, shape.heads * rows);
    made.keys.rows.rows = shape.plain;
    made.keys.transposed = true;
    made.values.rows.first_row = shape.plain;
    made.values.rows.rows = shape.value;
    made.keys.stride = made.values.stride = rows;
  }
  made.keys.slices = made.values.slices = shape.heads;
  made.keys.in = shape.plain_q;
  made.keys.out = shape.absorbed;
  made.values.in = shape.latents;
  made.values.out = shape.values;
  return made;
}

}  // namespace

LatentAttention read_latents(GraphBuilder& model, std::uint32_t kv_heads) {
  LatentAttention made;
  read_sizes(model, made, kv_heads);
  made.epsilon = model.rms_epsilon();
  made.normed = model.input("normed stream", model.embedding());
  made.low = model.floats("low ranks of q, key and value", made.q_rank + made.row());
  if (made.q_rank != 0) made.q_low = model.input("normed low rank of q", made.q_rank);
  made.q = model.floats("q", std::uint64_t{made.heads} * made.key());
  made.plain_q = model.input("q's plain entries", made.plain, made.heads);
  made.absorbed = model.floats("q of latents", made.latent, made.heads);
  made.latents = model.input("attention's latents", made.latent, made.heads);
  made.values = model.floats("heads' values", std::uint64_t{made.heads} * made.value);
  made.gathered = model.input("attention result", std::uint64_t{made.heads} * made.value);
  return made;
}

void append_latents(GraphBuilder& model, LayerBuilder& layer, const LatentAttention& shape) {
  const std::uint32_t width = model.embedding();
  layer.norm(kStream, "attn_norm", shape.normed, shape.epsilon);
  RotateLatent rotate;
  rotate.first = project(layer, shape, width);
  layer.copy(shape.q, shape.plain_q);
  const HeadProducts heads = head_products(model, layer, shape);
  layer.append(heads.keys);
  rotate.q = shape.q;
  rotate.absorbed = shape.absorbed;
  rotate.row = shape.low;
  rotate.heads = {shape.heads, 1, shape.row()};
  rotate.gain = layer.vector("attn_kv_a_norm", shape.latent);
  rotate.epsilon = shape.epsilon;
  rotate.rope = shape.rope;
  rotate.kv = model.add(KvStore{1, shape.row(), shape.latent});
  rotate.scale = shape.scale;
  rotate.temperature = shape.temperature;
  rotate.temperature_span = shape.temperature_span;
  layer.append(rotate);
  layer.append(Attend{rotate.heads, rotate.kv, shape.latents, {}});
  layer.append(heads.values);
  layer.copy(shape.values, shape.gathered);
  layer.product_added(layer.rows("attn_output", std::uint64_t{shape.heads} * shape.value, width),
                      shape.gathered, kStream);
}

}  // namespace bulkhead::model
