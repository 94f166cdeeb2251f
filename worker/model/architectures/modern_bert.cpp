// ModernBERT (Warner et al. 2024, arXiv 2412.13663), as in Granite Embedding R2 and gte-modernbert: rotary positions,
// gated feed-forwards, and a layer norm without a bias before each branch. The first layer's attention reads the
// normalised embeddings as they are. It sees the whole text, as each third layer does; the others see a window.
#include <algorithm>
#include <string>

#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

// The names that configurations give the feed-forward's function.
struct NamedGate {
  const char* name;
  Gate function;
};
constexpr NamedGate kFunctions[] = {{"gelu", Gate::kGelu},
                                    {"gelu_new", Gate::kGelu},
                                    {"gelu_pytorch_tanh", Gate::kGelu},
                                    {"silu", Gate::kSilu},
                                    {"swish", Gate::kSilu}};

Gate read_function(GraphBuilder& model) {
  const std::string name = model.text("hidden_activation", "gelu");
  const auto* const found = std::ranges::find_if(
      kFunctions, [&name](const NamedGate& each) { return name == each.name; });
  if (found != std::end(kFunctions)) return found->function;
  model.refuse("has feed-forwards with the function \"" + name.substr(0, 64) +
               "\" (metadata key modern-bert.hidden_activation), which is not supported; gelu and "
               "silu are");
  return Gate::kGelu;
}

void describe_modern_bert(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const HeadShape heads = model.heads();
  const float epsilon = model.layer_epsilon();
  const Gate function = read_function(model);
  const RopeIndex rope = model.rope(heads, RopePairing::kHalves);
  const RopeIndex window_rope = model.window_rope(heads, RopePairing::kHalves);
  const std::uint32_t window = window_of_each_side(model);
  const std::vector<bool> windowed = model.windowed_layers(3, FullLayer::kFirst);
  const TextPooling pooling = read_pooling(model, TextPooling::kMean);
  const ActivationIndex normed = model.input("normed stream", width);
  const ActivationIndex qkv = model.floats("q, k, v", heads.qkv_width());
  const ActivationIndex attended = model.input("attention result", heads.query_width());
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  const auto normalise = [&](LayerBuilder layer, const char* name) {
    Norm norm = norm_of_stream(model, name, epsilon);
    norm.centred = true;
    layer.append(norm);
  };
  normalise(model.layer(0), "token_embd_norm");
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    const bool slides = window != 0 && windowed[i];
    if (i == 0 && !model.has_tensor(layer.name("attn_norm.weight")))
      layer.copy(kStream, normed);
    else
      layer.plain_layer_norm(kStream, "attn_norm", normed, epsilon);
    layer.product(layer.fused_qkv("attn_qkv", heads, width), normed, qkv);
    layer.attention({.qkv = qkv, .heads = heads, .rope = slides ? window_rope : rope}, attended,
                    {.window = slides ? window : 0, .both_ways = true});
    layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);

    layer.plain_layer_norm(kStream, "ffn_norm", normed, epsilon);
    layer.fused_gated_product("ffn_up", normed, hidden, function);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  normalise(model.layer(model.layer_count() - 1), "output_norm");
  pool_text(model, pooling);
  model.plain_output();
  // Files of rankers ask for an end and a separator between two texts, but the models have read one [SEP] there.
  model.rank_as({.gelu = true, .norm_epsilon = epsilon, .one_separator = true});
}

}  // namespace

BULKHEAD_ARCHITECTURE(modern_bert, "modern-bert", describe_modern_bert);

}  // namespace bulkhead::model
