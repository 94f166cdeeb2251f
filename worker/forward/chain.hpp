// Chained steps: the kernels of a narrow step wait for each other instead of for barriers (gpu/kernels/chain.glsl),
// if the settings, the device and the model allow it.
#pragma once

#include "config/base/error.hpp"
#include "config/settings.hpp"
#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

// Decides whether narrow steps are chained, by setting context.chain.columns. Call it once the weights' types are
// known and before any program is built.
void want_chain(StepContext& context, config::ChainedKernels setting);
// Allocates the counts that the links of a chain wait on.
Status prepare_chain(StepContext& context);

// Ends chaining: from now on steps have barriers between dispatches. Programs must be built again.
inline void give_up_chain(StepContext& context) {
  context.chain.columns = 0;
}
inline bool chained(const StepContext& context, StepShape shape) {
  return shape.columns <= context.chain.columns;
}

}  // namespace bulkhead::forward
