// Cosines and sines of rotary positions. A float32 angle loses digits at long positions, so the
// tables are made in double and an angle is the sum of two: position % 256 and position / 256,
// joined by the addition theorem on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/model/model_config.hpp"

namespace bulkhead::forward {

struct RopeTable {
  std::uint32_t pairs = 0;
  std::vector<float> fine;    // [256][pairs][cos, sin]
  std::vector<float> coarse;  // [context / 256 + 1][pairs][cos, sin]
};
// `factors`: rope_freqs.weight, one divisor for each pair; empty: none.
RopeTable make_rope_table(const model::ModelConfig& config, std::span<const float> factors,
                          std::uint32_t context);

}  // namespace bulkhead::forward
