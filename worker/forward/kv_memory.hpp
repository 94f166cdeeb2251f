// The memory of keys, values and states on the device: where it lies, and how it grows.
//
// A cache of a fixed size has the pages of each store (model::KvStore) one after another, as step_context.hpp says:
// kernels compute a page's address as base + number * bytes of a page, with one number for all stores.
//
// A cache that grows keeps that rule. It consists of slabs, each an allocation of its own with the same layout: for
// each store the keys of slab_pages pages, then as many values. The base is that of the first slab. A page of another
// slab gets the number (slab's address - first slab's address) / bytes of a page + its place in the slab, which leads
// from the base to the page in every store. For this, slabs must lie at whole pages from each other, so one may begin
// some bytes after the beginning of its allocation. A slab may also lie below the first one, so all numbers are higher
// by kNumberBias, and the base is lower by as many pages: a kernel's sum wraps around to the right address. The
// engine's page numbers stay the same wherever slabs lie; StepContext::page_numbers translates.
//
//     slab     0                                        first_slabs()        ...
//     pages    0 ... slab_pages - 1 | ... | hidden page | slab_pages pages   ...
//
// The hidden page, on which the warm-up runs, is the last one of the slabs that are always there.
#pragma once

#include <cstdint>
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
  std::vector<std::uint32_t> present_slabs() const;
  Result<ExportedSlab> export_slab(std::uint32_t slab) const;
  // Takes a slab that a predecessor had. If it does not fit here, its memory is given back.
  void take_slab(ExportedSlab slab);

 private:
  static constexpr std::uint64_t kNumberBias = std::uint64_t{1} << 31;

  std::uint64_t bytes_of_keys(model::KvIndex store) const;
  std::uint64_t slab_data_bytes() const;
  Status place();
  Status place_slabs();
  Result<std::uint64_t> number_at(const gpu::Buffer& slab) const;
  bool has_room(gpu::FreeMemoryWatch& watch);
  std::uint64_t offset_in(const gpu::Buffer& slab, std::uint64_t number) const;
  void number_pages(std::uint32_t slab, std::uint64_t number);

  StepContext& context_;
  CacheSize size_;
  std::uint32_t states_ = 0;
  std::uint64_t page_bytes_ = 0;  // of one store, if the cache grows
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
