// The decays of Kimi Delta Attention (Kimi team 2025, arXiv 2510.26692), in place of what they are made of:
// exp(rate of the head * softplus(x + bias)), for entries of each column from `first` on.
#pragma once

#include <array>
#include <cstdint>

#include "worker/model/graph_places.hpp"

namespace bulkhead::model {

struct ChannelDecays {
  ActivationIndex values = kAbsent;  // floats
  std::uint32_t first = 0, heads = 0;
  std::uint32_t size = 0;       // entries of a head
  VectorIndex rates = kAbsent;  // for each head; they are negative
  VectorIndex bias = kAbsent;   // [head][entry]

  std::array<ActivationIndex, 1> reads() const { return {values}; }
  std::array<ActivationIndex, 1> writes() const { return {values}; }
  std::array<VectorIndex, 2> vectors() const { return {rates, bias}; }
  bool fits(const auto& activations) const {
    return first + std::uint64_t{heads} * size <= activations[values].width;
  }

  // A workgroup for each column.
  void fill(auto& step) const {
    step.push.values = step.address(values);
    step.push.rates = step.vector(rates);
    step.push.bias = step.vector(bias);
    step.push.parameters = step.parameters();
    step.push.first = first;
    step.push.width = heads * size;
    step.push.size = size;
    step.push.stride = step.stride(values);
    step.extent.x = step.columns;
    step.extent.bytes_moved = 12 * step.extent.x * step.push.width;
  }
};

}  // namespace bulkhead::model
