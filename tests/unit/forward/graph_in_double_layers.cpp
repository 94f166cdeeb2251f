// Feed-forwards, experts, and what carries states from position to position, of graphs in double (graph_in_double.hpp).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "graph_in_double.hpp"
#include "graph_in_double_math.hpp"
#include "reference.hpp"

namespace bulkhead::forward {

using model::kAbsent;

namespace {

double gated(model::Gate function, double gate, double up) {
  switch (function) {
    case model::Gate::kSilu:
      return reference::gated(gpu::kernels::Gate::kSilu, gate, up);
    case model::Gate::kGelu:
      return reference::gated(gpu::kernels::Gate::kGelu, gate, up);
    case model::Gate::kClamped:
      return reference::gated(gpu::kernels::Gate::kClamped, gate, up);
    case model::Gate::kSigmoid:
      return reference::gated(gpu::kernels::Gate::kSigmoid, gate, up);
    case model::Gate::kSquaredRelu:
      return reference::gated(gpu::kernels::Gate::kSquaredRelu, gate, up);
    case model::Gate::kSiluTo7:
      return reference::gated(gpu::kernels::Gate::kSiluTo7, gate, up);
    case model::Gate::kSiluTo16:
      return reference::gated(gpu::kernels::Gate::kSiluTo16, gate, up);
  }
  return 0;
}

}  // namespace

void GraphInDouble::run(const model::GatedProduct& product) {
  const Vector bias = product.bias == kAbsent ? Vector() : vector(product.bias);
  for (std::size_t p = 0; p < values_[product.in].size(); ++p) {
    const double* const in = values_[product.in][p].data();
    Vector gate = rows(product.gate, in);
    Vector up = product.up.tensor == kAbsent ? Vector(gate.size(), 1.0) : rows(product.up, in);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      if (!bias.empty()) gate[i] += bias[i];
      if (product.factors != kAbsent) up[i] = values_[product.factors][p][product.first_factor + i];
      values_[product.out][p][i] = gated(product.function, gate[i], up[i]);
    }
  }
}

void GraphInDouble::run(const model::Gated& each) {
  for (std::size_t p = 0; p < values_[each.gate].size(); ++p) {
    for (std::size_t i = 0; i < graph_.activations[each.out].width; ++i)
      values_[each.out][p][i] = gated(each.function, values_[each.gate][p][each.first_gate + i],
                                      values_[each.values][p][i]);
  }
}

void GraphInDouble::run(const model::HeadGates& each) {
  for (std::size_t p = 0; p < values_[each.values].size(); ++p) {
    for (std::size_t i = 0; i < graph_.activations[each.out].width; ++i)
      values_[each.out][p][i] =
          gated(model::Gate::kSigmoid, values_[each.gates][p][i / each.head_size],
                values_[each.values][p][i]);
  }
}

void GraphInDouble::run(const model::HeadNorms& norms) {
  const Vector gains = vector(norms.gains);
  for (Vector& column : values_[norms.values]) {
    for (std::size_t head = 0; head < norms.heads; ++head) {
      const auto from = gains.begin() + static_cast<std::ptrdiff_t>(head * norms.size);
      normalise(std::span(column).subspan(norms.first + head * norms.size, norms.size),
                Vector(from, from + norms.size), {}, static_cast<double>(norms.epsilon), true);
    }
  }
}

void GraphInDouble::run(const model::SquaredRelu& relu) {
  for (std::size_t p = 0; p < values_[relu.in].size(); ++p) {
    for (std::size_t i = 0; i < values_[relu.in][p].size(); ++i)
      values_[relu.out][p][i] = gated(model::Gate::kSquaredRelu, values_[relu.in][p][i], 1);
  }
}

void GraphInDouble::run(const model::Xielu& f) {
  const double positive = static_cast<double>(f.positive),
               negative = static_cast<double>(f.negative), beta = static_cast<double>(f.beta),
               least = static_cast<double>(f.least);
  for (std::size_t p = 0; p < values_[f.in].size(); ++p) {
    for (std::size_t i = 0; i < values_[f.in][p].size(); ++i) {
      const double x = values_[f.in][p][i];
      const double bent =
          x > 0 ? positive * x * x : negative * (std::expm1(std::min(x, least)) - x);
      values_[f.out][p][i] = bent + beta * x;
    }
  }
}

