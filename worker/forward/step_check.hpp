// The engine's promises about a step, checked: an address on the device must never come from a bad
// index.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"

namespace bulkhead::forward {

// `outputs_before`: of the step submitted before, from which columns may take their tokens.
// kInvalidArgument says what is wrong.
Status check_step(const engine::Step& step, const engine::ExecutorLimits& limits,
                  std::uint32_t outputs_before);

}  // namespace bulkhead::forward
