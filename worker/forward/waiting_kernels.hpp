// Narrow steps whose workgroups wait for each other instead of for barriers, where the settings, the
// device and the model allow it: all layers in one dispatch (gpu/kernels/persistent.hpp), or kernels
// in a chain (gpu/kernels/chain.glsl).
#pragma once

#include <algorithm>

#include "config/base/error.hpp"
#include "config/settings.hpp"
#include "gpu/optimizations.hpp"
#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

// Once the weights' types are known, before any program is built: context.persistent, context.chain.
void want_waiting_kernels(StepContext& context, const config::GpuOptimizations& settings,
                          const gpu::Optimizations& parts);
// Their memory, and how many workgroups may wait for each other. After the kernels are compiled.
Status prepare_waiting_kernels(StepContext& context, gpu::Optimizations& parts);

// From here on barriers stand between dispatches.
inline void without_waiting_kernels(StepContext& context) {
  context.chain.columns = context.persistent.columns = 0;
}
inline bool may_wait(const StepContext& context, StepShape shape) {
  return shape.columns <= std::max(context.chain.columns, context.persistent.columns);
}
inline bool any_waits(const StepContext& context) {
  return context.chain.columns + context.persistent.columns > 0;
}

}  // namespace bulkhead::forward
