// Functions that the sources of graph_in_double.hpp share.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

namespace bulkhead::forward {

inline double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}
inline double softplus_of(double x) {
  return x > 30 ? x : std::log1p(std::exp(x));
}

inline std::vector<double> softmax(std::vector<double> of) {
  const double most = *std::max_element(of.begin(), of.end());
  for (double& each : of)
    each = std::exp(each - most);
  const double sum = std::accumulate(of.begin(), of.end(), 0.0);
  for (double& each : of)
    each /= sum;
  return of;
}

// A root-mean-square norm, or a layer norm. `bias` may be empty.
inline void normalise(std::span<double> entries, const std::vector<double>& gain,
                      const std::vector<double>& bias, double epsilon, bool centred) {
  const auto n = static_cast<double>(entries.size());
  const double mean = centred ? std::accumulate(entries.begin(), entries.end(), 0.0) / n : 0;
  double squares = 0;
  for (const double each : entries)
    squares += (each - mean) * (each - mean);
  const double root = std::sqrt(squares / n + epsilon);
  for (std::size_t i = 0; i < entries.size(); ++i)
    entries[i] = (entries[i] - mean) / root * gain[i] + (bias.empty() ? 0 : bias[i]);
}

}  // namespace bulkhead::forward
