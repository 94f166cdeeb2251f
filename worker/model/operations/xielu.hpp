// xIELU (Huang and Schlag 2024, arXiv 2411.13010), the function of a feed-forward without a gate:
//   x > 0:   out = positive * x^2 + beta * x
//   x <= 0:  out = negative * (exp(min(x, least)) - 1 - x) + beta * x
#pragma once

#include <array>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct Xielu {
  ActivationIndex in = kAbsent, out = kAbsent;
  float positive = 0, negative = 0, beta = 0, least = 0;

  std::array<ActivationIndex, 1> reads() const { return {in}; }
  std::array<ActivationIndex, 1> writes() const { return {out}; }
  std::array<VectorIndex, 0> vectors() const { return {}; }
  bool fits(const auto& activations) const {
    return activations[in].width == activations[out].width;
  }

  // A workgroup for each column.
  void fill(auto& step) const {
    step.push.in_address = step.address(in);
    step.push.out_address = step.address(out);
    step.push.parameters = step.parameters();
    step.push.width = step.width(in);
    step.push.in_stride = step.stride(in);
    step.push.out_stride = step.stride(out);
    step.push.padded_width = step.padded_width(out);
    step.push.positive = positive;
    step.push.negative = negative;
    step.push.beta = beta;
    step.push.least = least;
    step.constants.form = step.form(out);
    step.extent.x = step.columns;
    step.extent.bytes_moved = 8 * step.extent.x * step.push.width;
  }
};

}  // namespace bulkhead::model
