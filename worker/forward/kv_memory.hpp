// The memory of keys, values and states on the device: where it lies, and how it grows.
//
// A cache of a fixed size has the pages of each store (model::KvStore) one after another, as step_context.hpp says:
// kernels compute a page's address as base + number * bytes of a page, with one number for all stores.
//
// A cache that grows has areas: one of full pages and, if layers have windows, one of window pages, which have numbers
// of their own. An area consists of slabs, each an allocation of its own with the same layout: for each of the area's
// stores the keys of slab_pages pages, then as many values. In an area kernels compute a page's address as base +
// number * stride (page_stride_of()), again with one number for all stores. The base is that of the area's first slab:
// a page has the number (address of its slab - address of the first slab + its place in the slab) / stride. For
// this, slabs must lie at whole strides from each other, so one may begin some bytes after the beginning of its
// allocation. A slab may also lie below the first one, so all numbers are higher by kNumberBias, and the base is lower
// by as many strides: a kernel's sum wraps around to the right address. The engine's page numbers stay the same
// wherever slabs lie; StepContext::page_numbers and window_numbers translate.
//
//     slab     0                                        first_slabs()        ...
//     pages    0 ... slab_pages - 1 | ... | hidden page | slab_pages pages   ...
//
// The hidden page, on which the warm-up runs, is the last one of the slabs that are always there. States lie in blocks
// of their own. A stage of a split model may have no store of an area; its slabs then take no memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"
#include "gpu/free_memory_watch.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/exported_memory.hpp"
#include "worker/forward/memory_blocks.hpp"
#include "worker/forward/step_context.hpp"

namespace bulkhead::forward {

class KvMemory {
 public:
  // `context` must not move.
  explicit KvMemory(StepContext& context) : context_(context) {}

  // Decides what lies where. context.graph, kv_format and windows are known; kUnsupported if a cache of this model
  // can't have these slabs.
  Status plan(const CacheSize& size, std::uint32_t states);
  const CacheSize& size() const { return size_; }
  // Returns the sizes of the blocks that are there from the beginning.
  const std::vector<std::uint64_t>& block_bytes() const { return blocks_.blocks; }
  // Returns the bytes of each store of pages, then of each store of states.
  const std::vector<std::uint64_t>& store_bytes() const { return store_bytes_; }

  Status allocate(gpu::Memory kind);
  // Takes blocks of these sizes that another process has allocated.
  Status take(std::vector<gpu::Buffer> blocks);
  // Returns whether the pages of some block do not begin where the block does. Another process, which has the blocks at
  // other addresses, would not find them.
  bool begins_late() const { return begins_late_; }

  // See engine::Executor. `watch` says how much memory is free.
  bool grow(std::uint32_t slab, gpu::Memory kind, gpu::FreeMemoryWatch& watch);
  void shrink(std::uint32_t slab);
  // Returns the slabs that have memory or need none.
  std::vector<std::uint32_t> present_slabs() const;
  // Returns nothing if the slab takes no memory here.
  Result<std::vector<ExportedSlab>> export_slab(std::uint32_t slab) const;
  // Returns the bytes of the blocks, and those of the slabs that are there now.
  std::uint64_t bytes_at_first() const;
  std::uint64_t bytes_of_slabs() const;
  // Takes the slabs that a predecessor had. Those that do not fit here give their memory back; one warning says how
  // many do not fit, and why.
  void take_slabs(std::span<ExportedSlab> slabs);

 private:
  static constexpr std::uint64_t kNumberBias = std::uint64_t{1} << 31;

  // The pages of one kind, if the cache grows.
  struct Area {
    std::uint32_t first_pages = 0, slab_pages = 0;
    std::uint32_t first_slabs = 0, first_block = 0;  // blocks that are always there
    std::uint32_t first_number = 0, slabs = 0;       // those that come and go
    std::uint64_t page_bytes = 0;  // of one store, keys or values; 0: there is no store
    std::uint64_t stride = 0;      // bytes by which numbers count
    std::uint64_t data_bytes = 0;  // of a slab
    std::vector<std::uint32_t>* numbers = nullptr;  // in the context

    std::uint64_t slab_bytes() const { return data_bytes + page_bytes; }
    std::uint64_t strides_of_page() const { return page_bytes / stride; }
    std::uint32_t first_page(std::uint32_t slab) const {
      return first_pages + (slab - first_number) * slab_pages;
    }
  };

  std::uint64_t bytes_of_keys(model::KvIndex store) const;
  Status plan_areas();
  Area& area_of_store(model::KvIndex store) {
    return areas_[context_.windows.slides[store] ? 1 : 0];
  }
  const Area& area_of(std::uint32_t slab) const { return areas_[slab < areas_[0].slabs ? 0 : 1]; }
  const gpu::Buffer& first_of(const Area& area) const {
    return context_.kv_blocks[area.first_block];
  }
  void place_stores();
  Status place_slabs(const Area& area);
  Result<std::uint64_t> number_at(const Area& area, const gpu::Buffer& slab) const;
  Status take_slab(ExportedSlab slab);
  bool has_room(const Area& area, gpu::FreeMemoryWatch& watch);
  std::uint64_t offset_in(const Area& area, const gpu::Buffer& slab, std::uint64_t number) const;
  void number_pages(std::uint32_t slab, std::uint64_t number);

  StepContext& context_;
  CacheSize size_;
  std::uint32_t states_ = 0;
  std::array<Area, 2> areas_;  // of full pages and of window pages
  BlockPlan blocks_;
  std::vector<std::uint64_t> store_bytes_;
  // Slabs that were added, and how many answers about free memory had come before each.
  struct Added {
    std::uint64_t bytes = 0, answers = 0;
  };
  std::vector<Added> added_;
  bool begins_late_ = false;
};

}  // namespace bulkhead::forward
