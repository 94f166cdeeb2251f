// Measures each kernel of a recording by device timestamps. The command ring uses this.
#pragma once

#include <cstdint>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/submission.hpp"

namespace bulkhead::gpu {

// Records `build` with a timestamp around each operation, runs it once and waits. Each operation counts from the end
// of the one before it, so overlapping operations are not counted twice, and the sum is the whole submission.
// kUnsupported: the compute queue has no timestamps.
Result<std::vector<KernelTime>> profile_once(CommandPool& pool, std::uint32_t timeout_ms,
                                             const CommandRing::Build& build);

}  // namespace bulkhead::gpu
