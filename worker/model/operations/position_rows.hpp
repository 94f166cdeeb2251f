// Adds to each column the row of a table for its position, and a vector that all columns share: the position and type
// embeddings of BERT (Devlin et al. 2018, arXiv 1810.04805).
#pragma once

#include <array>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct PositionRows {
  ActivationIndex to = kAbsent;  // floats
  VectorIndex shared = kAbsent;  // as wide as `to`; kAbsent: none
  VectorIndex table = kAbsent;   // [position][width of `to`]; kAbsent: none

  std::array<ActivationIndex, 1> reads() const { return {to}; }
  std::array<ActivationIndex, 1> writes() const { return {to}; }
  std::array<VectorIndex, 2> vectors() const { return {shared, table}; }
  bool fits(const auto& /*activations*/) const { return true; }

  // A workgroup for each column.
  void fill(auto& step) const {
    step.push.values = step.address(to);
    step.push.shared_row = step.vector(shared);
    step.push.table = step.vector(table);
    step.push.parameters = step.parameters();
    step.push.width = step.width(to);
    step.push.stride = step.stride(to);
    step.extent.x = step.columns;
    step.extent.bytes_moved = 12 * step.extent.x * step.push.width;
  }
};

}  // namespace bulkhead::model
