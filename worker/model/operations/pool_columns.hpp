// The last column of each sequence becomes what stands for the whole sequence: the mean of its columns, or its first
// column. All columns of a sequence must be in one step (is_encoder()). The other columns stay as they are.
#pragma once

#include <array>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct PoolColumns {
  ActivationIndex values = kAbsent;  // floats
  bool mean = false;                 // false: the first column

  std::array<ActivationIndex, 1> reads() const { return {values}; }
  std::array<ActivationIndex, 1> writes() const { return {values}; }
  std::array<VectorIndex, 0> vectors() const { return {}; }
  bool fits(const auto& /*activations*/) const { return true; }

  // Workgroups: (column, a part of its entries).
  void fill(auto& step) const {
    step.push.values = step.address(values);
    step.push.parameters = step.parameters();
    step.push.width = step.width(values);
    step.push.stride = step.stride(values);
    step.constants.mean = mean ? 1 : 0;
    step.extent.x = step.columns;
    step.extent.y =
        (step.push.width + step.constants.invocations - 1) / step.constants.invocations;
    step.extent.bytes_moved = 8 * step.extent.x * step.push.width;
  }
};

}  // namespace bulkhead::model
