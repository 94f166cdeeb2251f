// Reports how long loading took, and how long a step's kernels take, for the log and the worker's
// figures.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "config/base/elapsed.hpp"
#include "config/base/worker_figures.hpp"
#include "gpu/command_ring.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/weight_pipeline.hpp"

namespace bulkhead::forward {

using Clock = std::chrono::steady_clock;

struct LoadTimes {
  PipelineTimes weights;
  std::uint64_t kernels_ns = 0, after_weights_ns = 0;  // compiling; the part of it after the weights were there
  std::uint64_t warm_up_ns = 0, save_ns = 0, total_ns = 0;  // save_ns is a part of the warm-up
};

// Adds load_seconds and load_*_seconds.
void add_load_counters(const LoadTimes& times, std::vector<FigureValue>& all);
// Logs one line at level debug.
void log_load_times(const LoadTimes& times, std::uint64_t weight_bytes);

// Returns kernel_NAME_{calls,microseconds,bytes}; "rope and KV write" gives kernel_rope_and_kv_write.
std::vector<FigureValue> kernel_counters(std::span<const gpu::KernelTime> times);

}  // namespace bulkhead::forward
