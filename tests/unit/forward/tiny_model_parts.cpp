// Mamba-2, short convolutions and mixtures of experts of small transformers (tiny_model.hpp).
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "tiny_model_math.hpp"

namespace bulkhead::forward::tiny {
void Model::add_mamba(const std::string& block) {
  const MambaFacts& m = facts_.mamba;
  add_matrix(block + "ssm_in", facts_.width, m.inner() + m.channels() + m.heads);
  add(block + "ssm_conv1d.weight", {m.taps, m.channels()}, 0, 0.6);
  add(block + "ssm_conv1d.bias", {m.channels()}, 0, 0.3);
  add(block + "ssm_dt.bias", {m.heads}, 0, 1);
  add(block + "ssm_a", {1, m.heads}, -0.8, 0.2);
  add(block + "ssm_d", {1, m.heads}, 1, 0.3);
  if (m.norms) add(block + "ssm_norm.weight", {m.inner() / m.groups, m.groups}, 1, 0.3);
  add_matrix(block + "ssm_out", m.inner(), facts_.width);
}

// Changes the state, [head][entry][entry of B], at a position, and returns what is read of it, before the norm. `rows`
// are what ssm_in makes of all positions.
Vector Model::mamba_read(const std::string& block, const std::vector<Vector>& rows,
                         std::size_t position, Vector& state) const {
  const MambaFacts& m = facts_.mamba;
  const auto floats = [&](const char* name, std::size_t i) {
    return static_cast<double>(tensors_.at(block + name).values[i]);
  };
  const std::size_t inner = m.inner();
  Vector convolved(m.channels());
  for (std::size_t c = 0; c < convolved.size(); ++c) {
    double sum = floats("ssm_conv1d.bias", c);
    for (std::size_t back = 0; back < m.taps && back <= position; ++back)
      sum += floats("ssm_conv1d.weight", c * m.taps + m.taps - 1 - back) *
             rows[position - back][inner + c];
    convolved[c] = activated(Function::kSilu, sum);
  }
  Vector read(inner);
  for (std::size_t i = 0; i < inner; ++i) {
    const std::size_t head = i / m.size, group = head / (m.heads / m.groups);
    const double* const b = convolved.data() + inner + group * m.state;
    const double* const c = convolved.data() + inner + (m.groups + group) * m.state;
    const double dt = std::log1p(
        std::exp(rows[position][inner + m.channels() + head] + floats("ssm_dt.bias", head)));
    read[i] = floats("ssm_d", head) * convolved[i];
    for (std::size_t n = 0; n < m.state; ++n) {
      double& entry = state[i * m.state + n];
      entry = entry * std::exp(dt * floats("ssm_a", head)) + dt * convolved[i] * b[n];
      read[i] += entry * c[n];
    }
    read[i] *= activated(Function::kSilu, rows[position][i]);
  }
  return read;
}

std::vector<Vector> Model::mamba(std::uint32_t layer, const std::vector<Vector>& in) const {
  const MambaFacts& m = facts_.mamba;
  const std::string block = block_of(layer);
  std::vector<Vector> rows, out;
  for (const Vector& each : in)
    rows.push_back(product(block + "ssm_in", each));
  Vector state(std::size_t{m.inner()} * m.state);
  for (std::size_t position = 0; position < in.size(); ++position) {
    Vector read = mamba_read(block, rows, position, state);
    const std::size_t of_group = m.inner() / m.groups;
    for (std::size_t first = 0; m.norms && first < read.size(); first += of_group) {
      double squares = 0;
      for (std::size_t i = first; i < first + of_group; ++i)
        squares += read[i] * read[i];
      for (std::size_t i = first; i < first + of_group; ++i)
        read[i] *= static_cast<double>(tensors_.at(block + "ssm_norm.weight").values[i]) /
                   std::sqrt(squares / static_cast<double>(of_group) + kEpsilon);
    }
    out.push_back(product(block + "ssm_out", read));
  }
  return out;
}

void Model::add_convolution(const std::string& block) {
  add_matrix(block + "shortconv.in_proj", facts_.width, 3ULL * facts_.width);
  add(block + "shortconv.conv.weight", {facts_.taps, facts_.width}, 0, 0.6);
  add_matrix(block + "shortconv.out_proj", facts_.width, facts_.width);
}

std::vector<Vector> Model::convolved(std::uint32_t layer, const std::vector<Vector>& in) const {
  const std::string block = block_of(layer);
  const std::size_t width = facts_.width, taps = facts_.taps;
  const std::vector<float>& weights = tensors_.at(block + "shortconv.conv.weight").values;
  std::vector<Vector> rows, out;
  for (const Vector& each : in)
    rows.push_back(product(block + "shortconv.in_proj", each));
  for (std::size_t position = 0; position < in.size(); ++position) {
    Vector made(width);
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t back = 0; back < taps && back <= position; ++back)
        made[i] += static_cast<double>(weights[i * taps + taps - 1 - back]) *
                   rows[position - back][i] * rows[position - back][2 * width + i];
      made[i] *= rows[position][width + i];
    }
    out.push_back(product(block + "shortconv.out_proj", made));
  }
  return out;
}

void Model::add_keys_of_mixers(model::testing::GgufBuilder& made, const std::string& prefix) const {
  const Facts& f = facts_;
  if (f.mamba.heads != 0) {
    made.u32(prefix + "ssm.conv_kernel", f.mamba.taps)
        .u32(prefix + "ssm.state_size", f.mamba.state);
    made.u32(prefix + "ssm.group_count", f.mamba.groups)
        .u32(prefix + "ssm.time_step_rank", f.mamba.heads)
        .u32(prefix + "ssm.inner_size", f.mamba.inner());
  }
  if (f.mixers.find('c') != std::string::npos) made.u32(prefix + "shortconv.l_cache", f.taps);
  std::vector<std::int32_t> heads, each_kv_heads, widths;
  for (std::uint32_t i = 0; i < f.layers; ++i) {
    const bool attends = mixer(i) == 'a' || mixer(i) == 'b';
    heads.push_back(attends || mixer(i) == 'l' ? static_cast<std::int32_t>(this->heads(i)) : 0);
    each_kv_heads.push_back(attends ? static_cast<std::int32_t>(kv_heads(i)) : 0);
    widths.push_back(!f.one_branch || mixer(i) == 'f' ? static_cast<std::int32_t>(hidden(i)) : 0);
  }
  made.drop(prefix + "attention.head_count_kv");
  made.numbers<std::int32_t>(prefix + "attention.head_count_kv", model::ValueType::kInt32,
                             each_kv_heads);
  if (f.mixers.find_first_of("ln") != std::string::npos || !f.layer_heads.empty()) {
    made.drop(prefix + "attention.head_count");
    made.numbers<std::int32_t>(prefix + "attention.head_count", model::ValueType::kInt32, heads);
  }
  if (!f.one_branch && f.layer_hidden.empty()) return;
  made.drop(prefix + "feed_forward_length");
  made.numbers<std::int32_t>(prefix + "feed_forward_length", model::ValueType::kInt32, widths);
}

XieluFacts xielu_facts(std::uint32_t layer) {
  return {.alpha_p = 0.2 + 0.3 * layer, .alpha_n = 0.4 - 0.7 * layer, .beta = 0.5, .eps = -1e-6};
}

// The function of the feed-forward in the layer of that block.
double Model::activated_in(const std::string& block, double x) const {
  if (facts_.function != Function::kXielu) return activated(facts_.function, x);
  const auto softplus = [](double of) { return std::log1p(std::exp(of)); };
  const XieluFacts f = xielu_facts(static_cast<std::uint32_t>(std::stoul(block.substr(4))));
  if (x > 0) return softplus(f.alpha_p) * x * x + f.beta * x;
  return (std::expm1(std::min(x, f.eps)) - x) * (f.beta + softplus(f.alpha_n)) + f.beta * x;
}

double Model::limit_of(const std::string& block, const std::string& ending) const {
  const ExpertFacts& e = facts_.experts;
  const std::vector<double>& limits = ending == "_exps" ? e.limits : e.shared_limits;
  const double limit = limits.empty() ? 0 : limits[std::stoul(block.substr(4))];
  return limit != 0 ? limit : 1e30;
}

