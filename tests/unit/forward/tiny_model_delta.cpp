// Kimi Delta Attention of small transformers (tiny_model.hpp): a matrix of keys times values for each head, whose rows
// decay by factors of their own.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tiny_model_math.hpp"

namespace bulkhead::forward::tiny {

void Model::add_delta(const std::string& block) {
  const Facts& f = facts_;
  const std::uint64_t size = f.delta_size, inner = size * f.heads;
  for (const char* const each : {"q", "k", "v"}) {
    add_matrix(block + "attn_" + each, f.width, inner);
    add(block + "ssm_conv1d_" + each + ".weight", {f.taps, 1, inner}, 0, 0.6);
  }
  add_matrix(block + "ssm_f_a", f.width, size);
  add_matrix(block + "ssm_f_b", size, inner);
  add_matrix(block + "ssm_g_a", f.width, size);
  add_matrix(block + "ssm_g_b", size, inner);
  add_matrix(block + "ssm_beta", f.width, f.heads);
  add(block + "ssm_a", {1, f.heads}, -0.8, 0.2);
  add(block + "ssm_dt.bias", {inner}, 0, 1);
  add(block + "ssm_norm.weight", {size}, 1, 0.3);
  add_matrix(block + "attn_output", inner, f.width);
}

std::vector<Vector> Model::delta(std::uint32_t layer, const std::vector<Vector>& in) const {
  const Facts& f = facts_;
  const std::string block = block_of(layer);
  const std::size_t size = f.delta_size, inner = size * f.heads;
  const auto floats = [&](const char* name, std::size_t i) {
    return static_cast<double>(tensors_.at(block + name).values[i]);
  };
  // What the convolution of one of q, k and v makes at a position, with heads of length 1 if it is not v.
  const auto convolved = [&](const std::string& of, std::size_t position) {
    Vector made(inner);
    for (std::size_t back = 0; back < f.taps && back <= position; ++back) {
      const Vector row = product(block + "attn_" + of, in[position - back]);
      for (std::size_t c = 0; c < inner; ++c)
        made[c] +=
            floats(("ssm_conv1d_" + of + ".weight").c_str(), c * f.taps + f.taps - 1 - back) *
            row[c];
    }
    for (double& each : made)
      each = activated(Function::kSilu, each);
    for (std::size_t head = 0; of != "v" && head < f.heads; ++head) {
      double squares = 0;
      for (std::size_t i = 0; i < size; ++i)
        squares += made[head * size + i] * made[head * size + i];
      for (std::size_t i = 0; i < size; ++i)
        made[head * size + i] /= std::sqrt(squares + kEpsilon);
    }
    return made;
  };
  std::vector<Vector> out;
  Vector state(inner * size);  // [head][key][value]
  for (std::size_t position = 0; position < in.size(); ++position) {
    const Vector q = convolved("q", position), k = convolved("k", position),
                 v = convolved("v", position);
    const Vector paces = product(block + "ssm_f_b", product(block + "ssm_f_a", in[position]));
    const Vector gates = product(block + "ssm_g_b", product(block + "ssm_g_a", in[position]));
    const Vector betas = product(block + "ssm_beta", in[position]);
    Vector read(inner);
    for (std::size_t head = 0; head < f.heads; ++head) {
      double* const own = state.data() + head * size * size;
      Vector known(size);
      for (std::size_t key = 0; key < size; ++key) {
        const std::size_t at = head * size + key;
        const double pace = std::log1p(std::exp(paces[at] + floats("ssm_dt.bias", at)));
        for (std::size_t value = 0; value < size; ++value) {
          own[key * size + value] *= std::exp(floats("ssm_a", head) * pace);
          known[value] += own[key * size + value] * k[at];
        }
      }
      double squares = 0;
      for (std::size_t value = 0; value < size; ++value) {
        const std::size_t at = head * size + value;
        for (std::size_t key = 0; key < size; ++key) {
          double& entry = own[key * size + value];
          entry += k[head * size + key] * sigmoid(betas[head]) * (v[at] - known[value]);
          read[at] += entry * q[head * size + key] / std::sqrt(static_cast<double>(size));
        }
        squares += read[at] * read[at];
      }
      for (std::size_t i = 0; i < size; ++i)
        read[head * size + i] *= floats("ssm_norm.weight", i) * sigmoid(gates[head * size + i]) /
                                 std::sqrt(squares / static_cast<double>(size) + kEpsilon);
    }
    out.push_back(product(block + "attn_output", read));
  }
  return out;
}

}  // namespace bulkhead::forward::tiny
