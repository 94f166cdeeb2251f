// What models take on their devices: what their workers reported, or before that what their files say.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "config/base/log.hpp"
#include "orchestrator/router/replicas.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

namespace {

// A worker may report any number; no device has this much memory.
constexpr double kMostBytes = 1e15;

}  // namespace

std::uint64_t Router::memory_budget() const {
  return std::uint64_t{settings_.server.device_memory_mb} << 20;
}

std::uint64_t Router::memory_of(const ModelInfo& model) const {
  if (model.memory_bytes != 0) return std::max(model.memory_bytes, model.file_bytes);
  return model.file_bytes + (std::uint64_t{settings_.engine.kv_cache_mb} << 20);
}

void Router::learn_memory() {
  for (ModelInfo& model : models_) {
    double most = 0;  // the largest worker's; they may be on different devices
    for (const Worker* worker : model.workers) {
      const double per_token = worker->reported("kv_bytes_per_token");
      if (worker->state() != WorkerState::kReady || !(per_token > 0)) continue;
      const double keys = worker->reported("kv_bytes_at_first");
      const double bytes =
          static_cast<double>(worker->ready().weight_bytes) +
          (keys > 0 ? keys : static_cast<double>(worker->ready().kv_cache_tokens) * per_token) +
          worker->reported("draft_model_bytes");
      most = std::max(most, std::min(bytes, kMostBytes));
    }
    if (most > 0) model.memory_bytes = static_cast<std::uint64_t>(most);
  }
}

std::set<std::string> Router::devices_of(std::size_t model) const {
  std::set<std::string> devices;
  for (const Worker* worker : models_[model].workers)
    devices.insert(worker->options().devices.begin(), worker->options().devices.end());
  return devices;
}

// Counts a whole model and KV cache for each spare, too. A spare shares them if its worker has a
// vault, but it loads its own if the vault is dropped. A KV cache that has grown counts with its size now.
std::uint64_t Router::memory_of(const Worker& worker) const {
  const std::uint64_t bytes =
      (std::uint64_t{1} + worker.options().standby) * memory_of(models_[worker.options().model]);
  if (!serves(worker.state())) return bytes;
  const double grown = worker.reported("kv_bytes") - worker.reported("kv_bytes_at_first");
  if (!(grown > 0)) return bytes;  // a worker may report what is not a number
  return bytes + static_cast<std::uint64_t>(std::min(grown, kMostBytes));
}

// Returns what all workers of the model and their spares take on the device.
std::uint64_t Router::memory_wanted(std::size_t model, const std::string& device) const {
  std::uint64_t bytes = 0;
  for (const Worker* each : models_[model].workers)
    bytes += part_on(device, each->options().devices, memory_of(*each));
  return bytes;
}

bool Router::too_large(std::size_t model) const {
  if (memory_budget() == 0) return false;
  return std::ranges::any_of(devices_of(model), [&](const std::string& device) {
    return memory_wanted(model, device) > memory_budget();
  });
}

std::string Router::why_too_large(std::size_t model) const {
  std::uint64_t bytes = 0;
  for (const std::string& device : devices_of(model))
    bytes = std::max(bytes, memory_wanted(model, device));
  return fmt::format(
      "The {} worker(s) of the model {} and their spares take about {} MiB on a device, and "
      "server.device_memory_mb allows {}; lower `workers`, `standby` or engine.kv_cache_mb.",
      models_[model].workers.size(), models_[model].id, bytes >> 20,
      settings_.server.device_memory_mb);
}

}  // namespace bulkhead::orchestrator
