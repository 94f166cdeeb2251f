#include "gpu/optimizations.hpp"

#include "config/base/log.hpp"

namespace bulkhead::gpu {
namespace {

// Makes a part by `create(enabled)`, as the settings say, and reports what became of it.
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
    spdlog::log(spdlog::level::from_str(settings.fallback_log_level),
                "gpu_optimizations.{} could not start and is switched off: {}", name,
                report.reason);
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
  return all;
}

}  // namespace bulkhead::gpu
