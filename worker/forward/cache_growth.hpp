// Decides how a KV cache grows: the slabs with which it begins, and those by which it may grow.
#pragma once

#include <cstdint>
#include <span>

#include "config/settings.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/wanted_pages.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

// A model on one device, or a stage of a split model.
struct GrowingPart {
  CacheRoom room;
  const model::ModelGraph* graph = nullptr;
  config::EngineSettings engine;  // kv_cache_mb and kv_cache_max_mb: the part's share
  Wanted wanted;
  std::uint64_t fixed = 0;  // bytes of everything but keys and values
};

// Lets the cache, for which `size` was chosen without growth, begin with less and grow to more, if all parts can. The
// slabs have the same numbers of pages in all parts.
void let_grow(std::span<const GrowingPart> parts, CacheSize& size);

}  // namespace bulkhead::forward
