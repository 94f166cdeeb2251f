// Checks what the engine promises about a step, so that no kernel computes an address from a bad index.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"

namespace bulkhead::forward {

// `outputs_before` is the number of outputs of the step submitted before; columns may take their tokens from these.
// kInvalidArgument says what is wrong.
Status check_step(const engine::Step& step, const engine::ExecutorLimits& limits,
                  std::uint32_t outputs_before);

}  // namespace bulkhead::forward