void GraphInDouble::run(const model::PoolColumns& pool) {
  Columns& values = values_[pool.values];
  Vector made = values.front();
  for (std::size_t p = 1; pool.mean && p < values.size(); ++p) {
    for (std::size_t i = 0; i < made.size(); ++i)
      made[i] += values[p][i];
  }
  for (double& each : made)
    each /= pool.mean ? static_cast<double>(values.size()) : 1;
  values.back() = std::move(made);
}

void GraphInDouble::run(const model::PositionRows& rows) {
  const std::size_t width = graph_.activations[rows.to].width;
  const Vector shared = rows.shared == kAbsent ? Vector(width) : vector(rows.shared);
  const Vector table = rows.table == kAbsent ? Vector() : vector(rows.table);
  for (std::size_t p = 0; p < values_[rows.to].size(); ++p) {
    for (std::size_t i = 0; i < width; ++i)
      values_[rows.to][p][i] += shared[i] + (table.empty() ? 0 : table[p * width + i]);
  }
}

void GraphInDouble::run(const model::ShortConvolution& convolution) {
  const std::size_t width = graph_.activations[convolution.out].width, taps = convolution.taps;
  const Vector weights = vector(convolution.weights);
  const Columns& in = values_[convolution.in];
  for (std::size_t p = 0; p < in.size(); ++p) {
    for (std::size_t i = 0; i < width; ++i) {
      double sum = 0;
      for (std::size_t back = 0; back < taps && back <= p; ++back)
        sum += weights[i * taps + taps - 1 - back] * in[p - back][i] * in[p - back][2 * width + i];
      values_[convolution.out][p][i] = sum * in[p][width + i];
    }
  }
}

// --- experts

void GraphInDouble::leave_out_groups(const model::Router& router, Vector& by) {
  if (router.groups <= 1) return;
  const std::size_t each = by.size() / router.groups;
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t group = 0; group < router.groups; ++group) {
    const auto begin = by.begin() + static_cast<std::ptrdiff_t>(group * each);
    Vector best(begin, begin + static_cast<std::ptrdiff_t>(each));
    std::ranges::sort(best, std::greater<>());
    groups.emplace_back(-(best[0] + (each > 1 ? best[1] : 0)), group);
  }
  std::ranges::sort(groups);
  for (std::size_t i = router.groups_used; i < groups.size(); ++i) {
    least_gap_ = std::min(least_gap_, groups[i].first - groups[router.groups_used - 1].first);
    std::fill_n(by.begin() + static_cast<std::ptrdiff_t>(groups[i].second * each), each, -1e9);
  }
}

// Returns the experts of a column, the best first.
std::vector<std::uint32_t> GraphInDouble::choose(const model::Router& router, const Vector& logits,
                                                 const Vector& scores) {
  const bool by_scores = router.sigmoid || router.choice_bias != kAbsent || router.groups > 1;
  Vector by = by_scores ? scores : logits;
  if (by_scores && router.choice_bias != kAbsent) {
    const Vector bias = vector(router.choice_bias);
    for (std::size_t i = 0; i < by.size(); ++i)
      by[i] += bias[i];
  }
  leave_out_groups(router, by);
  std::vector<std::uint32_t> order(router.experts);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) { return by[a] > by[b]; });
  if (router.used < router.experts)
    least_gap_ = std::min(least_gap_, by[order[router.used - 1]] - by[order[router.used]]);
  order.resize(router.used);
  return order;
}

GraphInDouble::Vector GraphInDouble::expert(const model::Experts& experts, std::uint32_t index,
                                            const double* in) const {
  const auto part = [&](const std::vector<model::MatrixPart>& parts, model::VectorIndex bias,
                        const double* of) {
    Vector made = parts.size() == 1 ? rows(parts[0], of, index) : rows(parts[index], of);
    if (bias == kAbsent) return made;
    const Vector all = vector(bias);
    for (std::size_t i = 0; i < made.size(); ++i)
      made[i] += all[index * made.size() + i];
    return made;
  };
  Vector hidden = part(experts.up, experts.up_bias, in);
  const Vector gates = experts.gate.empty() ? hidden : part(experts.gate, experts.gate_bias, in);
  for (std::size_t i = 0; i < hidden.size(); ++i)
    hidden[i] = gated(experts.function, gates[i], experts.gate.empty() ? 1 : hidden[i]);
  return part(experts.down, experts.down_bias, hidden.data());
}

