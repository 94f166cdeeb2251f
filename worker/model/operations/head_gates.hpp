// out = values * sigmoid(gates), with one gate for all entries of a head.
#pragma once

#include <array>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct HeadGates {
  ActivationIndex gates = kAbsent;  // floats, one for each head
  ActivationIndex values = kAbsent, out = kAbsent;
  std::uint32_t head_size = 1;

  std::array<ActivationIndex, 2> reads() const { return {gates, values}; }
  std::array<ActivationIndex, 1> writes() const { return {out}; }
  std::array<VectorIndex, 0> vectors() const { return {}; }
  bool fits(const auto& activations) const {
    return activations[values].width == activations[out].width &&
           activations[values].width <= activations[gates].width * head_size;
  }

  // A workgroup for each column.
  void fill(auto& step) const {
    step.push.gates = step.address(gates);
    step.push.values = step.address(values);
    step.push.out_address = step.address(out);
    step.push.parameters = step.parameters();
    step.push.width = step.width(values);
    step.push.gate_stride = step.stride(gates);
    step.push.in_stride = step.stride(values);
    step.push.out_stride = step.stride(out);
    step.push.padded_width = step.padded_width(out);
    step.push.head_size = head_size;
    step.constants.form = step.form(out);
    step.extent.x = step.columns;
    step.extent.bytes_moved = 8 * step.extent.x * step.push.width;
  }
};

}  // namespace bulkhead::model
