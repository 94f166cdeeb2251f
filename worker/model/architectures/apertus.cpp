// Apertus (Swiss AI Initiative 2025, arXiv 2509.14233): Qwen 3's attention, and a feed-forward without a gate, whose
// function is xIELU. Each layer has numbers of its own for that function, which training changed.
#include <cmath>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// Returns a number for each layer, from a key that has one for all layers or an array. The key has no prefix.
std::vector<double> numbers_of_layers(GraphBuilder& model, const std::string& key) {
  std::vector<double> made(model.layer_count());
  const auto one = model.file().get_float(key);
  if (one.ok() && *one) {
    made.assign(made.size(), **one);
  } else {
    const auto each = model.file().get_floats(key);
    if (!each.ok() || !*each || (*each)->size() < made.size()) {
      model.corrupt("metadata key " + key + " is missing, or has no number for each layer");
      return made;
    }
    made.assign((*each)->begin(), (*each)->begin() + model.layer_count());
  }
  for (const double number : made) {
    if (!(std::abs(number) < 1e6))
      model.corrupt("metadata key " + key +
                    " has a number that is not between -1000000 and 1000000");
  }
  return made;
}

// Returns the functions of the layers' feed-forwards, without their activations. Factors are made with the softplus of
// numbers that training changed. The file has these numbers.
std::vector<Xielu> read_xielu(GraphBuilder& model) {
  const auto softplus = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  const std::vector<double> positive = numbers_of_layers(model, "xielu.alpha_p"),
                            negative = numbers_of_layers(model, "xielu.alpha_n"),
                            beta = numbers_of_layers(model, "xielu.beta"),
                            least = numbers_of_layers(model, "xielu.eps");
  std::vector<Xielu> made(model.layer_count());
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i].positive = static_cast<float>(softplus(positive[i]));
    made[i].negative = static_cast<float>(beta[i] + softplus(negative[i]));
    made[i].beta = static_cast<float>(beta[i]);
    made[i].least = static_cast<float>(least[i]);
  }
  return made;
}

void describe_apertus(GraphBuilder& model) {
  const std::uint32_t width = model.embedding(), inner = model.feed_forward();
  const GroupedAttention attention = model.grouped_attention(RopePairing::kHalves);
  const std::uint32_t size = attention.heads.size;
  const std::vector<Xielu> functions = read_xielu(model);
  const ActivationIndex up = model.floats("up", inner);
  const ActivationIndex hidden = model.input("hidden", inner);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.project(attention);
    layer.attend(attention, {.q_gain = layer.vector("attn_q_norm", size),
                             .k_gain = layer.vector("attn_k_norm", size)});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.product({layer.rows("ffn_up", width, inner)}, attention.normed, up);
    Xielu function = functions[i];
    function.in = up;
    function.out = hidden;
    layer.append(function);
    layer.product_added(layer.rows("ffn_down", inner, width), hidden, kStream);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(apertus, "apertus", describe_apertus);

}  // namespace bulkhead::model
