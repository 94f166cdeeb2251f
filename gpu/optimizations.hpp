// The three parts of the GPU layer that can be switched off, made as the settings say.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/base/worker_figures.hpp"
#include "config/settings.hpp"
#include "gpu/blit_queue.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "gpu/memory_pool.hpp"

namespace bulkhead::gpu {

// What became of one part, for the log, /v1/workers and the metrics.
struct OptimizationReport {
  std::string name;  // "memory_pool", "blit_queue", "command_buffer_ring"
  bool active = false;
  std::string reason;  // why not: switched off by which setting, or what failed; empty when active
};

// The Device must outlive it. Destroy leases and buffers that the parts use first.
struct Optimizations {
  Optimizations() = default;
  Optimizations(Optimizations&&) = default;
  Optimizations& operator=(Optimizations&&) = default;
  ~Optimizations() { drain(); }  // both queues before either: each waits for the other's semaphore

  std::unique_ptr<MemoryPool> memory_pool;
  std::unique_ptr<BlitQueue> blit_queue;
  std::unique_ptr<CommandRing> command_ring;
  std::vector<OptimizationReport> reports;  // one for each part

  // Waits, in bounded time, until nothing runs on the device any more: on error paths, before
  // leases and buffers that submitted work uses are freed. False: the device hangs and was
  // abandoned: freeing such buffers now does nothing.
  bool drain();
};

// Everything that the parts and the device count, by names fit for metrics: pool_*, blit_*, ring_*,
// gpu_*. Rates and shares are 0 to 1; names that end in _microseconds or _seconds are times.
// gpu_busy_share counts from the last call. Each call also writes the trace's events to its file.
std::vector<FigureValue> figures(const Optimizations& parts, Device& device);

// A part that is switched on and fails to initialise is replaced by its plain form where
// settings.graceful_fallback is set, with a line in the log at settings.fallback_log_level; without
// it the failure is the result. A plain form that fails is always an error. timeout_ms bounds every
// wait; command_buffer_ring.timeout_ms, where it is not 0, takes its place.
Result<Optimizations> create_optimizations(Device& device, const config::GpuOptimizations& settings,
                                           std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu
