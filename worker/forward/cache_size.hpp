// Decides how many KV pages and how long a context a model gets on a device, from the settings and the free memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "config/base/error.hpp"
#include "config/settings.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/kv_layout.hpp"
#include "worker/forward/kv_windows.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

struct CacheSize {
  std::uint32_t context = 0;
  std::uint32_t pages = 0;  // for sequences; the warm-up needs one more
  // Pages of the stores that slide (kv_windows.hpp); `pages` do not include these stores' keys and values.
  std::uint32_t window_pages = 0;
  // A cache that grows: as in engine::ExecutorLimits; `pages` are the most. All slabs, also those that are there from
  // the beginning, have room for slab_pages pages; the warm-up's page is the last one of the first pages.
  std::uint32_t first_pages = 0;
  std::uint32_t slab_pages = 0;
  std::uint32_t eager_pages = 0;

  // The same for window pages.
  std::uint32_t window_first_pages = 0;
  std::uint32_t window_slab_pages = 0;
  std::uint32_t window_eager_pages = 0;

  bool operator==(const CacheSize&) const = default;
  bool grows() const { return slab_pages > 0; }
  // Returns the cache as it is if it can't grow.
  CacheSize fixed() const {
    return {context, grows() ? eager_pages : pages, grows() ? window_eager_pages : window_pages};
  }
  // Returns the cache of a stage of a split model in which no layer has a window.
  CacheSize without_windows() const {
    return {context, pages, 0, first_pages, slab_pages, eager_pages};
  }
  // Slabs that are there from the beginning, and those that come and go.
  std::uint32_t first_slabs() const { return grows() ? (first_pages + 1) / slab_pages : 0; }
  std::uint32_t slabs() const { return grows() ? (pages - first_pages) / slab_pages : 0; }
  std::uint32_t window_first_slabs() const {
    return window_slab_pages > 0 ? (window_first_pages + 1) / window_slab_pages : 0;
  }
  std::uint32_t window_slabs() const {
    return window_slab_pages > 0 ? (window_pages - window_first_pages) / window_slab_pages : 0;
  }
  // Returns whether the pages make whole slabs.
  bool slabs_fit() const {
    const auto fit = [](std::uint32_t all, std::uint32_t first, std::uint32_t slab,
                        std::uint32_t eager) {
      if (slab == 0) return first == 0 && eager == 0;
      return first <= all && (first + 1) % slab == 0 && (all + 1) % slab == 0;
    };
    return fit(pages, first_pages, slab_pages, eager_pages) &&
           fit(window_pages, window_first_pages, window_slab_pages, window_eager_pages) &&
           (slab_pages > 0 ? (window_slab_pages > 0) == (window_pages > 0)
                           : window_slab_pages == 0);
  }
};

// The bytes of a page of one store, keys or values; 0 if there is no such store. They are the same for all stores of
// full pages, and for all of window pages, if `equal`. Only then can a cache grow, because one number says where a page
// lies in all of these stores.
struct PageBytes {
  std::uint64_t full = 0, window = 0;
  bool equal = true;
};
PageBytes page_bytes_of(const model::ModelGraph& graph, gpu::kernels::KvFormat format,
                        const KvWindows& windows);

// Returns how much of a device's memory a growing cache leaves free.
std::uint64_t growth_reserve(std::uint64_t device_bytes);

// Returns the stride of a cache that grows. Kernels find page number n at n strides behind a base (kv_memory.hpp). The
// stride is the largest power of two that divides a page's bytes and is no larger than the driver's alignment of slabs.
// The distance between any two slabs is therefore a whole number of strides in every process. An H200's driver aligns
// slabs to 64 KiB. A CPU's slabs begin with one of the host's pages. If a driver aligns slabs to less, a successor
// loads the model again (KvMemory::begins_late) or leaves out some slabs.
inline std::uint64_t page_stride_of(std::uint64_t page_bytes, gpu::DeviceKind kind) {
  const std::uint64_t aligned = std::uint64_t{kind == gpu::DeviceKind::kCpu ? 4U : 64U} << 10;
  return std::min(page_bytes & (~page_bytes + 1), aligned);
}

// The sizes that all stages of a split model share, although their devices have different amounts of free memory.
struct SharedSizes {
  CacheSize cache;
  std::uint32_t states = 0;  // slots
  std::uint32_t drafts = 0;  // the most of a step
};

// The device for a cache.
struct CacheRoom {
  std::uint64_t free_bytes = 0;
  gpu::DeviceKind kind = gpu::DeviceKind::kDiscrete;
  std::string device;  // name
  std::uint64_t memory_bytes = 0;
  std::uint64_t max_allocation_bytes = ~std::uint64_t{0};
  bool beside_others = false;  // TransformerOptions::beside_others
};
CacheRoom room_on(const gpu::Device& device);
// Returns how much of the room everything but keys and values takes.
std::uint64_t fixed_need(const CacheRoom& room, const MemoryNeed& need);
// Returns the facts of a device that computes a whole model and no other.
inline DeviceSize size_of(const gpu::DeviceInfo& device) {
  const bool cpu = device.kind == gpu::DeviceKind::kCpu;
  return {cpu, device.device_memory_bytes, !cpu && device.kind != gpu::DeviceKind::kIntegrated};
}

// asked_context is the required context, or 0 for the model's own context, reduced to what fits. `columns_ahead` is
// the most columns of all steps in flight together. kResourceExhausted says how much is needed, how much is free and
// which setting to change.
Result<CacheSize> plan_cache(const CacheRoom& room, const model::ModelGraph& graph,
                             const config::EngineSettings& engine, std::uint32_t asked_context,
                             std::uint32_t columns_ahead, const MemoryNeed& need);

}  // namespace bulkhead::forward
