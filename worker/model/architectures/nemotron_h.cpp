// Nemotron-H and Nemotron Nano 2 (NVIDIA 2025, arXiv 2504.03624 and 2508.14444): a layer is Mamba-2 (Dao and Gu 2024,
// arXiv 2405.21060), attention without rotary positions, or a feed-forward without a gate, whose function is the
// squared ReLU. Nemotron 3 Nano (nemotron_h_moe.cpp) has experts in place of the dense feed-forward, and one more
// expert that every token takes. A router chooses by sigmoids plus biases. In Nemotron 3 Super the experts work on a
// latent vector, which is shorter than the residual stream.
#include "worker/model/architectures/shared.hpp"

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

// Feed-forwards without gates: dense ones, or experts.
struct UngatedFeedForwards {
  std::uint32_t inner = 0;  // the width of a dense one, or of the shared expert
  std::optional<Router> router;
  std::uint32_t expert_width = 0;
  ActivationIndex up = kAbsent, hidden = kAbsent;  // of a dense one, or of the shared expert
  ActivationIndex shared = kAbsent;                // the shared expert's result
  std::uint32_t latent = 0;                        // entries of the latent vector; 0: there is none
  ActivationIndex latents = kAbsent, mixed = kAbsent, gathered = kAbsent;
};

UngatedFeedForwards ungated_feed_forwards(GraphBuilder& model, std::uint32_t inner) {
  UngatedFeedForwards made;
  made.inner = inner;
  made.router = model.scored_router(true);
  if (made.router) {
    made.expert_width = model.count("expert_feed_forward_length", kMaxWidth, inner);
    made.inner = model.count("expert_shared_feed_forward_length", kMaxWidth, made.expert_width);
    made.shared = model.floats("shared expert's result", model.embedding());
    made.latent = model.count("moe_latent_size", kMaxWidth, 0);
    if (made.latent != 0) {
      made.latents = model.input("latent vector", made.latent);
      made.mixed = model.floats("experts' latent vector", made.latent);
      made.gathered = model.input("experts' latent vector as input", made.latent);
    }
  }
  made.up = model.floats("up", made.inner);
  made.hidden = model.input("hidden", made.inner);
  return made;
}

void feed_dense(LayerBuilder& layer, const UngatedFeedForwards& shape, std::uint32_t width,
                ActivationIndex normed) {
  layer.product({layer.rows("ffn_up", width, shape.inner)}, normed, shape.up,
                layer.optional_bias("ffn_up", shape.inner));
  layer.append(SquaredRelu{shape.up, shape.hidden});
  layer.product_added(layer.rows("ffn_down", shape.inner, width), shape.hidden, kStream,
                      layer.optional_bias("ffn_down", width));
}

void feed(LayerBuilder& layer, const UngatedFeedForwards& shape, std::uint32_t width, float epsilon,
          ActivationIndex normed) {
  if (!shape.router) return feed_dense(layer, shape, width, normed);
  const bool has_latents = shape.latent != 0;
  layer.product({layer.rows("ffn_up_shexp", width, shape.inner)}, normed, shape.up);
  layer.append(SquaredRelu{shape.up, shape.hidden});
  const MatrixPart shared_down = layer.rows("ffn_down_shexp", shape.inner, width);
  if (!has_latents)
    layer.product({shared_down}, shape.hidden, shape.shared);
  else
    layer.product({layer.rows("ffn_latent_down", width, shape.latent)}, normed, shape.latents);
  Experts experts = layer.ungated_experts(*shape.router, "attn_norm", epsilon,
                                          has_latents ? shape.latents : normed, shape.expert_width,
                                          Gate::kSquaredRelu);
  if (!has_latents) {
    experts.shared = shape.shared;
    return layer.append(experts);
  }
  // The router reads the stream, so everything is added to it behind the experts.
  experts.out = shape.mixed;
  layer.append(experts);
  layer.copy(shape.mixed, shape.gathered);
  layer.product_added(layer.rows("ffn_latent_up", shape.latent, width), shape.gathered, kStream);
  layer.product_added(shared_down, shape.hidden, kStream);
}

}  // namespace

void describe_nemotron_h(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  std::vector<bool> attends, feeds;
  const HeadShape heads = model.heads_of_some(attends);
  const DeltaHeads mamba = model.mamba_heads();
  const float epsilon = model.rms_epsilon();
  const double score_scale = model.score_scale();
  const UngatedFeedForwards feed_forwards =
      ungated_feed_forwards(model, read_feed_forwards(model, feeds));
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex mixed = model.floats("Mamba's x, B, C, gates", mamba.mixed_width());
  const ActivationIndex read = model.input("Mamba's result", mamba.value_width());

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
      feed(layer, feed_forwards, width, epsilon, normed);
    } else {
      layer.mamba(mamba, epsilon, normed, mixed, read);
      layer.product_added(layer.rows("ssm_out", mamba.value_width(), width), read, kStream);
    }
  }
  model.output(epsilon);
}

BULKHEAD_ARCHITECTURE(nemotron_h, "nemotron_h", describe_nemotron_h);

}  // namespace bulkhead::model
