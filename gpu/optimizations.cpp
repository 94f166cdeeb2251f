#include "gpu/optimizations.hpp"

#include "config/base/log.hpp"

namespace bulkhead::gpu {
namespace {

// Makes a part with `create(enabled)`, as the settings say, and reports the result.
template <typename Part, typename Create>
Status make_part(const char* name, const config::GpuOptimizations& settings, bool part_enabled,
                 std::unique_ptr<Part>& part, std::vector<OptimizationReport>& reports,
                 const Create& create) {
  OptimizationReport report;
  report.name = name;
  const bool wanted = settings.enabled && part_enabled;
  if (!settings.enabled) report.reason = "gpu_optimizations.enabled is false";
  if (settings.enabled && !part_enabled)
    report.reason = fmt::format("gpu_optimizations.{}.enabled is false", name);

  Result<std::unique_ptr<Part>> made = create(wanted);
  if (!made.ok() && wanted) {
    if (!settings.graceful_fallback) return made.error();
    report.reason = made.error().message();
    // "off" is not a level for logging: spdlog would write such a line whatever its own level.
    if (const auto level = spdlog::level::from_str(settings.fallback_log_level);
        level != spdlog::level::off) {
      spdlog::log(level, "gpu_optimizations.{} could not start and is switched off: {}", name,
                  report.reason);
    }
    made = create(false);
  }
  if (!made.ok()) return made.error();
  part = *std::move(made);
  report.active = part->enabled();
  reports.push_back(std::move(report));
  return {};
}

}  // namespace

bool Optimizations::drain() {
  const bool ring_over = command_ring == nullptr || command_ring->drain();
  return (blit_queue == nullptr || blit_queue->drain()) && ring_over;
}

Result<Optimizations> create_optimizations(Device& device, const config::GpuOptimizations& settings,
                                           std::uint32_t timeout_ms) {
  if (settings.command_buffer_ring.timeout_ms != 0)
    timeout_ms = settings.command_buffer_ring.timeout_ms;
  Optimizations all;
  BULKHEAD_RETURN_IF_ERROR(
      make_part("memory_pool", settings, settings.memory_pool.enabled, all.memory_pool, all.reports,
                [&](bool on) { return MemoryPool::create(device, settings.memory_pool, on); }));
  BULKHEAD_RETURN_IF_ERROR(make_part(
      "blit_queue", settings, settings.blit_queue.enabled, all.blit_queue, all.reports,
      [&](bool on) { return BlitQueue::create(device, settings.blit_queue, on, timeout_ms); }));
  BULKHEAD_RETURN_IF_ERROR(
      make_part("command_buffer_ring", settings, settings.command_buffer_ring.enabled,
                all.command_ring, all.reports, [&](bool on) {
                  return CommandRing::create(device, settings.command_buffer_ring, on, timeout_ms);
                }));
  all.free_memory = std::make_unique<FreeMemoryWatch>(
      device, timeout_ms, [&device] { return device.free_memory_bytes(); });
  return all;
}

std::vector<FigureValue> figures(const Optimizations& parts, Device& device) {
  std::vector<FigureValue> all;
  all.reserve(64);
  const auto add = [&all](FigureName name, auto value) {
    all.emplace_back(name, static_cast<double>(value));
  };
  const auto seconds = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e9; };
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };

  add("device_allocations", device.allocation_count());

  const MemoryPoolStats pool = parts.memory_pool->stats();
  add("pool_acquires", pool.acquires);
  add("pool_hits", pool.hits);
  add("pool_hit_rate", pool.hit_rate());
  add("pool_fallback_allocations", pool.fallback_allocations);
  add("pool_bytes_in_use", pool.bytes_in_use);
  add("pool_bytes_peak", pool.bytes_peak);
  add("pool_bytes_reserved", pool.bytes_reserved);
  add("pool_utilisation", pool.utilisation());
  add("pool_largest_allocation_bytes", pool.largest_allocation);
  add("pool_heaps", pool.heaps);
  add("pool_active_heaps", pool.active_heaps);
  add("pool_internal_fragmentation", pool.internal_fragmentation());
  add("pool_external_fragmentation", pool.external_fragmentation());
  add("pool_allocation_seconds", seconds(pool.nanoseconds));
  add("pool_release_seconds", seconds(pool.release_nanoseconds));
  add("pool_average_allocation_microseconds", pool.average_acquire_us());

  const ActivityTotals activity = device.activity().totals();
  const BlitQueueStats blit = parts.blit_queue->stats();
  add("blit_uploads", blit.uploads);
  add("blit_downloads", blit.downloads);
  add("blit_bytes_uploaded", blit.bytes_uploaded);
  add("blit_bytes_downloaded", blit.bytes_downloaded);
  add("blit_stalls", blit.stalls);
  add("blit_average_upload_microseconds", blit.average_upload_us());
  add("blit_average_download_microseconds", blit.average_download_us());
  add("blit_sync_waits", blit.sync_waits);
  add("blit_sync_wait_seconds", seconds(blit.sync_wait_nanoseconds));
  add("blit_average_sync_wait_microseconds", blit.average_sync_wait_us());
  add("blit_pending", blit.pending);
  add("blit_pending_peak", blit.pending_peak);
  add("blit_pending_limit", blit.pending_limit);
  add("blit_transfer_seconds", seconds(activity.transfer_ns));
  add("blit_overlapped_seconds", seconds(activity.overlapped_ns));
  add("blit_overlap_ratio", activity.overlap_ratio());

  const CommandRingStats ring = parts.command_ring->stats();
  add("ring_recordings", ring.recordings);
  add("ring_submissions", ring.submissions);  // acquisitions of a command buffer
  add("ring_replays", ring.replays);
  add("ring_reuse_rate", share(ring.replays, ring.submissions));
  add("ring_waits", ring.waits);
  add("ring_wait_microseconds", ring.wait_microseconds);
  add("ring_average_wait_microseconds", share(ring.wait_microseconds, ring.waits));

  add("ring_recording_seconds", seconds(ring.recording_nanoseconds));
  add("ring_submit_seconds", seconds(ring.submit_nanoseconds));

  add("device_memory_bytes", device.info().device_memory_bytes);
  add("device_memory_free_bytes", parts.free_memory->newest());
  parts.free_memory->ask();
  add("gpu_allocated_bytes", device.allocated_bytes());
  add("gpu_allocated_bytes_peak", device.allocated_bytes_peak());
  add("gpu_busy_seconds", seconds(activity.compute_ns));
  add("gpu_idle_seconds", seconds(activity.compute_span_ns - activity.compute_ns));
  add("gpu_busy_share", device.activity().busy_share_since_last());
  device.activity().flush_trace();
  return all;
}

}  // namespace bulkhead::gpu
