// The norm behind the last layer, which the step and the recording of hidden states have in common.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_context.hpp"
#include "worker/forward/step_emitter.hpp"

namespace bulkhead::forward {

// How the rows lie in Scratch::kOutputNormed. kForLogits: as the product of logits reads them
// (InputForm of the mapping). kHidden: [output][embedding] floats, under every mapping.
enum class OutputRows { kForLogits, kHidden };

struct NormedOutputs {
  std::uint32_t slot = 0;  // of the step, whose parameters list the outputs' columns
  std::uint32_t most = 0;  // outputs that the step may have
};

// Appends the kernel that norms the residual stream of the outputs' columns.
Status add_output_norm(const StepContext& context, const Activations& activations, OutputRows rows,
                       NormedOutputs outputs, StepEmitter& emit);

}  // namespace bulkhead::forward
