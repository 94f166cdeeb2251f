// Cosines and sines of rotary positions. A float32 angle loses digits at long positions, so the
// tables are made in double and an angle is the sum of two: position % 256 and position / 256,
// joined by the addition theorem on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/graph.hpp"

namespace bulkhead::forward {

struct RopeTable {
  std::vector<float> fine;    // [256][pairs][cos, sin], times the rotation's magnitude
  std::vector<float> coarse;  // [context / 256 + 1][pairs][cos, sin]
};
// For positions below `context`. The context also decides between the rotation's two sets of
// frequencies.
RopeTable make_rope_table(const model::Rope& rope, std::uint32_t context);

// Sizes of the tables.
std::uint64_t rope_fine_floats(const model::Rope& rope);
std::uint64_t rope_coarse_floats(const model::Rope& rope, std::uint32_t context);

}  // namespace bulkhead::forward
