// DeepSeek-V2 and V3 (DeepSeek-AI 2024, arXiv 2405.04434 and 2412.19437), GLM-4.7-Flash and other models of the
// same graph: attention over latents, experts chosen by scores, and experts that every token takes.
#include <cmath>

#include "worker/model/architectures/shared.hpp"
#include "worker/model/graph_latents.hpp"

namespace bulkhead::model {
namespace {

void read_temperature(GraphBuilder& model, LatentAttention& attention) {
  const double scale = model.number("attention.temperature_scale", 0);
  if (!(scale >= 0 && scale < 1e3))
    model.corrupt("attention.temperature_scale is not a number from 0 to 1000");
  if (scale == 0) return;
  const bool named = model.has_count("attention.temperature_length");
  attention.temperature = static_cast<float>(scale);
  attention.temperature_span = model.count(
      named ? "attention.temperature_length" : "rope.scaling.original_context_length", kMaxContext);
}

}  // namespace

void describe_deepseek2(GraphBuilder& model) {
  LatentAttention attention =
      read_latents(model, model.count("attention.head_count_kv", kMaxHeads, 1));
  attention.rope = model.rope({attention.heads, 1, attention.turn}, RopePairing::kAdjacent);
  attention.scale =
      model.score_growth(attention.rope) / std::sqrt(static_cast<double>(attention.key()));
  read_temperature(model, attention);
  // If a file has biases of scores but does not say how scores are made, the model is of V3's kind.
  const FeedForwards feed_forwards = model.feed_forwards(model.some_choice_is_biased());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    append_latents(model, layer, attention);
    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

BULKHEAD_ARCHITECTURE(deepseek2, "deepseek2", describe_deepseek2);

}  // namespace bulkhead::model
