// Nemotron-H and Nemotron Nano 2 (NVIDIA 2025, arXiv 2504.03624 and 2508.14444): a layer is Mamba-2 (Dao and Gu 2024,
// arXiv 2405.21060), attention without rotary positions, or a feed-forward without a gate, whose function is the
// squared ReLU.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// Returns the width of the feed-forwards. The file has a width for each layer; 0: the layer has none.
std::uint32_t read_feed_forwards(GraphBuilder& model, std::vector<bool>& has) {
  std::uint32_t inner = 1;
  for (const std::uint32_t width : model.counts("feed_forward_length", kMaxWidth, 0)) {
    has.push_back(width != 0);
    if (width != 0 && inner != 1 && width != inner)
      model.refuse("has feed-forwards of different widths");
    inner = std::max(inner, width);
  }
  return inner;
}

void describe_nemotron_h(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  std::vector<bool> attends, feeds;
  const HeadShape heads = model.heads_of_some(attends);
  const DeltaHeads mamba = model.mamba_heads();
  const float epsilon = model.rms_epsilon();
  const double score_scale = model.number("attention.scale", 0);  // 0: as usual
  const std::uint32_t inner = read_feed_forwards(model, feeds);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex mixed =
      model.floats("Mamba's x, B, C, gates", LayerBuilder::delta_mixed_width(mamba));
  const ActivationIndex read = model.input("Mamba's result", mamba.value_width());
  const ActivationIndex up = model.floats("up", inner);
  const ActivationIndex hidden = model.input("hidden", inner);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", normed, epsilon);
    if (attends[i]) {
      layer.product(layer.qkv(heads, width), normed, qkv);
      layer.attention(
          {.qkv = qkv, .heads = heads, .bias = layer.qkv_bias(heads), .scale = score_scale},
          attended);
      layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream,
                          layer.optional_bias("attn_output", width));
    } else if (feeds[i]) {
      layer.product({layer.rows("ffn_up", width, inner)}, normed, up,
                    layer.optional_bias("ffn_up", inner));
      layer.append(SquaredRelu{up, hidden});
      layer.product_added(layer.rows("ffn_down", inner, width), hidden, kStream,
                          layer.optional_bias("ffn_down", width));
    } else {
      layer.mamba(mamba, epsilon, normed, mixed, read);
      layer.product_added(layer.rows("ssm_out", mamba.value_width(), width), read, kStream);
    }
  }
  model.output(epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(nemotron_h, "nemotron_h", describe_nemotron_h);

}  // namespace bulkhead::model
