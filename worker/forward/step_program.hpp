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
// Builds what follows a step of any shape if outputs are adjusted.
Result<StepProgram> build_adjusting(const StepContext& context, const Activations& activations,
                                    std::uint32_t slot = 0);
// Builds what follows that if an output asks for a draw with top-p and without top-k.
Result<StepProgram> build_cutting(const StepContext& context, const Activations& activations,
                                  std::uint32_t slot = 0);
// Builds what follows that if an output asks for a draw.
Result<StepProgram> build_sampling(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot = 0);
// Builds what follows that if an output asks for log-probabilities. In a step with adjusted outputs it comes before
// these changes, with another token than the chosen one; then build_telling() corrects that behind the draws.
Result<StepProgram> build_logprobs(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot = 0);
Result<StepProgram> build_telling(const StepContext& context, const Activations& activations,
                                  std::uint32_t slot = 0);
// Builds what follows a step if an output asks for its hidden state. It fills Scratch::kOutputNormed with
// [output][embedding] floats.
Result<StepProgram> build_hidden(const StepContext& context, const Activations& activations,
                                 std::uint32_t slot = 0);
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
