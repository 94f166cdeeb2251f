#include "worker/model/graph_encoder.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace bulkhead::model {
namespace {

// Reads a key whose values are PoolingType's, up to `last`.
PoolingType read_type(GraphBuilder& model, const char* key, PoolingType last) {
  return static_cast<PoolingType>(model.count(key, static_cast<std::uint32_t>(last), 0));
}

// Returns the operation that brings a text's embedding into its last column; nothing if it is that column.
std::optional<Operation> operation_of(TextPooling pooling) {
  if (pooling == TextPooling::kLast) return std::nullopt;
  return PoolColumns{kStream, pooling == TextPooling::kMean};
}

// All tokens have type 0: a text is one sentence.
void embed_positions(GraphBuilder& model, bool has_table) {
  const std::uint32_t width = model.embedding();
  PositionRows rows{kStream};
  if (model.has_tensor("token_types.weight")) {
    const TensorInfo* const types = model.file().find_tensor("token_types.weight");
    const std::uint64_t count = types != nullptr ? types->rows() : 2;
    rows.shared = model.add(VectorRow{{{model.float_rows("token_types.weight", width, count)}}});
  }
  if (has_table)
    rows.table =
        model.add(VectorRow{{{model.float_rows("position_embd.weight", width, model.context())}}});
  if (rows.shared != kAbsent || rows.table != kAbsent) model.layer(0).append(rows);
}

Norm norm_of_embeddings(GraphBuilder& model, float epsilon) {
  Norm norm = norm_of_stream(model, "token_embd_norm", epsilon);
  norm.centred = true;
  norm.bias = model.add(VectorRow{{{model.tensor("token_embd_norm.bias", norm.width)}}});
  return norm;
}

void append_feed_forward(GraphBuilder& model, LayerBuilder& layer, const EncoderShape& shape,
                         ActivationIndex in, ActivationIndex hidden) {
  const std::uint32_t width = model.embedding();
  if (shape.gated)
    layer.gated_product("ffn_gate", "ffn_up", in, hidden, shape.function);
  else
    layer.activated_product("ffn_up", in, hidden, shape.function);
  layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream,
                      layer.optional_bias("ffn_down", width));
}

}  // namespace

TextPooling read_pooling(GraphBuilder& model, TextPooling of_rankers) {
  if (model.flag("attention.causal", false))
    model.refuse("says that attention is causal, which an encoder's is not");
  const auto named = [](PoolingType type) {
    if (type == PoolingType::kLast) return TextPooling::kLast;
    return type == PoolingType::kFirst ? TextPooling::kFirst : TextPooling::kMean;
  };
  const PoolingType type = read_type(model, "pooling_type", PoolingType::kRank);
  if (type != PoolingType::kRank) return named(type);
  const PoolingType of_head = read_type(model, "classifier.pooling_type", PoolingType::kLast);
  return of_head == PoolingType::kNone ? of_rankers : named(of_head);
}

std::uint32_t window_of_each_side(GraphBuilder& model) {
  const std::uint32_t window = model.window(0);
  if (window == 1)
    model.refuse("has a window of a single position in both directions, which is not supported");
  return window == 0 ? 0 : window / 2 + 1;
}

Norm norm_of_stream(GraphBuilder& model, const std::string& name, float epsilon) {
  Norm norm;
  norm.out = kStream;
  norm.width = model.embedding();
  norm.gain = model.add(VectorRow{{{model.tensor(name + ".weight", norm.width)}}});
  norm.epsilon = epsilon;
  return norm;
}

void end_encoder(GraphBuilder& model, float epsilon, const std::string& name) {
  model.layer(model.layer_count() - 1).append(norm_of_stream(model, name, epsilon));
  pool_text(model, read_pooling(model));
  model.plain_output();
}

void pool_text(GraphBuilder& model, TextPooling pooling) {
  if (const auto pools = operation_of(pooling)) model.layer(model.layer_count() - 1).append(*pools);
}

void describe_encoder(GraphBuilder& model, const EncoderShape& shape) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.layer_epsilon();
  const ActivationIndex read = model.input("stream as products read it", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());
  const TextPooling pooling = read_pooling(model);
  std::optional<Router> router;
  if (shape.expert_period != 0) router = model.required_router();

  model.embed();
  embed_positions(model, shape.rope == kAbsent);
  model.layer(0).append(norm_of_embeddings(model, epsilon));
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.copy(kStream, read);
    layer.product(layer.qkv(heads, width), read, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = shape.rope},
                    attended, {.both_ways = true});
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                        layer.optional_bias("attn_output", width));
    layer.layer_norm(kStream, "attn_output_norm", kStream, epsilon);

    layer.copy(kStream, read);
    if (router && i % shape.expert_period == 1)
      layer.append(
          layer.ungated_experts(*router, "", epsilon, read, model.feed_forward(), shape.function));
    else
      append_feed_forward(model, layer, shape, read, hidden);
    layer.layer_norm(kStream, "layer_output_norm", kStream, epsilon);
  }
  pool_text(model, pooling);
  model.plain_output();
}

void set_pooling(ModelGraph& encoder, TextPooling pooling) {
  std::vector<Operation>& last = encoder.layers.back().operations;
  std::erase_if(last,
                [](const Operation& each) { return std::holds_alternative<PoolColumns>(each); });
  const auto pools = operation_of(pooling);
  if (!pools) return;
  // Dense layers may follow the last norm; they read what is pooled.
  const auto norm = std::find_if(last.rbegin(), last.rend(), [](const Operation& each) {
    return std::holds_alternative<Norm>(each);
  });
  last.insert(norm.base(), *pools);
}

}  // namespace bulkhead::model
