// How many KV pages and how long a context a model gets on a device: from what was asked for and
// what is free.
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
  std::uint32_t pages = 0;  // for sequences; one more is kept for the warm-up
  // Pages of the stores that slide (kv_windows.hpp); `pages` have no room for these stores' keys and
  // values.
  std::uint32_t window_pages = 0;
};

// The sizes that all stages of a split model have, although their devices have different amounts of free memory.
struct SharedSizes {
  CacheSize cache;
  std::uint32_t states = 0;  // slots
};

// Where a cache is to lie.
struct CacheRoom {
  std::uint64_t free_bytes = 0;
  gpu::DeviceKind kind = gpu::DeviceKind::kDiscrete;
  std::string device;  // name
};
CacheRoom room_on(const gpu::Device& device);

// asked_context: the context to get, or an error; 0: the model's own, lowered to what fits.
// `columns_ahead`: the most columns of all steps in flight together. kResourceExhausted says what
// is needed, what is free and which setting to change.
Result<CacheSize> plan_cache(const CacheRoom& room, const model::ModelGraph& graph,
                             const config::EngineSettings& engine, std::uint32_t asked_context,
                             std::uint32_t columns_ahead, const MemoryNeed& need);

}  // namespace bulkhead::forward
