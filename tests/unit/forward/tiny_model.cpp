#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <random>
#include <utility>

#include "tiny_model_math.hpp"

namespace bulkhead::forward::tiny {
Model::Model(const Facts& facts, unsigned seed) : facts_(facts), seed_(seed) {
  add("token_embd.weight", {facts.width, facts.vocabulary}, 0, 1 / facts.embedding_scale);
  if (is_bert()) add_encoder();
  if (!is_bert()) add_norm(facts.last_norm, facts.width);
  if (facts.norms_embeddings) add_norm("token_embd_norm", facts.width);
  if (facts.dense != 0) {
    add_matrix("dense_2", facts.width, facts.dense);
    add_matrix("dense_3", facts.dense, facts.width);
  }
  if (!facts.encoder && !facts.tied)
    add("output.weight", {facts.width, facts.vocabulary}, 0, 0.4 * facts.logit_divisor);
  if (facts.logit_biases) add("output.bias", {facts.vocabulary}, 0, 1);
  if (facts.divisors != 0) add("rope_freqs.weight", {facts.divisors}, 3, 0.5);
  for (std::uint32_t i = 0; i < facts.layers; ++i)
    add_layer(i);
}

// The numbers depend only on the tensor's name and the seed.
void Model::add(const std::string& name, std::vector<std::uint64_t> ne, double mean,
                double deviation) {
  std::mt19937 random(seed_ * 7919 + static_cast<unsigned>(std::hash<std::string>()(name)));
  std::size_t count = 1;
  for (const std::uint64_t n : ne)
    count *= n;
  Tensor made{std::move(ne), std::vector<float>(count)};
  for (float& value : made.values) {
    // The sum of four uniform numbers is close enough to a normal distribution.
    double sum = 0;
    for (int i = 0; i < 4; ++i)
      sum += random() / 4294967296.0 - 0.5;
    value = static_cast<float>(mean + deviation * sum * std::sqrt(3));
  }
  tensors_[name] = std::move(made);
}

void Model::add_matrix(const std::string& name, std::uint64_t in, std::uint64_t out,
                       std::uint64_t slices) {
  std::vector<std::uint64_t> ne{in, out};
  if (slices > 1) ne.push_back(slices);
  add(name + ".weight", std::move(ne), 0, 1.5 / std::sqrt(static_cast<double>(in)));
}

void Model::add_norm(const std::string& name, std::uint64_t width) {
  add(name + ".weight", {width}, 1, 0.3);
  if (facts_.layer_norms && !facts_.plain_layer_norms) add(name + ".bias", {width}, 0, 0.3);
}

void Model::add_encoder() {
  add_norm("token_embd_norm", facts_.width);
  add("token_types.weight", {facts_.width, 2}, 0, 0.5);
  if (!facts_.turns) add("position_embd.weight", {facts_.width, facts_.context}, 0, 0.5);
}

void Model::add_layer(std::uint32_t layer) {
  const Facts& f = facts_;
  const std::string block = block_of(layer);
  if (is_bert()) {
    add_norm(block + "attn_output_norm", f.width);
    add_norm(block + "layer_output_norm", f.width);
  }
  if (norms_before_attention(layer)) add_norm(block + "attn_norm", f.width);
  if (f.norms_before && !f.parallel && !f.one_branch && hidden(layer) != 0)
    add_norm(block + f.feed_forward_norm, f.width);
  if (f.norms_after) {
    add_norm(block + "post_attention_norm", f.width);
    add_norm(block + "post_ffw_norm", f.width);
  }
  if ((!f.one_branch && hidden(layer) != 0) || mixer(layer) == 'f') add_feed_forward(layer);
  if (mixer(layer) == 'm' || mixer(layer) == 'b') add_mamba(block);
  if (mixer(layer) == 'c') add_convolution(block);
  if (mixer(layer) == 'd') add_delta(block);
  if (mixer(layer) == 'l') add_matrix(block + "attn_output", f.width, f.width);
  if (mixer(layer) == 'a' || mixer(layer) == 'b') add_attention(layer);
}

void Model::add_attention(std::uint32_t layer) {
  const Facts& f = facts_;
  const std::string block = block_of(layer);
  const std::uint64_t q = std::uint64_t{heads(layer)} * f.size,
                      kv = std::uint64_t{kv_heads(layer)} * f.size;
  if (f.latents.latent != 0) return add_latents(block);
  if (f.fused_qkv) {
    add_matrix(block + "attn_qkv", f.width, q + 2 * kv);
    if (f.qkv_biases) add(block + "attn_qkv.bias", {q + 2 * kv}, 0, 0.5);
  } else {
    add_matrix(block + "attn_q", f.width, q);
    add_matrix(block + "attn_k", f.width, kv);
    add_matrix(block + "attn_v", f.width, kv);
  }
  add_matrix(block + "attn_output", q, f.width);
  if (f.gates_attention) add_matrix(block + "attn_gate", f.width, q);
  if (f.gates_heads) add_matrix(block + "attn_gate", f.width, heads(layer));
  if (f.qkv_biases && !f.fused_qkv) {
    add(block + "attn_q.bias", {q}, 0, 0.5);
    add(block + "attn_k.bias", {kv}, 0, 0.5);
    add(block + "attn_v.bias", {kv}, 0, 0.5);
  }
  if (f.product_biases || f.output_bias) add(block + "attn_output.bias", {f.width}, 0, 0.5);
  if (f.norms_own_heads) {
    add(block + "attn_q_norm.weight", {f.size, heads(layer)}, 1, 0.3);
    add(block + "attn_k_norm.weight", {f.size, kv_heads(layer)}, 1, 0.3);
  } else if (f.norms_rows || f.norms_heads) {
    add(block + "attn_q_norm.weight", {f.norms_rows ? q : f.size}, 1, 0.3);
    add(block + "attn_k_norm.weight", {f.norms_rows ? kv : f.size}, 1, 0.3);
  }
}

void Model::add_feed_forward(std::uint32_t layer) {
  const Facts& f = facts_;
  const std::string block = block_of(layer);
  const ExpertFacts& e = f.experts;
  if (!has_experts(layer)) {
    const std::uint64_t hidden = this->hidden(layer);
    if (f.gated && !f.fused_gate) add_matrix(block + "ffn_gate", f.width, hidden);
    add_matrix(block + "ffn_up", f.width, f.fused_gate ? 2 * hidden : hidden);
    add_matrix(block + "ffn_down", hidden, f.width);
    if (!f.product_biases) return;
    if (f.gated) add(block + "ffn_gate.bias", {hidden}, 0, 0.5);
    add(block + "ffn_up.bias", {hidden}, 0, 0.5);
    add(block + "ffn_down.bias", {f.width}, 0, 0.5);
    return;
  }
  add(block + "ffn_gate_inp.weight", {f.width, e.count}, 0, 4 / std::sqrt(f.width));
  if (e.biased) add(block + e.bias_name, {e.count}, 0, 0.3);
  const std::uint64_t outer = e.latent != 0 ? e.latent : f.width;
  if (e.latent != 0) {
    add_matrix(block + "ffn_latent_down", f.width, e.latent);
    add_matrix(block + "ffn_latent_up", e.latent, f.width);
  }
  if (e.fused) {
    add_matrix(block + "ffn_gate_up_exps", outer, 2 * e.width, e.count);
  } else {
    if (f.gated) add_matrix(block + "ffn_gate_exps", outer, e.width, e.count);
    add_matrix(block + "ffn_up_exps", outer, e.width, e.count);
  }
  add_matrix(block + "ffn_down_exps", e.width, outer, e.count);
  if (e.shared_width == 0) return;
  if (f.gated) add_matrix(block + "ffn_gate_shexp", f.width, e.shared_width);
  add_matrix(block + "ffn_up_shexp", f.width, e.shared_width);
  add_matrix(block + "ffn_down_shexp", e.shared_width, f.width);
  if (e.gated_share) add(block + "ffn_gate_inp_shexp.weight", {f.width}, 0, 0.3);
  enlarge_limited(block);
}

Vector Model::rows(const std::string& name, const Vector& in, std::size_t slice, std::size_t first,
                   std::size_t count) const {
  const Tensor& tensor = tensors_.at(name + ".weight");
  const std::size_t width = tensor.ne[0], all = tensor.ne.size() > 1 ? tensor.ne[1] : 1;
  Vector out(count);
  for (std::size_t r = 0; r < count; ++r) {
    const float* const row = tensor.values.data() + (slice * all + first + r) * width;
    double sum = 0;  // the compiler keeps it in a register
    for (std::size_t i = 0; i < width; ++i)
      sum += static_cast<double>(row[i]) * in[i];
    out[r] = sum;
  }
  const auto bias = tensors_.find(name + ".bias");
  for (std::size_t r = 0; bias != tensors_.end() && r < count; ++r)
    out[r] += static_cast<double>(bias->second.values[first + r]);
  return out;
}

Vector Model::product(const std::string& name, const Vector& in, std::size_t slice) const {
  const Tensor& tensor = tensors_.at(name + ".weight");
  return rows(name, in, slice, 0, tensor.ne.size() > 1 ? tensor.ne[1] : 1);
}

void Model::norm_part(const std::string& name, Vector& of, std::size_t first, std::size_t count,
                      std::size_t first_gain) const {
  const Tensor& gain = tensors_.at(name + ".weight");
  const auto begin = of.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  const double n = static_cast<double>(count);
  const double mean = facts_.layer_norms ? std::accumulate(begin, end, 0.0) / n : 0;
  double squares = 0;
  for (auto each = begin; each != end; ++each)
    squares += (*each - mean) * (*each - mean);
  const double root = std::sqrt(squares / n + kEpsilon);
  const auto bias = tensors_.find(name + ".bias");
  for (std::size_t i = 0; i < count; ++i) {
    double& value = of[first + i];
    value = (value - mean) / root * static_cast<double>(gain.values[first_gain + i]);
    if (bias != tensors_.end()) value += static_cast<double>(bias->second.values[i]);
  }
}

Vector Model::norm(const std::string& name, const Vector& in) const {
  Vector out = in;
  norm_part(name, out, 0, out.size());
  return out;
}

// Layers with a window rotate without YaRN.
void Model::turn(Vector& heads, std::size_t count, std::uint32_t position, bool windowed) const {
  const Facts& f = facts_;
  std::uint32_t turned = f.turned != 0 ? f.turned : f.size;
  if (windowed && f.window_turned != 0) turned = f.window_turned;
  const std::uint32_t pairs = turned / 2;
  const bool yarn = f.yarn.factor != 0 && !windowed;
  const double base = windowed && f.window_base != 0 ? f.window_base : f.base;
  const auto pair_that_turns = [&](double times) {
    return turned * std::log(f.yarn.original / (times * 2 * std::numbers::pi)) /
           (2 * std::log(f.base));
  };
  for (std::uint32_t pair = 0; pair < pairs; ++pair) {
    double frequency = std::pow(base, -2.0 * pair / turned), magnitude = 1;
    if (f.divisors != 0 && !windowed)
      frequency /= static_cast<double>(tensors_.at("rope_freqs.weight").values[pair]);
    if (yarn) {
      const double low = std::max(0.0, std::floor(pair_that_turns(32)));
      const double high = std::min(turned - 1.0, std::ceil(pair_that_turns(1)));
      const double way = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
      frequency = frequency * (1 - way) + frequency / f.yarn.factor * way;
      magnitude = (0.1 * std::log(f.yarn.factor) + 1) * f.yarn.attention;
    }
    const double c = std::cos(position * frequency) * magnitude,
                 s = std::sin(position * frequency) * magnitude;
    for (std::size_t head = 0; head < count; ++head) {
      double* const entries = heads.data() + head * f.size;
      double& a = entries[f.halves ? pair : 2 * pair];
      double& b = entries[f.halves ? pair + pairs : 2 * pair + 1];
      const double first = a * c - b * s;
      b = a * s + b * c;
      a = first;
    }
  }
}

Vector Model::attended(const Vector& q, const std::vector<Vector>& keys,
                       const std::vector<Vector>& values, std::uint32_t layer,
                       std::size_t position) const {
  const Facts& f = facts_;
  // In both directions a position sees half of the window on each side.
  const std::size_t before = f.encoder ? f.window / 2 : f.window - 1;
  const std::size_t first = f.windowed(layer) && position > before ? position - before : 0;
  std::size_t end = f.encoder ? keys.size() : position + 1;
  if (f.encoder && f.windowed(layer)) end = std::min(end, position + before + 1);
  double scale = f.score_scale != 0 ? f.score_scale : 1 / std::sqrt(static_cast<double>(f.size));
  scale *= 1 + f.temperature *
                   std::log(1 + std::floor(static_cast<double>(position) / f.temperature_span));
  Vector out(q.size());
  for (std::uint32_t head = 0; head < heads(layer); ++head) {
    const std::size_t own = std::size_t{head} * f.size,
                      shared = std::size_t{head / (heads(layer) / kv_heads(layer))} * f.size;
    Vector weights;
    for (std::size_t p = first; p < end; ++p) {
      double score = 0;
      for (std::size_t i = 0; i < f.size; ++i)
        score += q[own + i] * keys[p][shared + i];
      weights.push_back(score * scale);
    }
    const double most = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) {
      weight = std::exp(weight - most);
      sum += weight;
    }
    for (std::size_t p = first; p < end; ++p) {
      for (std::size_t i = 0; i < f.size; ++i)
        out[own + i] += weights[p - first] / sum * values[p][shared + i];
    }
  }
  return out;
}

