// Makes the dispatches of a gated delta net (gpu/kernels/delta.hpp) for step_program.cpp.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_context.hpp"
#include "worker/forward/step_emitter.hpp"

namespace bulkhead::forward {

// The step for which a recording is made.
struct DeltaPlace {
  std::uint32_t columns = 0;  // at most this many
  std::uint32_t slot = 0;     // of the step's parameters
};

Status add_delta(const StepContext& context, const Activations& activations, const DeltaStep& step,
                 const DeltaPlace& place, StepEmitter& emit);

}  // namespace bulkhead::forward
