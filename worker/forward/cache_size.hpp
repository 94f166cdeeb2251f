// Decides how many KV pages and how long a context a model gets on a device, from the settings and the free memory.
#pragma once

#include <cstdint>
#include <string>

#include "config/base/error.hpp"
#include "config/settings.hpp"
#include "gpu/device.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

struct CacheSize {
  std::uint32_t context = 0;
  std::uint32_t pages = 0;  // for sequences; the warm-up needs one more
  // Pages of the stores that slide (kv_windows.hpp); `pages` do not include these stores' keys and values.
  std::uint32_t window_pages = 0;
};

// The sizes that all stages of a split model share, although their devices have different amounts of free memory.
struct SharedSizes {
  CacheSize cache;
  std::uint32_t states = 0;  // slots
};

// The device for a cache.
struct CacheRoom {
  std::uint64_t free_bytes = 0;
  gpu::DeviceKind kind = gpu::DeviceKind::kDiscrete;
  std::string device;  // name
};
CacheRoom room_on(const gpu::Device& device);

// asked_context is the required context, or 0 for the model's own context, reduced to what fits. `columns_ahead` is
// the most columns of all steps in flight together. kResourceExhausted says how much is needed, how much is free and
// which setting to change.
Result<CacheSize> plan_cache(const CacheRoom& room, const model::ModelGraph& graph,
                             const config::EngineSettings& engine, std::uint32_t asked_context,
                             std::uint32_t columns_ahead, const MemoryNeed& need);

}  // namespace bulkhead::forward