// Returns what a layer's first branch adds to each position.
std::vector<Vector> Model::mixed(std::uint32_t layer, const std::vector<Vector>& in) {
  if (mixer(layer) == 'a')
    return facts_.latents.latent != 0 ? latent_attention(layer, in) : attention(layer, in);
  if (mixer(layer) == 'm') return mamba(layer, in);
  if (mixer(layer) == 'c') return convolved(layer, in);
  if (mixer(layer) == 'd') return delta(layer, in);
  std::vector<Vector> out;
  if (mixer(layer) == 'b') {
    out = attention(layer, in);
    const std::vector<Vector> read = mamba(layer, in);
    for (std::size_t p = 0; p < in.size(); ++p)
      add_to(out[p], read[p]);
    return out;
  }
  if (mixer(layer) == 'n') return std::vector<Vector>(in.size(), Vector(facts_.width));
  if (mixer(layer) == 'l') {
    for (const Vector& each : in)
      out.push_back(product(block_of(layer) + "attn_output", each));
    return out;
  }
  for (const Vector& each : in)
    out.push_back(feed_forward(layer, each));
  return out;
}

std::vector<Vector> Model::attention(std::uint32_t layer, const std::vector<Vector>& in) const {
  const Facts& f = facts_;
  const std::string block = block_of(layer);
  std::vector<Vector> queries, keys, values, out;
  const auto part = [&](const char* name, std::size_t first, std::size_t count, const Vector& of) {
    if (!f.fused_qkv) return product(block + name, of);
    if (!f.qkv_by_heads) return rows(block + "attn_qkv", of, 0, first, count);
    Vector made;
    for (std::size_t head = 0; head < f.heads; ++head) {
      const Vector own =
          rows(block + "attn_qkv", of, 0, (3 * head + first / count) * f.size, f.size);
      made.insert(made.end(), own.begin(), own.end());
    }
    return made;
  };
  const std::size_t q_width = std::size_t{heads(layer)} * f.size,
                    kv = std::size_t{kv_heads(layer)} * f.size;
  for (std::size_t position = 0; position < in.size(); ++position) {
    Vector q = part("attn_q", 0, q_width, in[position]);
    Vector k = part("attn_k", q_width, kv, in[position]);
    if (f.norms_rows) {
      q = norm(block + "attn_q_norm", q);
      k = norm(block + "attn_k_norm", k);
    }
    const auto norm_heads = [&] {
      const std::size_t own = f.norms_own_heads ? f.size : 0;
      for (std::size_t head = 0; head < heads(layer); ++head)
        norm_part(block + "attn_q_norm", q, head * f.size, f.size, head * own);
      for (std::size_t head = 0; head < kv_heads(layer); ++head)
        norm_part(block + "attn_k_norm", k, head * f.size, f.size, head * own);
    };
    if (f.norms_heads && !f.norms_turned) norm_heads();
    if (f.turns && (f.windowed(layer) || !f.turns_windowed_only)) {
      turn(q, heads(layer), static_cast<std::uint32_t>(position), f.windowed(layer));
      turn(k, kv_heads(layer), static_cast<std::uint32_t>(position), f.windowed(layer));
    }
    if (f.norms_heads && f.norms_turned) norm_heads();
    queries.push_back(std::move(q));
    keys.push_back(std::move(k));
    values.push_back(part("attn_v", q_width + kv, kv, in[position]));
  }
  for (std::size_t position = 0; position < in.size(); ++position) {
    Vector made = attended(queries[position], keys, values, layer, position);
    if (f.gates_attention || f.gates_heads) {
      const Vector gates = product(block + "attn_gate", in[position]);
      for (std::size_t i = 0; i < made.size(); ++i)
        made[i] *= sigmoid(gates[f.gates_heads ? i / f.size : i]);
    }
    out.push_back(product(block + "attn_output", made));
  }
  return out;
}

