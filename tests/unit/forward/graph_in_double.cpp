#include "graph_in_double.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <variant>

#include "graph_in_double_math.hpp"
#include "reference.hpp"

namespace bulkhead::forward {

using model::kAbsent;

const std::vector<double>& GraphInDouble::tensor(model::TensorIndex index) const {
  auto& made = tensors_[index];
  if (!made.empty()) return made;
  const model::TensorInfo* const info = file_.find_tensor(graph_.tensors[index].name);
  const std::size_t row_bytes = info->row_bytes(), width = info->ne[0];
  for (std::size_t row = 0; row < info->rows(); ++row) {
    const auto values =
        reference::dequantize(info->type, info->data.subspan(row * row_bytes, row_bytes), width);
    made.insert(made.end(), values.begin(), values.end());
  }
  return made;
}

GraphInDouble::Vector GraphInDouble::vector(model::VectorIndex index) const {
  Vector made;
  const model::VectorRow& row = graph_.vectors[index];
  for (const model::VectorRow::Part& part : row.parts) {
    const std::vector<double>& all = tensor(part.tensor);
    const std::size_t entries = part.entries != 0 ? part.entries : all.size();
    for (std::size_t i = 0; i < entries; ++i)
      made.push_back(all[part.first + i] * static_cast<double>(row.scale));
  }
  return made;
}

GraphInDouble::Vector GraphInDouble::rows(const model::MatrixPart& part, const double* in,
                                          std::size_t slice) const {
  const model::TensorRow& shape = graph_.tensors[part.tensor];
  const std::vector<double>& all = tensor(part.tensor);
  Vector made(part.rows);
  for (std::size_t row = 0; row < part.rows; ++row) {
    const double* const weights =
        all.data() + (slice * shape.rows + part.first_row + row) * shape.width;
    made[row] = std::inner_product(weights, weights + shape.width, in, 0.0);
  }
  return made;
}

GraphInDouble::Vector GraphInDouble::columns(const model::MatrixPart& part,
                                             const double* in) const {
  const std::size_t width = graph_.tensors[part.tensor].width;
  const double* const weights = tensor(part.tensor).data() + part.first_row * width;
  Vector made(width);
  for (std::size_t i = 0; i < part.rows * width; ++i)
    made[i % width] += weights[i] * in[i / width];
  return made;
}

GraphInDouble::Vector GraphInDouble::token_row(const model::MatrixPart& rows, std::uint32_t token,
                                               double scale) const {
  const std::size_t width = graph_.tensors[rows.tensor].width;
  const double* const from = tensor(rows.tensor).data() + (rows.first_row + token) * width;
  Vector made(from, from + width);
  for (double& value : made)
    value *= scale;
  return made;
}

void GraphInDouble::read(std::span<const std::uint32_t> tokens,
                         std::span<const std::vector<float>> states) {
  values_.assign(graph_.activations.size(), {});
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const model::Activation& shape = graph_.activations[i];
    values_[i].assign(tokens.size(), Vector(std::size_t{shape.width} * shape.per_column));
  }
  waiting_q_.assign(tokens.size(), {});
  q_scales_.assign(tokens.size(), 1);
  kept_.assign(graph_.kv.size(), std::vector<Kept>(tokens.size()));
  least_gap_ = 1e9;
  for (std::size_t p = 0; p < tokens.size(); ++p) {
    values_[model::kStream][p] = graph_.start == model::StreamStart::kHidden
                                     ? Vector(states[p].begin(), states[p].end())
                                     : token_row(graph_.embedding_rows, tokens[p],
                                                 static_cast<double>(graph_.embedding_scale));
    for (const model::Lookup& lookup : graph_.lookups)
      values_[lookup.out][p] = token_row(lookup.rows, tokens[p], static_cast<double>(lookup.scale));
  }
  for (const model::Layer& layer : graph_.layers) {
    for (const model::Operation& operation : layer.operations)
      std::visit([this](const auto& each) { run(each); }, operation);
  }
}

GraphInDouble::Vector GraphInDouble::hidden(std::size_t position) const {
  Vector made = values_[model::kStream][position];
  if (graph_.output_gain == kAbsent) return made;
  const Vector gain = vector(graph_.output_gain);
  const Vector bias = graph_.output_bias == kAbsent ? Vector() : vector(graph_.output_bias);
  normalise(std::span(made), gain, bias, static_cast<double>(graph_.output_epsilon),
            graph_.output_centred);
  return made;
}

GraphInDouble::Vector GraphInDouble::logits(std::size_t position) const {
  Vector made = rows(graph_.output_rows, hidden(position).data());
  const Vector bias = graph_.logit_bias == kAbsent ? Vector() : vector(graph_.logit_bias);
  for (std::size_t i = 0; i < bias.size(); ++i)
    made[i] += bias[i];
  const auto cap = static_cast<double>(graph_.logit_cap);
  for (double& logit : made)
    logit = cap == 0 ? logit : cap * std::tanh(logit / cap);
  return made;
}

