// A gated short convolution (Liquid AI 2025, arXiv 2511.23404): out = c * (the products b * x, convolved over the last
// `taps` positions). `in` is [b, c, x]. A sequence carries the products of its last taps - 1 positions.
#pragma once

#include <array>
#include <cstdint>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct ShortConvolution {
  ActivationIndex in = kAbsent, out = kAbsent;
  std::uint32_t taps = 0;         // at least 2
  VectorIndex weights = kAbsent;  // [entry][taps]
  StateIndex state = kAbsent;

  std::array<ActivationIndex, 2> reads() const { return {in, kKept}; }
  std::array<ActivationIndex, 2> writes() const { return {out, kKept}; }
  std::array<VectorIndex, 1> vectors() const { return {weights}; }
  bool fits(const auto& activations) const {
    return activations[in].width == 3 * activations[out].width;
  }

  // Workgroups: (column, a part of its entries).
  void fill(auto& step) const {
    step.push.in_address = step.address(in);
    step.push.out_address = step.address(out);
    step.push.taps = step.vector(weights);
    step.push.states = step.states(state);
    step.push.parameters = step.parameters();
    step.push.runs = step.runs();
    step.push.column_runs = step.column_runs();
    step.push.width = step.width(out);
    step.push.in_stride = step.stride(in);
    step.push.out_stride = step.stride(out);
    step.push.padded_width = step.padded_width(out);
    step.push.slot_floats = step.slot_floats(state);
    step.constants.form = step.form(out);
    step.constants.taps = taps;
    step.extent.x = step.columns;
    step.extent.y =
        (step.push.padded_width + step.constants.invocations - 1) / step.constants.invocations;
    step.extent.bytes_moved = 16 * step.extent.x * step.push.width;
  }
};

}  // namespace bulkhead::model
