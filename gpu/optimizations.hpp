// Makes the three parts of the GPU layer that settings can switch off.
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
#include "gpu/free_memory_watch.hpp"
#include "gpu/memory_pool.hpp"

namespace bulkhead::gpu {

// The state of one part, for the log, /v1/workers and the metrics.
struct OptimizationReport {
  std::string name;  // "memory_pool", "blit_queue", "command_buffer_ring"
  bool active = false;
  std::string reason;  // why it is inactive: which setting switched it off, or what failed; empty when active
};

// The Device must outlive it. Destroy the leases and buffers that use these parts first.
struct Optimizations {
  Optimizations() = default;
  Optimizations(Optimizations&&) = default;
  Optimizations& operator=(Optimizations&&) = default;
  // drains both queues before either is destroyed, because each waits for the other's semaphore
  ~Optimizations() { drain(); }

  std::unique_ptr<MemoryPool> memory_pool;
  std::unique_ptr<BlitQueue> blit_queue;
  std::unique_ptr<CommandRing> command_ring;
  std::unique_ptr<FreeMemoryWatch> free_memory;  // for the figures
  std::vector<OptimizationReport> reports;       // one for each part

  // Waits, in bounded time, until nothing runs on the device any more. For error paths, before leases and buffers
  // that submitted work uses are freed. Returns false if the device hangs; it was then abandoned, and freeing such
  // buffers does nothing.
  bool drain();
};

// Returns everything that the parts and the device count, under names for metrics: pool_*, blit_*, ring_*, gpu_*.
// Rates and shares are 0 to 1. Names that end in _microseconds or _seconds are times. gpu_busy_share counts from the
// last call. device_memory_free_bytes is the driver's newest answer; each call makes a thread ask the driver again.
// Each call also writes the events of the trace to the trace's file.
std::vector<FigureValue> figures(const Optimizations& parts, Device& device);

// If a part is switched on and fails to initialise, and settings.graceful_fallback is set, the part's plain form
// replaces it, and a line is logged at settings.fallback_log_level. Without graceful_fallback the failure is
// returned. If a plain form fails, that is always an error. timeout_ms bounds every wait, unless
// command_buffer_ring.timeout_ms is not 0.
Result<Optimizations> create_optimizations(Device& device, const config::GpuOptimizations& settings,
                                           std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu
