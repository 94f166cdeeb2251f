// The norm after the last layer, which a step and the recording of hidden states share.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "gpu/kernels/kernels.hpp"
#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_context.hpp"
#include "worker/forward/step_emitter.hpp"

namespace bulkhead::forward {

// The layout of rows in Scratch::kOutputNormed. kForLogits: as the product of logits reads them (the mapping's
// InputForm). kHidden: [output][embedding] floats in every mapping.
enum class OutputRows { kForLogits, kHidden };

// What greedy.comp gets for a slot's step; without chained kernels' fields.
gpu::kernels::GreedyPush greedy_push(const StepContext& context, const Activations& activations,
                                     std::uint32_t slot);

struct NormedOutputs {
  std::uint32_t slot = 0;  // the slot of the step; its parameters list the outputs' columns
  std::uint32_t most = 0;  // the most outputs of the step
};

// Appends the kernel that normalises the residual stream of the outputs' columns.
Status add_output_norm(const StepContext& context, const Activations& activations, OutputRows rows,
                       NormedOutputs outputs, StepEmitter& emit);

}  // namespace bulkhead::forward
