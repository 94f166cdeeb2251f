// The shapes for which steps are recorded: upper bounds on a step's columns and outputs.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace bulkhead::forward {

// On which side of the position where attention's kernels change (attention_borders()) all columns of a step lie.
enum class Positions : std::uint8_t { kAny, kBefore, kBehind };

struct StepShape {
  std::uint32_t columns = 1;
  std::uint32_t outputs = 0;
  // Whether the step leaves the choice of tokens to what follows it, because outputs are adjusted.
  bool chooses_later = false;
  // The step has no kernels for other positions.
  Positions positions = Positions::kAny;
  auto operator<=>(const StepShape&) const = default;
};
// Returns every shape for which steps are made, from narrow to wide. The last shape takes any step. A shape has as
// many outputs as its columns may ask for; workgroups beyond the actual counts end at once. `most` is the ring's
// size. The function returns no more shapes than that, so that the ring keeps the recordings of all shapes. To stay
// within `most`, it leaves out the second widest shape, then the next narrower one, and so on, but no shape of 32
// columns or fewer. `mixed` is the width of a step that has prompts beside sequences that generate. If `mixed` is
// less than max_columns, one shape has that width. Up to there each shape has twice the columns of the one before,
// because unused columns cost most in a step of sequences that generate.
std::vector<StepShape> step_shapes(std::uint32_t max_columns, std::uint32_t mixed,
                                   std::uint32_t max_outputs, std::uint32_t most);
// Returns the narrowest shape that serves this many columns and outputs.
StepShape shape_for(std::span<const StepShape> shapes, std::uint32_t columns,
                    std::uint32_t outputs);

}  // namespace bulkhead::forward