void GraphInDouble::run(const model::Experts& experts) {
  const model::Router& router = experts.router;
  const Vector all_rows = vector(router.rows);
  const Vector bias = router.bias == kAbsent ? Vector() : vector(router.bias);
  const Vector scales = router.expert_scales == kAbsent ? Vector() : vector(router.expert_scales);
  for (std::size_t p = 0; p < values_[experts.in].size(); ++p) {
    Vector normed = values_[model::kStream][p];
    if (router.gain != kAbsent)
      normalise(std::span(normed), vector(router.gain), {}, static_cast<double>(router.epsilon),
                false);
    Vector logits;
    for (std::size_t row = 0; row < router.experts + (router.shared_gate ? 1U : 0U); ++row) {
      const double* const weights = all_rows.data() + row * normed.size();
      logits.push_back(std::inner_product(normed.begin(), normed.end(), weights, 0.0) +
                       (bias.empty() ? 0 : bias[row]));
    }
    const double share = router.shared_gate ? sigmoid_of(logits.back()) : 1;
    logits.resize(router.experts);
    Vector scores = softmax(logits);
    for (std::size_t i = 0; router.sigmoid && i < scores.size(); ++i)
      scores[i] = sigmoid_of(logits[i]);
    const auto chosen = choose(router, logits, scores);
    double sum = 0;
    for (const std::uint32_t each : chosen)
      sum += scores[each];
    Vector& out = values_[experts.out][p];
    Vector made = experts.out == model::kStream ? out : Vector(out.size());
    for (const std::uint32_t each : chosen) {
      double weight =
          scores[each] / (router.renormalise ? sum : 1) * static_cast<double>(router.scale);
      if (!scales.empty()) weight *= scales[each];
      const Vector result = expert(experts, each, values_[experts.in][p].data());
      for (std::size_t i = 0; i < made.size(); ++i)
        made[i] += weight * result[i];
    }
    for (std::size_t i = 0; experts.shared != kAbsent && i < made.size(); ++i)
      made[i] += share * values_[experts.shared][p][i];
    out = std::move(made);
  }
}

// --- states

// Returns the results of a delta net's convolution for each position: SiLU of each channel's sum.
GraphInDouble::Columns GraphInDouble::convolved(const model::DeltaNet& net) const {
  const Vector weights = vector(net.taps);
  const Vector bias = net.taps_bias == kAbsent ? Vector() : vector(net.taps_bias);
  const Columns& in = values_[net.in];
  const std::size_t taps = net.heads.taps;
  Columns made(in.size(), Vector(net.heads.channels()));
  for (std::size_t p = 0; p < in.size(); ++p) {
    for (std::size_t c = 0; c < made[p].size(); ++c) {
      double sum = bias.empty() ? 0 : bias[c];
      for (std::size_t back = 0; back < taps && back <= p; ++back)
        sum += weights[c * taps + taps - 1 - back] * in[p - back][c];
      made[p][c] = gated(model::Gate::kSilu, sum, 1);
    }
    const std::size_t size = net.heads.size, keys = net.heads.keys;
    if (net.heads.rule == model::StateRule::kSum) continue;
    for (std::size_t head = 0; head < 2 * keys; ++head) {
      const std::span entries(made[p].data() + head * size, size);
      const double squares =
          std::inner_product(entries.begin(), entries.end(), entries.begin(), 0.0);
      const double length = std::sqrt(squares + static_cast<double>(net.epsilon)) *
                            (head < keys ? std::sqrt(static_cast<double>(size)) : 1);
      for (double& each : entries)
        each /= length;
    }
  }
  return made;
}

