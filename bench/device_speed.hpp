// What the benchmarks that run a model share: the device's own read speed, and a step's kernels
// beside it.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"

namespace bulkhead::bench {

// Bytes in a second that a kernel which only reads gets out of the device's memory: the median of
// several passes over a buffer far larger than any cache. kUnsupported: the device has no
// timestamps.
Result<double> read_bandwidth(gpu::Device& device);

// Prints one line for each kernel, the longest first, and returns the same as JSON. Shares are of
// all kernels together; `bandwidth` (bytes in a second; 0: unknown) is what percentages of the
// limit are of.
nlohmann::json kernel_table(std::vector<gpu::KernelTime> times, double bandwidth);

}  // namespace bulkhead::bench
