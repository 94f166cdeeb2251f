// The base of an operation that applies a function to each entry of an activation, such as the function of a
// feed-forward without a gate. operations/README.md says what an operation consists of; its kernel must have the fields
// and constants that fill() sets.
#pragma once

#include <array>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct Entrywise {
  ActivationIndex in = kAbsent, out = kAbsent;

  std::array<ActivationIndex, 1> reads() const { return {in}; }
  std::array<ActivationIndex, 1> writes() const { return {out}; }
  std::array<VectorIndex, 0> vectors() const { return {}; }
  bool fits(const auto& activations) const {
    return activations[in].width == activations[out].width;
  }

  // A workgroup for each column. An operation whose function has parameters has a fill() of its own, which also fills
  // those.
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
