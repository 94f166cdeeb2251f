// Functions that the sources of tiny_model.hpp share.
#pragma once

#include <cmath>
#include <numbers>
#include <string>

#include "tiny_model.hpp"

namespace bulkhead::forward::tiny {

inline constexpr double kEpsilon = 1e-5;

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
inline double activated(Function function, double x) {
  switch (function) {
    case Function::kSilu:
      return x * sigmoid(x);
    case Function::kGelu:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Function::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Function::kXielu:
      break;  // it needs a layer's numbers
  }
  return 0;
}
inline std::string block_of(std::uint32_t layer) {
  return "blk." + std::to_string(layer) + ".";
}
inline void add_to(Vector& sum, const Vector& more, double scale = 1) {
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] += scale * more[i];
}

}  // namespace bulkhead::forward::tiny
