// Layer norms (Ba et al. 2016, arXiv 1607.06450) of heads in place, each with gains of its own and no bias.
#pragma once

#include <array>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct HeadNorms {
  ActivationIndex values =
      kAbsent;  // floats; the heads lie one after another from entry `first` on
  std::uint32_t first = 0, heads = 0, size = 0;
  VectorIndex gains = kAbsent;  // [head][size]
  float epsilon = 0;

  std::array<ActivationIndex, 1> reads() const { return {values}; }
  std::array<ActivationIndex, 1> writes() const { return {values}; }
  std::array<VectorIndex, 1> vectors() const { return {gains}; }
  bool fits(const auto& activations) const {
    return first + heads * size <= activations[values].width;
  }

  // Workgroups: (column, head).
  void fill(auto& step) const {
    step.push.values = step.address(values);
    step.push.gains = step.vector(gains);
    step.push.parameters = step.parameters();
    step.push.first = first;
    step.push.size = size;
    step.push.stride = step.stride(values);
    step.push.epsilon = epsilon;
    step.extent.x = step.columns;
    step.extent.y = heads;
    step.extent.bytes_moved = 8ULL * step.extent.x * heads * size;
  }
};

}  // namespace bulkhead::model