// Changes the state, [value head][value][key], at a position, and returns what is read of it.
GraphInDouble::Vector GraphInDouble::delta_read(const model::DeltaNet& net, const Vector& qkv,
                                                const Vector& mixed, Vector& state) const {
  const model::DeltaHeads& heads = net.heads;
  const bool delta = heads.rule != model::StateRule::kSum,
             by_channels = heads.rule == model::StateRule::kChannels;
  const std::size_t key_width = std::size_t{heads.keys} * heads.size;
  const double* const values = qkv.data() + (delta ? 2 * key_width : 0);
  const double* const keys = qkv.data() + (delta ? key_width : heads.value_width());
  const double* const queries = qkv.data() + (delta ? 0 : heads.value_width() + key_width);
  const double* const scalars = mixed.data() + heads.channels() + heads.value_width();
  const Vector rates = by_channels ? Vector(heads.values) : vector(net.rates),
               bias = by_channels ? Vector(heads.values) : vector(net.bias);
  // The betas stand before the alphas, but behind decays of channels.
  const double* const betas = scalars + (by_channels ? std::size_t{heads.values} * heads.size : 0);
  Vector made(heads.value_width());
  for (std::size_t head = 0; head < heads.values; ++head) {
    const std::size_t key_head =
        heads.neighbours ? head / (heads.values / heads.keys) : head % heads.keys;
    const double* const k = keys + key_head * heads.size;
    const double* const q = queries + key_head * heads.size;
    const double pace = softplus_of(scalars[(delta ? heads.values : 0) + head] + bias[head]);
    const double decay = std::exp(rates[head] * pace);
    for (std::size_t v = 0; v < heads.value_size; ++v) {
      double* const row = state.data() + (head * heads.value_size + v) * heads.size;
      for (std::size_t i = 0; i < heads.size; ++i)
        row[i] *= by_channels ? scalars[head * heads.size + i] : decay;
      const double value = values[head * heads.value_size + v];
      const double known = std::inner_product(row, row + heads.size, k, 0.0);
      const double learnt = delta ? (value - known) * sigmoid_of(betas[head]) : value * pace;
      for (std::size_t i = 0; i < heads.size; ++i)
        row[i] += k[i] * learnt;
      made[head * heads.value_size + v] = std::inner_product(row, row + heads.size, q, 0.0);
    }
  }
  return made;
}

GraphInDouble::Vector GraphInDouble::delta_output(const model::DeltaNet& net, const Vector& qkv,
                                                  const Vector& mixed, Vector read) const {
  const model::DeltaHeads& heads = net.heads;
  const bool delta = heads.rule != model::StateRule::kSum;
  const model::Gate gate =
      heads.rule == model::StateRule::kChannels ? model::Gate::kSigmoid : model::Gate::kSilu;
  const double* const gates = mixed.data() + heads.channels();
  if (!delta) {
    const Vector skip = vector(net.skip);
    for (std::size_t i = 0; i < read.size(); ++i)
      read[i] = gated(model::Gate::kSilu, gates[i], read[i] + skip[i / heads.value_size] * qkv[i]);
  }
  if (!heads.norms) return read;
  const Vector gain = vector(net.gain);
  const std::size_t normed = delta ? heads.value_size : read.size() / heads.keys;
  for (std::size_t first = 0; first < read.size(); first += normed) {
    const auto from = gain.begin() + static_cast<std::ptrdiff_t>(delta ? 0 : first);
    normalise(std::span(read).subspan(first, normed),
              Vector(from, from + static_cast<std::ptrdiff_t>(normed)), {},
              static_cast<double>(net.epsilon), false);
  }
  for (std::size_t i = 0; delta && i < read.size(); ++i)
    read[i] = gated(gate, gates[i], read[i]);
  return read;
}

void GraphInDouble::run(const model::ChannelDecays& decays) {
  const Vector rates = vector(decays.rates), bias = vector(decays.bias);
  for (Vector& values : values_[decays.values]) {
    for (std::size_t i = 0; i < bias.size(); ++i) {
      double& each = values[decays.first + i];
      each = std::exp(rates[i / decays.size] * softplus_of(each + bias[i]));
    }
  }
}

void GraphInDouble::run(const model::DeltaNet& net) {
  const Columns qkv = convolved(net);
  Vector state(std::size_t{net.heads.value_width()} * net.heads.size);
  for (std::size_t p = 0; p < qkv.size(); ++p) {
    const Vector& mixed = values_[net.in][p];
    values_[net.out][p] = delta_output(net, qkv[p], mixed, delta_read(net, qkv[p], mixed, state));
  }
}

}  // namespace bulkhead::forward
