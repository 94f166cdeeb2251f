// The forward pass as a list of dispatches. It interprets the model's plan (model_plan.hpp).
//
// A program serves every step of its shape: whatever differs from step to step (tokens, positions, page tables, the
// actual number of columns) is in the step's parameters, which kernels read. A program is made for one slot.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_context.hpp"
#include "worker/forward/step_emitter.hpp"
#include "worker/forward/step_shapes.hpp"

namespace bulkhead::forward {

Result<StepProgram> build_step(const StepContext& context, const Activations& activations,
                               StepShape shape, std::uint32_t slot = 0);
// What a step's outputs ask for besides the best token. All of it follows the step in one recording.
struct OutputWishes {
  bool adjusts = false;  // some outputs are adjusted: the step was one that chooses later
  bool edits = false;    // some of these may have edits
  bool cuts = false;     // there are draws with top-p and without top-k
  bool draws = false;
  bool logprobs = false;
  bool hidden = false;  // Scratch::kHidden gets the slot's hidden states
  auto operator<=>(const OutputWishes&) const = default;
};
// Builds what follows a step of any shape. If outputs are adjusted, it begins with the choice of all outputs' tokens.
Result<StepProgram> build_followers(const StepContext& context, const Activations& activations,
                                    const OutputWishes& wishes, std::uint32_t slot = 0);
// Appends the kernels that `build`, a call of one of the functions above, would make to `specs`.
template <typename Build>
Status list_kernels(StepContext& context, std::vector<gpu::KernelSpec>& specs, Build build) {
  context.wanted = &specs;
  const Result<StepProgram> listed = build();
  context.wanted = nullptr;
  return listed.ok() ? Status() : Status(listed.error());
}
// Returns the kernels of all shapes' programs. Those of wide shapes come first, because they take longer to compile.
Result<std::vector<gpu::KernelSpec>> kernels_needed(StepContext& context,
                                                    std::span<const StepShape> shapes);
void record_step(const StepContext& context, const StepProgram& program, gpu::Recorder& recorder);

}  // namespace bulkhead::forward