void GraphInDouble::run(const model::Norm& norm) {
  const Vector gain = vector(norm.gain);
  const Vector bias = norm.bias == kAbsent ? Vector() : vector(norm.bias);
  for (std::size_t p = 0; p < values_[norm.in].size(); ++p) {
    const auto from = values_[norm.in][p].begin() + norm.first;
    Vector made(from, from + norm.width);
    normalise(std::span(made), gain, bias, static_cast<double>(norm.epsilon), norm.centred);
    double* const to = values_[norm.out][p].data() + norm.first + norm.shift;
    for (std::size_t i = 0; i < made.size(); ++i)
      to[i] = made[i] + (norm.adds ? to[i] : 0);
  }
}

void GraphInDouble::run(const model::Copy& copy) {
  const double factor = copy.factor == kAbsent ? 1 : vector(copy.factor)[0];
  const model::Activation &in = graph_.activations[copy.in], &out = graph_.activations[copy.out];
  const std::size_t parts = out.per_column / in.per_column, of_part = in.width / parts;
  for (std::size_t p = 0; p < values_[copy.in].size(); ++p) {
    const Vector from = values_[copy.in][p];
    for (std::size_t i = 0; i < std::size_t{out.width} * out.per_column; ++i)
      values_[copy.out][p][i] =
          factor * (parts == 1 ? from[i] : from[i / out.width * of_part + i % out.width]);
  }
}

void GraphInDouble::run(const model::Product& product) {
  const Vector bias = product.bias == kAbsent ? Vector() : vector(product.bias);
  for (std::size_t p = 0; p < values_[product.in].size(); ++p) {
    std::size_t at = 0;
    for (const model::MatrixPart& part : product.parts) {
      for (const double value : rows(part, values_[product.in][p].data())) {
        double& to = values_[product.out][p][product.first_row + at];
        to = value + (bias.empty() ? 0 : bias[at]) + (product.adds ? to : 0);
        ++at;
      }
    }
  }
}

void GraphInDouble::run(const model::SliceProduct& product) {
  const std::size_t width = graph_.activations[product.in].width;
  for (std::size_t p = 0; p < values_[product.in].size(); ++p) {
    for (std::size_t slice = 0; slice < product.slices; ++slice) {
      model::MatrixPart part = product.rows;
      part.first_row += slice * product.stride;
      const double* const in = values_[product.in][p].data() + slice * width;
      const Vector made = product.transposed ? columns(part, in) : rows(part, in);
      std::copy(made.begin(), made.end(),
                values_[product.out][p].begin() + static_cast<std::ptrdiff_t>(slice * made.size()));
    }
  }
}

// The entries that rotate are the first of them.
void GraphInDouble::turn(double* entries, model::RopeIndex index, std::size_t position) const {
  if (index == kAbsent) return;
  const model::Rope& rope = graph_.ropes[index];
  const bool is_long = !rope.long_frequencies.empty() && graph_.context > rope.short_context;
  const std::size_t pairs = rope.pairs();
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle =
        static_cast<double>(position) * (is_long ? rope.long_frequencies[i] : rope.frequencies[i]);
    const double c = std::cos(angle) * rope.magnitude, s = std::sin(angle) * rope.magnitude;
    const bool halves = rope.pairing == model::RopePairing::kHalves;
    double &a = entries[halves ? i : 2 * i], &b = entries[halves ? i + pairs : 2 * i + 1];
    const double first = a * c - b * s;
    b = a * s + b * c;
    a = first;
  }
}

namespace {

// Returns the factor by which queries are larger at a position.
double growth(float temperature, std::uint32_t span, std::size_t position) {
  return 1 + static_cast<double>(temperature) *
                 std::log(1 + static_cast<double>(position / std::max(span, 1U)));
}

}  // namespace

void GraphInDouble::rotate_heads(const model::Rotate& rotate, Vector& qkv,
                                 std::size_t position) const {
  const model::HeadShape& heads = rotate.heads;
  const std::size_t all = heads.heads + (rotate.stores_nothing ? 0 : 2 * heads.kv_heads);
  const auto epsilon = static_cast<double>(rotate.epsilon);
  for (std::size_t head = 0; head < all; ++head) {
    const std::span entries(qkv.data() + head * heads.size, heads.size);
    if (head >= std::size_t{heads.heads} + heads.kv_heads) {
      if (rotate.norms_values) normalise(entries, Vector(heads.size, 1.0), {}, epsilon, false);
      continue;
    }
    const model::VectorIndex gain = head < heads.heads ? rotate.q_gain : rotate.k_gain;
    const auto norm = [&] {
      if (gain != kAbsent) normalise(entries, vector(gain), {}, epsilon, false);
    };
    if (!rotate.norms_turned) norm();
    turn(entries.data(), rotate.rope, position);
    if (rotate.norms_turned) norm();
  }
}

