// Cosines and sines of rotary positions. A float32 angle loses digits at long positions. So the tables are computed
// in double, and an angle is the sum of the angles of position % 256 and position / 256, which the device combines by
// the addition theorem.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/graph.hpp"

namespace bulkhead::forward {

struct RopeTable {
  std::vector<float> fine;    // [256][pairs][cos, sin], multiplied by the rotation's magnitude
  std::vector<float> coarse;  // [context / 256 + 1][pairs][cos, sin]
};
// Makes the table for positions below `context`. The context also selects one of the rotation's two sets of
// frequencies.
RopeTable make_rope_table(const model::Rope& rope, std::uint32_t context);

// Return the sizes of the tables.
std::uint64_t rope_fine_floats(const model::Rope& rope);
std::uint64_t rope_coarse_floats(const model::Rope& rope, std::uint32_t context);

}  // namespace bulkhead::forward
