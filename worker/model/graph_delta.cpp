// Builds gated delta nets and gated attention for architectures' files: reads the keys ssm.*, names the tensors of
// both kinds of layers, and describes models that are made of both.
#include <algorithm>
#include <string>
#include <utility>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

// What the keys of gated delta nets and of Mamba-2 have in common.
DeltaHeads GraphBuilder::state_heads() {
  DeltaHeads heads;
  heads.keys = count("ssm.group_count", kMaxHeads);
  heads.values = count("ssm.time_step_rank", kMaxHeads);
  heads.size = count("ssm.state_size", kMaxDeltaSize);
  heads.taps = count("ssm.conv_kernel", kMaxTaps);
  const std::uint32_t inner = count("ssm.inner_size", kMaxWidth);
  if (heads.values % heads.keys != 0)
    corrupt(std::to_string(heads.values) + " value heads (" + key("ssm.time_step_rank") +
            ") are not a multiple of " + std::to_string(heads.keys) + " key heads (" +
            key("ssm.group_count") + ")");
  if (inner % heads.values != 0)
    corrupt("metadata key " + key("ssm.inner_size") + " is " + std::to_string(inner) +
            ", not a multiple of the " + std::to_string(heads.values) + " value heads");
  heads.value_size = inner / heads.values;
  for (const std::uint32_t size : {heads.size, heads.value_size}) {
    if (size % 4 != 0 || size == 0)
      refuse("has heads of " + std::to_string(size) + " entries (" + key("ssm.state_size") + ", " +
             key("ssm.inner_size") + "); only multiples of 4 are supported");
  }
  if (heads.taps < 2) refuse("has a convolution over a single position, which is not supported");
  return heads;
}

DeltaHeads GraphBuilder::delta_heads() {
  const DeltaHeads heads = state_heads();
  if (heads.value_size != heads.size)
    refuse("metadata key " + key("ssm.inner_size") + " is not " + std::to_string(heads.values) +
           " heads of " + std::to_string(heads.size) +
           "; only models with keys and values of one size are supported");
  return heads;
}

DeltaHeads GraphBuilder::mamba_heads() {
  DeltaHeads heads = state_heads();
  heads.rule = StateRule::kSum;
  heads.neighbours = true;
  return heads;
}

std::vector<bool> GraphBuilder::recurrent_layers() {
  const std::uint32_t interval = count("full_attention_interval", kMaxLayers, 4);
  std::vector<bool> recurrent(layers_);
  constexpr const char* kRecurrent = "attention.recurrent_layers";
  if (file_.array_length(key(kRecurrent)).value_or(0) != 0 || has_count(kRecurrent)) {
    const std::vector<std::uint32_t> marks = counts(kRecurrent, 1, 0);
    for (std::uint32_t i = 0; i < layers_; ++i)
      recurrent[i] = marks[i] != 0;
  } else {
    for (std::uint32_t i = 0; i < layers_; ++i)
      recurrent[i] = (i + 1) % interval != 0;
  }
  if (drafts()) recurrent.back() = false;
  // The size of the KV cache is counted in tokens of layers with attention.
  if (std::find(recurrent.begin(), recurrent.end(), false) == recurrent.end())
    refuse("has no layer that attends to all positions, which is not supported");
  return recurrent;
}

DeltaMixers GraphBuilder::delta_mixers() {
  DeltaMixers made;
  made.heads = heads();
  made.delta = delta_heads();
  made.epsilon = rms_epsilon();
  made.rope = rope(made.heads, RopePairing::kHalves);
  made.recurrent = recurrent_layers();
  made.normed = input("normed stream", embedding());
  made.qkvg = floats("q, k, v, gates", LayerBuilder::gated_qkv_width(made.heads));
  made.plain = floats("attention without gates", made.heads.query_width());
  made.attended = input("attention result", made.heads.query_width());
  made.mixed = floats("delta net's q, k, v, gates", made.delta.mixed_width());
  made.read = input("delta net's result", made.delta.value_width());
  return made;
}

void GraphBuilder::delta_mixers_with_experts(const DeltaMixers& mixers) {
  FeedForwards experts;
  experts.router = required_router();
  experts.router->renormalise = true;
  experts.expert_width = expert_feed_forward(*experts.router);
  add_shared_expert(experts,
                    count("expert_shared_feed_forward_length", kMaxWidth, experts.expert_width),
                    "ffn_gate_inp_shexp");

  embed();
  for (const std::uint32_t i : layers()) {
    LayerBuilder layer(*this, i);
    layer.mix(mixers);
    const char* const norm = "post_attention_norm";
    layer.norm(kStream, norm, mixers.normed, mixers.epsilon);
    layer.append(layer.experts_beside_shared(experts, norm, mixers.epsilon, mixers.normed));
  }
  output(mixers.epsilon);
}

void LayerBuilder::mix(const DeltaMixers& shape) {
  const std::uint32_t embedding = model_.embedding();
  norm(kStream, "attn_norm", shape.normed, shape.epsilon);
  if (shape.recurrent[index_]) {
    delta_net(shape.delta, shape.epsilon, shape.normed, shape.mixed, shape.read);
    product_added(rows("ssm_out", shape.delta.value_width(), embedding), shape.read, kStream);
  } else {
    gated_attention(shape.heads, shape.rope, shape.epsilon, shape.normed, shape.qkvg, shape.plain,
                    shape.attended);
    product_added(rows("attn_output", shape.heads.query_width(), embedding), shape.attended,
                  kStream);
  }
}