void GraphInDouble::run(const model::Rotate& rotate) {
  const model::HeadShape& heads = rotate.heads;
  const Vector bias = rotate.bias == kAbsent ? Vector() : vector(rotate.bias);
  const double scale = rotate.scale != 0 ? rotate.scale : 1 / std::sqrt(1.0 * heads.size);
  for (std::size_t p = 0; p < values_[rotate.qkv].size(); ++p) {
    Vector qkv = values_[rotate.qkv][p];
    for (std::size_t i = 0; i < bias.size(); ++i)
      qkv[i] += bias[i];
    rotate_heads(rotate, qkv, p);
    const auto keys = qkv.begin() + heads.query_width();
    waiting_q_[p].assign(qkv.begin(), keys);
    q_scales_[p] = scale * growth(rotate.temperature, rotate.temperature_span, p);
    if (rotate.stores_nothing) continue;
    kept_[rotate.kv][p] = {Vector(keys, keys + heads.kv_width()),
                           Vector(keys + heads.kv_width(), keys + 2 * heads.kv_width())};
  }
}

void GraphInDouble::run(const model::RotateLatent& rotate) {
  const std::size_t latent = graph_.kv[rotate.kv].value_entries,
                    turning = rotate.heads.size - latent;
  const Vector gain = vector(rotate.gain);
  for (std::size_t p = 0; p < values_[rotate.q].size(); ++p) {
    const Vector& q = values_[rotate.q][p];
    const std::size_t of_head = q.size() / rotate.heads.heads;
    waiting_q_[p].clear();
    for (std::size_t head = 0; head < rotate.heads.heads; ++head) {
      const double* const absorbed = values_[rotate.absorbed][p].data() + head * latent;
      Vector made(absorbed, absorbed + latent);
      const double* const last = q.data() + (head + 1) * of_head - turning;
      made.insert(made.end(), last, last + turning);
      turn(made.data() + latent, rotate.rope, p);
      waiting_q_[p].insert(waiting_q_[p].end(), made.begin(), made.end());
    }
    const double* const from = values_[rotate.row][p].data() + rotate.first;
    Vector row(from, from + rotate.heads.size);
    normalise(std::span(row).first(latent), gain, {}, static_cast<double>(rotate.epsilon), false);
    turn(row.data() + latent, rotate.rope, p);
    kept_[rotate.kv][p] = {row, row};
    q_scales_[p] = (rotate.scale != 0 ? rotate.scale : 1 / std::sqrt(1.0 * rotate.heads.size)) *
                   growth(rotate.temperature, rotate.temperature_span, p);
  }
}

std::size_t GraphInDouble::visible_from(const model::ScoreRules& rules, std::size_t p) const {
  return rules.window != 0 && p >= rules.window ? p + 1 - rules.window : 0;
}
std::size_t GraphInDouble::visible_to(const model::ScoreRules& rules, std::size_t p) const {
  if (!rules.both_ways) return p + 1;
  const std::size_t all = waiting_q_.size();
  return rules.window == 0 ? all : std::min(all, p + rules.window);
}

GraphInDouble::Vector GraphInDouble::attended(const model::Attend& attend,
                                              std::size_t position) const {
  constexpr double kLog2E = 1.4426950408889634;
  const model::KvStore& store = graph_.kv[attend.kv];
  const std::size_t size = attend.heads.size,
                    of_value = store.value_entries != 0 ? store.value_entries : size,
                    group = attend.heads.heads / attend.heads.kv_heads;
  const auto cap = static_cast<double>(attend.rules.soft_cap);
  const Vector sinks = attend.rules.sinks == kAbsent ? Vector() : vector(attend.rules.sinks);
  const std::size_t first = visible_from(attend.rules, position),
                    end = visible_to(attend.rules, position);
  Vector made(attend.heads.heads * of_value);
  for (std::size_t head = 0; head < attend.heads.heads; ++head) {
    const double* const q = waiting_q_[position].data() + head * size;
    Vector scores;
    for (std::size_t p = first; p < end; ++p) {
      const double* const key = kept_[attend.kv][p].key.data() + head / group * size;
      const double score = std::inner_product(q, q + size, key, 0.0) * q_scales_[position];
      scores.push_back(cap == 0 ? score : cap * std::tanh(score / cap));
    }
    if (!sinks.empty()) scores.push_back(sinks[head] / kLog2E);
    const Vector shares = softmax(scores);
    for (std::size_t p = first; p < end; ++p) {
      const double* const value =
          kept_[attend.kv][p].value.data() + head / group * (store.value_entries != 0 ? 0 : size);
      for (std::size_t i = 0; i < of_value; ++i)
        made[head * of_value + i] += shares[p - first] * value[i];
    }
  }
  return made;
}

void GraphInDouble::run(const model::Attend& attend) {
  for (std::size_t p = 0; p < waiting_q_.size(); ++p) {
    const Vector made = attended(attend, p);
    std::copy(made.begin(), made.end(), values_[attend.out][p].begin());
  }
}

}  // namespace bulkhead::forward
