// Apertus (Swiss AI Initiative 2025, arXiv 2509.14233): Qwen 3's attention, and a feed-forward without a gate, whose
// function is xIELU. Each layer has numbers of its own for that function, which training changed.
#include <cmath>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// Returns the functions of the layers' feed-forwards, without their activations. Factors are made with the softplus of
// numbers that training changed. The file has these numbers.
std::vector<Xielu> read_xielu(GraphBuilder& model) {
  const auto softplus = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  const std::vector<double> positive = model.numbers_of_layers("xielu.alpha_p"),
                            negative = model.numbers_of_layers("xielu.alpha_n"),
                            beta = model.numbers_of_layers("xielu.beta"),
                            least = model.numbers_of_layers("xielu.eps");
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
    layer.attend(attention, {.bias = layer.qkv_bias(attention.heads),
                             .q_gain = layer.vector("attn_q_norm", size),
                             .k_gain = layer.vector("attn_k_norm", size)});

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.product({layer.rows("ffn_up", width, inner)}, attention.normed, up,
                  layer.optional_bias("ffn_up", inner));
    Xielu function = functions[i];
    function.in = up;
    function.out = hidden;
    layer.append(function);
    layer.product_added(layer.rows("ffn_down", inner, width), hidden, kStream,
                        layer.optional_bias("ffn_down", width));
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(apertus, "apertus", describe_apertus);

}  // namespace bulkhead::model