void LayerBuilder::gated_attention(const HeadShape& heads, RopeIndex rope, float epsilon,
                                   ActivationIndex in, ActivationIndex qkvg, ActivationIndex plain,
                                   ActivationIndex out) {
  const std::uint64_t width = this->width(in), size = heads.size;
  const TensorIndex both = rows("attn_q", width, 2ULL * heads.query_width()).tensor;
  std::vector<MatrixPart> parts;
  for (std::uint64_t head = 0; head < heads.heads; ++head)
    parts.push_back({both, 2 * head * size, size, true});
  parts.push_back(rotating_rows("attn_k", width, heads.kv_width()));
  parts.push_back(rows("attn_v", width, heads.kv_width()));
  for (std::uint64_t head = 0; head < heads.heads; ++head)
    parts.push_back({both, (2 * head + 1) * size, size});
  product(std::move(parts), in, qkvg);
  attention({.qkv = qkvg,
             .heads = heads,
             .q_gain = vector("attn_q_norm", size),
             .k_gain = vector("attn_k_norm", size),
             .epsilon = epsilon,
             .rope = rope},
            plain);
  append(Gated{qkvg, plain, out, heads.qkv_width(), Gate::kSigmoid});
}

// Returns the rows of [q, k, v, gates, betas, alphas], each ordered by heads.
std::vector<MatrixPart> LayerBuilder::delta_rows(const DeltaHeads& heads, std::uint64_t width) {
  const std::uint64_t size = heads.size, group = heads.values / heads.keys, values = group * size;
  std::vector<MatrixPart> parts;
  // Takes rows of a tensor in which each key head has its own q, k, v and gates, or betas and alphas.
  const auto take_from_groups = [&](TensorIndex tensor, std::uint64_t of_group, std::uint64_t first,
                                    std::uint64_t rows) {
    for (std::uint64_t head = 0; head < heads.keys; ++head)
      parts.push_back({tensor, head * of_group + first, rows});
  };
  const TensorIndex fused = model_.optional_tensor(block_ + "ssm_in.weight", width,
                                                   heads.channels() + heads.value_width());
  if (fused != kAbsent) {
    const std::uint64_t of_group = 2 * size + 2 * values;
    take_from_groups(fused, of_group, 0, size);
    take_from_groups(fused, of_group, size, size);
    take_from_groups(fused, of_group, 2 * size, values);
    take_from_groups(fused, of_group, 2 * size + values, values);
  } else {
    parts.push_back(rows("attn_qkv", width, heads.channels()));
    parts.push_back(rows("attn_gate", width, heads.value_width()));
  }
  if (!heads.neighbours) {
    parts.push_back(rows("ssm_beta", width, heads.values));
    parts.push_back(rows("ssm_alpha", width, heads.values));
  } else {
    const TensorIndex both = rows("ssm_ba", width, 2ULL * heads.values).tensor;
    take_from_groups(both, 2 * group, 0, group);
    take_from_groups(both, 2 * group, group, group);
  }
  return parts;
}

void LayerBuilder::delta_net(const DeltaHeads& heads, float epsilon, ActivationIndex in,
                             ActivationIndex mixed, ActivationIndex out) {
  product(delta_rows(heads, width(in)), in, mixed);
  DeltaNet net;
  net.in = mixed;
  net.out = out;
  net.heads = heads;
  net.taps = model_.add(
      VectorRow{{{model_.float_rows(name("ssm_conv1d.weight"), heads.taps, heads.channels())}}});
  net.rates = model_.add(VectorRow{{{model_.tensor(name("ssm_a"), heads.values)}}});
  net.bias = bias("ssm_dt", heads.values);
  net.gain = vector("ssm_norm", heads.size);
  net.epsilon = epsilon;
  net.state = model_.add(StateStore{heads.state_floats()});
  append(net);
}

void LayerBuilder::mamba(const DeltaHeads& heads, float epsilon, ActivationIndex in,
                         ActivationIndex mixed, ActivationIndex out) {
  const std::uint64_t inner = heads.value_width(), channels = heads.channels();
  // The file has the gates' rows first.
  const TensorIndex all =
      model_.tensor(name("ssm_in.weight"), width(in), inner + channels + heads.values);
  product({{all, inner, channels}, {all, 0, inner}, {all, inner + channels, heads.values}}, in,
          mixed);
  const auto floats = [&](const char* tensor, std::uint64_t width, std::uint64_t rows) {
    return model_.add(VectorRow{{{model_.float_rows(name(tensor), width, rows)}}});
  };
  DeltaNet net;
  net.in = mixed;
  net.out = out;
  net.heads = heads;
  net.taps = floats("ssm_conv1d.weight", heads.taps, channels);
  net.taps_bias = optional_bias("ssm_conv1d", channels);
  net.rates = floats("ssm_a", 1, heads.values);
  net.bias = bias("ssm_dt", heads.values);
  net.skip = floats("ssm_d", 1, heads.values);
  if (heads.norms) net.gain = floats("ssm_norm.weight", inner / heads.keys, heads.keys);
  net.epsilon = epsilon;
  net.state = model_.add(StateStore{heads.state_floats()});
  append(net);
}

}  // namespace bulkhead::model
