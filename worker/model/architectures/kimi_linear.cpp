// Kimi Linear (Kimi team 2025, arXiv 2510.26692): three of four layers are Kimi Delta Attention, a gated delta net.
// Each entry of a head's keys has its own decay in these layers. The other layers attend over latents, and do not
// rotate queries and keys. The router chooses experts by sigmoids, and one more expert computes every token.
#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/model/graph_latents.hpp"

namespace bulkhead::model {
namespace {

struct DeltaAttention {
  DeltaHeads heads;
  ActivationIndex mixed = kAbsent, read = kAbsent;
  // Decays and gates are made of vectors of a head's size.
  ActivationIndex low_decays = kAbsent, low_gates = kAbsent;
};

DeltaAttention read_delta(GraphBuilder& model, std::uint32_t heads) {
  DeltaAttention made;
  const std::uint32_t size = model.count("kda.head_dim", kMaxDeltaSize);
  made.heads = {.keys = heads,
                .values = heads,
                .size = size,
                .taps = model.count("ssm.conv_kernel", kMaxTaps),
                .value_size = size,
                .rule = StateRule::kChannels};
  if (size % 4 != 0)
    model.refuse("has heads of " + std::to_string(size) +
                 " entries (kimi-linear.kda.head_dim); only multiples of 4 are supported");
  if (model.has_key("kda.gate_lower_bound"))
    model.refuse("bounds its decays (kimi-linear.kda.gate_lower_bound), which is not supported");
  if (made.heads.taps < 2)
    model.refuse("has a convolution over a single position, which is not supported");
  made.mixed = model.floats("delta attention's q, k, v, gates", made.heads.mixed_width());
  made.read = model.input("delta attention's result", made.heads.value_width());
  made.low_decays = model.input("low rank of decays", size);
  made.low_gates = model.input("low rank of gates", size);
  return made;
}

// The taps of q, k or v. Some files keep the dimension of one channel for each filter.
VectorRow::Part read_taps(GraphBuilder& model, const std::string& name, const DeltaHeads& heads) {
  const std::uint64_t channels = heads.value_width();
  const TensorInfo* const found = model.file().find_tensor(name);
  if (found != nullptr && found->ne[1] == 1)
    return {model.float_rows(name, heads.taps, 1, channels)};
  return {model.float_rows(name, heads.taps, channels)};
}

void append_delta(GraphBuilder& model, LayerBuilder& layer, const DeltaAttention& shape,
                  const LatentAttention& latents) {
  const std::uint32_t width = model.embedding();
  const DeltaHeads& heads = shape.heads;
  const std::uint32_t inner = heads.value_width();
  layer.norm(kStream, "attn_norm", latents.normed, latents.epsilon);
  // The parts of `mixed`: q, k and v, gates, decays, betas.
  const auto product = [&](std::vector<MatrixPart> parts, ActivationIndex in, std::uint32_t first) {
    layer.append(Product{std::move(parts), in, shape.mixed, false, kAbsent, first});
  };
  product({layer.rows("attn_q", width, inner), layer.rows("attn_k", width, inner),
           layer.rows("attn_v", width, inner)},
          latents.normed, 0);
  layer.product({layer.rows("ssm_g_a", width, heads.size)}, latents.normed, shape.low_gates);
  product({layer.rows("ssm_g_b", heads.size, inner)}, shape.low_gates, 3 * inner);
  layer.product({layer.rows("ssm_f_a", width, heads.size)}, latents.normed, shape.low_decays);
  product({layer.rows("ssm_f_b", heads.size, inner)}, shape.low_decays, 4 * inner);
  product({layer.rows("ssm_beta", width, heads.values)}, latents.normed, 5 * inner);

  ChannelDecays decays{shape.mixed, 4 * inner, heads.values, heads.size};
  decays.rates = model.add(VectorRow{{{model.float_rows(layer.name("ssm_a"), 1, heads.values)}}});
  decays.bias = layer.bias("ssm_dt", inner);
  layer.append(decays);

  DeltaNet net;
  net.in = shape.mixed;
  net.out = shape.read;
  net.heads = heads;
  const auto taps = [&](const char* of) {
    return read_taps(model, layer.name(std::string("ssm_conv1d_") + of + ".weight"), heads);
  };
  net.taps = model.add(VectorRow{{taps("q"), taps("k"), taps("v")}});
  net.gain = layer.vector("ssm_norm", heads.size);
  net.epsilon = latents.epsilon;
  net.state = model.add(StateStore{heads.state_floats()});
  layer.append(net);
  layer.product_added(layer.rows("attn_output", inner, width), shape.read, kStream);
}

void describe_kimi_linear(GraphBuilder& model) {
  const std::vector<std::uint32_t> kv_heads = model.counts("attention.head_count_kv", kMaxHeads, 0);
  const std::uint32_t most = *std::ranges::max_element(kv_heads);
  // The size of the KV cache is counted in tokens of layers with attention.
  if (most == 0) model.refuse("has no layer that attends to all positions, which is not supported");
  LatentAttention attention = read_latents(model, most);
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.key()));
  const DeltaAttention delta = read_delta(model, attention.heads);
  FeedForwards feed_forwards = model.feed_forwards(true);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    if (kv_heads[i] == 0)
      append_delta(model, layer, delta, attention);
    else
      append_latents(model, layer, attention);
    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  model.output(attention.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(kimi_linear, "kimi-linear", describe_kimi_linear);

}  // namespace bulkhead::model
