// The shapes that steps are recorded for: upper bounds on a step's columns and outputs.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace bulkhead::forward {

struct StepShape {
  std::uint32_t columns = 1;
  std::uint32_t outputs = 0;
  auto operator<=>(const StepShape&) const = default;
};
// Every shape that steps are made for, from narrow to wide. There are few enough shapes that all of
// their recordings are kept from the warm-up on, whatever mixture of prompts and decoding comes: if
// there were more than `most`, the ring's size, wide shapes are left out (never narrow ones). The last
// shape takes any step. A shape has as many outputs as its columns may ask for; workgroups past the
// real counts end at once. `mixed`, if less than max_columns, gets a shape of its own: it is the width
// of a step that has prompts beside sequences that generate.
std::vector<StepShape> step_shapes(std::uint32_t max_columns, std::uint32_t mixed,
                                   std::uint32_t max_outputs, std::uint32_t most);
// The narrowest that serves so many columns and outputs.
StepShape shape_for(std::span<const StepShape> shapes, std::uint32_t columns,
                    std::uint32_t outputs);

}  // namespace bulkhead::forward
