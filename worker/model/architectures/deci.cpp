// Nemotron Super and Ultra (NVIDIA 2025, arXiv 2505.00949), and DeciLM: Llama's graph, from which a search has taken
// parts. Layers may have different numbers of key-value heads, one product in place of attention, or no attention, and
// feed-forwards of different widths or none.
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

void attend_deci(LayerBuilder& layer, const GroupedAttention& shape, std::uint32_t width) {
  const HeadShape& heads = shape.heads;
  layer.project(shape);
  layer.attention(
      {.qkv = shape.qkv, .heads = heads, .bias = layer.qkv_bias(heads), .rope = shape.rope},
      shape.attended);
  layer.product_added(layer.rows("attn_output", heads.query_width(), width), shape.attended,
                      kStream, layer.optional_bias("attn_output", width));
}

void describe_deci(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const std::vector<HeadShape> heads = model.heads_of_layers();
  GroupedAttention attention = model.grouped_attention(widest_of(heads), RopePairing::kAdjacent);
  const std::vector<std::uint32_t> hidden = model.counts("feed_forward_length", kMaxWidth, 0);

  bool odd = false;  // which of two inputs the next product in place of attention reads
  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    if (heads[i].kv_heads != 0) {
      attention.heads = heads[i];
      attention.attended = model.shared_input("attention result", heads[i].query_width());
      attend_deci(layer, attention, width);
    } else if (heads[i].heads != 0) {
      // What adds to the stream may already write the result of the next norm, so it reads another activation.
      const ActivationIndex input =
          model.shared_input(odd ? "odd product's input" : "even product's input", width);
      odd = !odd;
      layer.norm(kStream, "attn_norm", input, attention.epsilon);
      layer.product_added(layer.rows("attn_output", width, width), input, kStream,
                          layer.optional_bias("attn_output", width));
    }
    if (hidden[i] == 0) continue;
    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(model.dense_feed_forward(hidden[i]), attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(deci, "deci", describe_deci);

}  // namespace bulkhead::model
