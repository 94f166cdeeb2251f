// out = max(in, 0)^2 (So et al. 2021, arXiv 2109.08668), which feed-forwards without a gate have as their function.
#pragma once

#include <array>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct SquaredRelu {
  ActivationIndex in = kAbsent, out = kAbsent;

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
    step.constants.form = step.form(out);
    step.extent.x = step.columns;
    step.extent.bytes_moved = 8 * step.extent.x * step.push.width;
  }
};

}  // namespace bulkhead::model