// Makes gates and ups so large that their limits matter.
void Model::enlarge_limited(const std::string& block) {
  for (const std::string ending : {"_exps", "_shexp"}) {
    if (limit_of(block, ending) > 1e3) continue;
    for (const char* const part : {"ffn_gate", "ffn_up"}) {
      for (float& value : tensors_.at(block + part + ending + ".weight").values)
        value *= 8;
    }
  }
}

Vector Model::gated(const std::string& block, const std::string& ending, const Vector& in,
                    std::size_t slice, bool fused) const {
  const std::string up_name =
      block + (fused && ending == "_exps" ? "ffn_gate_up" : "ffn_up") + ending;
  const std::size_t all = tensors_.at(up_name + ".weight").ne[1], half = fused ? all / 2 : all;
  Vector up = rows(up_name, in, slice, fused ? half : 0, half);
  if (!facts_.gated) {
    for (double& value : up)
      value = activated_in(block, value);
  } else {
    const Vector gate =
        fused ? rows(up_name, in, slice, 0, half) : product(block + "ffn_gate" + ending, in, slice);
    const double limit = limit_of(block, ending);
    for (std::size_t i = 0; i < half; ++i)
      up[i] = std::clamp(up[i], -limit, limit) * std::min(activated_in(block, gate[i]), limit);
  }
  return product(block + "ffn_down" + ending, up, slice);
}

// Gives the experts of groups that are not taken a score that none can have.
void Model::leave_out_groups(Vector& chosen_by) {
  const ExpertFacts& e = facts_.experts;
  if (e.groups_used == e.groups) return;
  const std::size_t each = e.count / e.groups;
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t group = 0; group < e.groups; ++group) {
    const auto begin = chosen_by.begin() + static_cast<std::ptrdiff_t>(group * each);
    Vector of_group(begin, begin + static_cast<std::ptrdiff_t>(each));
    std::ranges::sort(of_group, std::greater<>());
    groups.emplace_back(of_group[0] + of_group[1], group);
  }
  std::ranges::sort(groups, std::greater<>());
  least_gap_ =
      std::min(least_gap_, 4 * (groups[e.groups_used - 1].first - groups[e.groups_used].first));
  for (std::size_t i = e.groups_used; i < groups.size(); ++i)
    std::fill_n(chosen_by.begin() + static_cast<std::ptrdiff_t>(groups[i].second * each), each,
                -1e9);
}

Vector Model::experts(const std::string& block, const Vector& in) {
  const ExpertFacts& e = facts_.experts;
  Vector scores = product(block + "ffn_gate_inp", in);
  Vector chosen_by = scores;
  if (e.sigmoid) {
    for (double& score : scores)
      score = sigmoid(score);
  } else {
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) {
      score = std::exp(score - most);
      sum += score;
    }
    for (double& score : scores)
      score /= sum;
  }
  const bool by_scores = e.sigmoid || e.biased;
  for (std::size_t i = 0; by_scores && i < e.count; ++i) {
    chosen_by[i] = scores[i];
    if (e.biased) chosen_by[i] += static_cast<double>(tensors_.at(block + e.bias_name).values[i]);
  }
  leave_out_groups(chosen_by);
  std::vector<std::size_t> order(e.count);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return chosen_by[a] > chosen_by[b]; });
  // The slope of a sigmoid, and of a softmax, is a quarter at most.
  const double gap = chosen_by[order[e.used - 1]] - chosen_by[order[e.used]];
  least_gap_ = std::min(least_gap_, by_scores ? 4 * gap : gap);
  double sum = 0;
  for (std::size_t i = 0; i < e.used; ++i)
    sum += scores[order[i]];
  const Vector read = e.latent != 0 ? product(block + "ffn_latent_down", in) : in;
  Vector out(read.size());
  for (std::size_t i = 0; i < e.used; ++i) {
    const double weight = scores[order[i]] / (e.renormalise ? sum : 1) * e.scale;
    add_to(out, gated(block, "_exps", read, order[i], e.fused), weight);
  }
  if (e.latent != 0) out = product(block + "ffn_latent_up", out);
  if (e.shared_width == 0) return out;
  const double share = e.gated_share ? sigmoid(product(block + "ffn_gate_inp_shexp", in)[0]) : 1;
  add_to(out, gated(block, "_shexp", in, 0, false), share);
  return out;
}

}  // namespace bulkhead::forward::tiny