Vector Model::feed_forward(std::uint32_t layer, const Vector& in) {
  const std::string block = block_of(layer);
  if (has_experts(layer)) return experts(block, in);
  return gated(block, "", in, 0, facts_.fused_gate);
}

std::vector<Vector> Model::embedded(std::span<const std::uint32_t> tokens) const {
  std::vector<Vector> stream;
  for (const std::uint32_t token : tokens) {
    const float* const row =
        tensors_.at("token_embd.weight").values.data() + std::size_t{token} * facts_.width;
    Vector& made = stream.emplace_back(row, row + facts_.width);
    for (double& value : made)
      value *= facts_.embedding_scale;
  }
  return stream;
}

std::vector<Vector> Model::encoded(std::span<const std::uint32_t> tokens) {
  const Facts& f = facts_;
  std::vector<Vector> stream = embedded(tokens);
  for (std::size_t p = 0; p < stream.size(); ++p) {
    for (std::size_t i = 0; i < f.width; ++i) {
      double& value = stream[p][i];
      value += static_cast<double>(tensors_.at("token_types.weight").values[i]);
      if (f.turns) continue;
      value += static_cast<double>(tensors_.at("position_embd.weight").values[p * f.width + i]);
    }
    stream[p] = norm("token_embd_norm", stream[p]);
  }
  for (std::uint32_t layer = 0; layer < f.layers; ++layer) {
    const std::string block = block_of(layer);
    const std::vector<Vector> branches = attention(layer, stream);
    for (std::size_t p = 0; p < stream.size(); ++p) {
      add_to(stream[p], branches[p]);
      stream[p] = norm(block + "attn_output_norm", stream[p]);
      add_to(stream[p], feed_forward(layer, stream[p]));
      stream[p] = norm(block + "layer_output_norm", stream[p]);
    }
  }
  return stream;
}

Vector Model::embedding(std::span<const std::uint32_t> tokens) {
  const Facts& f = facts_;
  std::vector<Vector> stream = is_bert() ? encoded(tokens) : through_layers(tokens);
  if (!is_bert()) {
    for (Vector& each : stream)
      each = norm(f.last_norm, each);
  }
  Vector pooled(f.width);
  for (const Vector& each : stream)
    add_to(pooled, each, 1.0 / static_cast<double>(stream.size()));
  if (f.pooling == 2) pooled = stream.front();
  if (f.pooling == 3) pooled = stream.back();
  return f.dense == 0 ? pooled : product("dense_3", product("dense_2", pooled));
}

std::vector<Vector> Model::through_layers(std::span<const std::uint32_t> tokens) {
  const Facts& f = facts_;
  std::vector<Vector> stream = embedded(tokens);
  for (Vector& each : stream) {
    if (f.norms_embeddings) each = norm("token_embd_norm", each);
  }
  for (std::uint32_t layer = 0; layer < f.layers; ++layer) {
    const std::string block = block_of(layer);
    std::vector<Vector> in = stream;
    for (Vector& each : in) {
      if (norms_before_attention(layer)) each = norm(block + "attn_norm", each);
    }
    std::vector<Vector> branches = mixed(layer, in);
    if (least_gap_ < needed_gap_) return {};
    for (std::size_t p = 0; p < stream.size(); ++p) {
      if (f.norms_after) branches[p] = norm(block + "post_attention_norm", branches[p]);
      add_to(stream[p], branches[p], f.residual_scale);
      if (f.one_branch || hidden(layer) == 0) continue;
      Vector normed = in[p];
      if (!f.parallel)
        normed = f.norms_before ? norm(block + f.feed_forward_norm, stream[p]) : stream[p];
      Vector branch = feed_forward(layer, normed);
      if (least_gap_ < needed_gap_) return {};
      if (f.norms_after) branch = norm(block + "post_ffw_norm", branch);
      add_to(stream[p], branch, f.residual_scale);
    }
  }
  return stream;
}

Vector Model::logits(std::span<const std::uint32_t> tokens) {
  const Facts& f = facts_;
  const std::vector<Vector> stream = through_layers(tokens);
  if (stream.empty()) return {};
  Vector made = product(f.tied ? "token_embd" : "output", norm(f.last_norm, stream.back()));
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] /= f.logit_divisor;
    // product() adds those of a matrix of its own.
    if (f.logit_biases && f.tied)
      made[i] += static_cast<double>(tensors_.at("output.bias").values[i]);
  }
  return made;
}

}  // namespace bulkhead::forward::tiny
