// Shared by the benchmarks that run a model: the device's own read speed, and the times of a step's kernels compared
// with it.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"

namespace bulkhead::bench {

// Returns how many bytes per second a kernel that only reads gets from the device's memory: the median of several
// passes over a buffer far larger than any cache. kUnsupported: the device has no timestamps.
Result<double> read_bandwidth(gpu::Device& device);

// Prints one line for each kernel, the longest first, and returns the same as JSON. Shares refer to all kernels
// together; percentages of the limit refer to `bandwidth` (bytes per second; 0: unknown).
nlohmann::json kernel_table(std::vector<gpu::KernelTime> times, double bandwidth);

}  // namespace bulkhead::bench
