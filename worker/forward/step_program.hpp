// The forward pass as a list of dispatches: an interpreter of the model's plan (model_plan.hpp).
//
// A program serves every step of its shape: what differs from step to step (tokens, positions, page
// tables, how many columns there really are) lies in the step's parameters, which kernels read. A
// program is made for a slot.
#pragma once

#include <cstdint>
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
// What comes behind a step of any shape where an output asks for a draw.
Result<StepProgram> build_sampling(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot = 0);
// And behind that where an output asks for log-probabilities.
Result<StepProgram> build_logprobs(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot = 0);
// What comes behind a step where an output asks for its hidden state. It fills
// Scratch::kOutputNormed with [output][embedding] floats.
Result<StepProgram> build_hidden(const StepContext& context, const Activations& activations,
                                 std::uint32_t slot = 0);
// The kernels that `build`, a call of one of the above, would make: behind those that are in `specs`.
template <typename Build>
Status list_kernels(StepContext& context, std::vector<gpu::KernelSpec>& specs, Build build) {
  context.wanted = &specs;
  const Result<StepProgram> listed = build();
  context.wanted = nullptr;
  return listed.ok() ? Status() : Status(listed.error());
}
void record_step(const StepContext& context, const StepProgram& program, gpu::Recorder& recorder);

}  // namespace bulkhead::forward
