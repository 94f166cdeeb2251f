#include "worker/forward/kv_memory.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "config/base/log.hpp"
#include "worker/forward/memory_need.hpp"

namespace bulkhead::forward {

// There is one page more than sequences are given: the warm-up's.
std::uint64_t KvMemory::bytes_of_keys(model::KvIndex store) const {
  const std::uint64_t page_bytes = context_.kv_shape(context_.graph.kv[store]).page_bytes();
  const bool slides = context_.windows.slides[store];
  if (size_.grows()) return (slides ? size_.window_slab_pages : size_.slab_pages) * page_bytes;
  return ((slides ? size_.window_pages : size_.pages) + std::uint64_t{1}) * page_bytes;
}

Status KvMemory::plan(const CacheSize& size, std::uint32_t states) {
  size_ = size;
  states_ = states;
  const model::ModelGraph& graph = context_.graph;
  for (model::KvIndex i = 0; i < graph.kv.size(); ++i)
    store_bytes_.push_back(bytes_of_keys(i) * (graph.kv[i].value_entries == 0 ? 2 : 1));
  // One slot more than sequences get is there for the warm-up, as is one page more.
  for (const model::StateStore& store : graph.states)
    store_bytes_.push_back((std::uint64_t{states_} + 1) * state_bytes(store));
  const std::span<const std::uint64_t> all = store_bytes_;
  const std::uint64_t largest = context_.device->info().max_allocation_bytes;
  blocks_ = plan_blocks(size.grows() ? all.subspan(graph.kv.size()) : all, largest);
  return size.grows() ? plan_areas() : Status();
}

// The blocks of slabs come first, those of states last.
Status KvMemory::plan_areas() {
  const PageBytes page_bytes = page_bytes_of(context_.graph, context_.kv_format, context_.windows);
  if (!page_bytes.equal)
    return Error(ErrorCode::kUnsupported, "the KV cache of this model can't grow");
  areas_[0] = {size_.first_pages, size_.slab_pages, size_.first_slabs()};
  areas_[0].page_bytes = page_bytes.full;
  const gpu::DeviceKind kind = context_.device->info().kind;
  areas_[0].stride = page_stride_of(page_bytes.full, kind);
  areas_[0].slabs = size_.slabs();
  areas_[0].numbers = &context_.page_numbers;
  if (context_.windows.exist()) {
    areas_[1] = {size_.window_first_pages, size_.window_slab_pages, size_.window_first_slabs()};
    areas_[1].page_bytes = page_bytes.window;
    areas_[1].stride = page_stride_of(page_bytes.window, kind);
    areas_[1].slabs = size_.window_slabs();
    areas_[1].numbers = &context_.window_numbers;
  }
  areas_[1].first_number = areas_[0].slabs;
  for (model::KvIndex i = 0; i < context_.graph.kv.size(); ++i) {
    area_of_store(i).data_bytes += store_bytes_[i];
    context_.page_strides.push_back(static_cast<std::uint32_t>(area_of_store(i).stride));
  }
  std::vector<std::uint64_t> first;
  for (Area& area : areas_) {
    area.first_block = static_cast<std::uint32_t>(first.size());
    if (area.page_bytes > 0) first.insert(first.end(), area.first_slabs, area.slab_bytes());
  }
  blocks_.blocks.insert(blocks_.blocks.begin(), first.begin(), first.end());
  for (Place& place : blocks_.places)
    place.block += static_cast<std::uint32_t>(first.size());
  return {};
}

Status KvMemory::allocate(gpu::Memory kind) {
  std::vector<gpu::Buffer> blocks;
  for (const std::uint64_t bytes : block_bytes()) {
    BULKHEAD_TRY(gpu::Buffer block, context_.device->allocate(bytes, kind, "KV pages"));
    blocks.push_back(std::move(block));
  }
  BULKHEAD_RETURN_IF_ERROR(take(std::move(blocks)));
  if (!begins_late_) return {};
  spdlog::info(
      "{} has slabs of KV pages at addresses that no successor could use: it loads the model again",
      context_.device->info().name);
  return {};
}

Status KvMemory::take(std::vector<gpu::Buffer> blocks) {
  context_.kv_blocks = std::move(blocks);
  place_stores();
  if (!size_.grows()) return {};
  context_.kv_slabs.resize(areas_[0].slabs + areas_[1].slabs);
  for (const Area& area : areas_) {
    if (area.numbers != nullptr) BULKHEAD_RETURN_IF_ERROR(place_slabs(area));
  }
  return {};
}

void KvMemory::place_stores() {
  // The pieces that plan_blocks() placed: all stores of pages and of states, or, if the cache grows, those of states.
  const auto address = [&](std::size_t piece) {
    const Place& place = blocks_.places[piece];
    return context_.kv_blocks[place.block].address() + place.offset;
  };
  std::array<std::uint64_t, 2> within{};  // bytes of a slab's stores so far, for each area
  const std::size_t stores = context_.graph.kv.size();
  for (model::KvIndex i = 0; i < stores; ++i) {
    const bool has_values = context_.graph.kv[i].value_entries == 0;
    std::uint64_t keys = 0;
    if (size_.grows()) {
      const Area& area = area_of_store(i);
      std::uint64_t& before = within[context_.windows.slides[i] ? 1 : 0];
      keys = first_of(area).address() - kNumberBias * area.stride + before;
      before += store_bytes_[i];
    } else {
      keys = address(i);
    }
    context_.kv.push_back({keys, has_values ? keys + bytes_of_keys(i) : keys});
  }
  for (std::size_t i = 0; i < context_.graph.states.size(); ++i)
    context_.states.push_back(address((size_.grows() ? 0 : stores) + i));
}

Status KvMemory::place_slabs(const Area& area) {
  const std::uint32_t pages = area.first_page(area.first_number + area.slabs);
  if (area.page_bytes == 0) {  // no kernel reads these numbers
    area.numbers->assign(pages + 1, 0);
    return {};
  }
  // Pages without memory have the hidden page's number, so that not even a mistake reads what is not there.
  const gpu::Buffer* const blocks = &first_of(area);
  BULKHEAD_TRY(const std::uint64_t last, number_at(area, blocks[area.first_slabs - 1]));
  area.numbers->assign(
      pages + 1, static_cast<std::uint32_t>(last + (area.slab_pages - 1) * area.strides_of_page()));
  for (std::uint32_t slab = 0; slab < area.first_slabs; ++slab) {
    BULKHEAD_TRY(const std::uint64_t number, number_at(area, blocks[slab]));
    begins_late_ = begins_late_ || offset_in(area, blocks[slab], number) != 0;
    for (std::uint32_t i = 0; i < area.slab_pages; ++i) {
      const std::uint64_t page = std::uint64_t{slab} * area.slab_pages + i;
      if (page < area.first_pages)
        (*area.numbers)[page] = static_cast<std::uint32_t>(number + i * area.strides_of_page());
    }
  }
  return {};
}

// Returns the number of the first page in a slab: of the first place that is a whole number of strides away from the
// area's first slab.
Result<std::uint64_t> KvMemory::number_at(const Area& area, const gpu::Buffer& slab) const {
  const std::uint64_t first = first_of(area).address(), at = slab.address();
  // How many strides above (or, wrapping around, below) the first slab, rounded up.
  const std::uint64_t number = at >= first
                                   ? (at - first + area.stride - 1) / area.stride + kNumberBias
                                   : kNumberBias - (first - at) / area.stride;
  const std::uint64_t begin = first + (number - kNumberBias) * area.stride;
  if (number > 0xFFFFFFFF - area.slab_pages * area.strides_of_page() ||
      begin + area.data_bytes > at + slab.bytes())
    return Error(ErrorCode::kUnsupported, "a slab of KV pages lies where no page number leads");
  return number;
}

void KvMemory::number_pages(std::uint32_t slab, std::uint64_t number) {
  const Area& area = area_of(slab);
  for (std::uint32_t i = 0; i < area.slab_pages; ++i) {
    (*area.numbers)[area.first_page(slab) + i] =
        static_cast<std::uint32_t>(number + i * area.strides_of_page());
  }
}

// The driver's newest answer may be older than slabs that were added since. One that was added while the driver was
// asked may be missing in that answer, so slabs count until a second one has come.
bool KvMemory::has_room(const Area& area, gpu::FreeMemoryWatch& watch) {
  const std::uint64_t answers = watch.answers();
  std::erase_if(added_, [answers](const Added& each) { return each.answers + 2 <= answers; });
  std::uint64_t taken = area.slab_bytes();
  for (const Added& each : added_)
    taken += each.bytes;
  const std::uint64_t free = answers == 0 ? context_.device->free_memory_bytes() : watch.newest();
  return free >= taken + growth_reserve(context_.device->info().device_memory_bytes);
}

bool KvMemory::grow(std::uint32_t slab, gpu::Memory kind, gpu::FreeMemoryWatch& watch) {
  const Area& area = area_of(slab);
  if (area.page_bytes == 0) return true;
  const bool room = has_room(area, watch);
  watch.ask();
  if (!room) {
    spdlog::debug("the KV cache does not grow: only {} MiB are free", watch.newest() >> 20);
    return false;
  }
  auto made = context_.device->allocate(area.slab_bytes(), kind, "KV pages");
  if (!made.ok()) {
    spdlog::debug("the KV cache does not grow: {}", made.error().message());
    return false;
  }
  const auto number = number_at(area, *made);
  if (!number.ok()) {
    spdlog::debug("the KV cache does not grow: {}", number.error().message());
    return false;
  }
  context_.kv_slabs[slab] = *std::move(made);
  number_pages(slab, *number);
  added_.push_back({area.slab_bytes(), watch.answers()});
  return true;
}

void KvMemory::shrink(std::uint32_t slab) {
  const Area& area = area_of(slab);
  if (area.page_bytes == 0) return;
  context_.kv_slabs[slab] = {};
  std::fill_n(area.numbers->begin() + static_cast<std::ptrdiff_t>(area.first_page(slab)),
              area.slab_pages, area.numbers->back());
}

std::vector<std::uint32_t> KvMemory::present_slabs() const {
  std::vector<std::uint32_t> present;
  for (std::uint32_t slab = 0; slab < context_.kv_slabs.size(); ++slab) {
    if (context_.kv_slabs[slab].valid() || area_of(slab).page_bytes == 0) present.push_back(slab);
  }
  return present;
}

std::uint64_t KvMemory::bytes_at_first() const {
  return std::accumulate(block_bytes().begin(), block_bytes().end(), std::uint64_t{0});
}

std::uint64_t KvMemory::bytes_of_slabs() const {
  std::uint64_t sum = 0;
  for (const gpu::Buffer& slab : context_.kv_slabs)
    sum += slab.valid() ? slab.bytes() : 0;
  return sum;
}

std::uint64_t KvMemory::offset_in(const Area& area, const gpu::Buffer& slab,
                                  std::uint64_t number) const {
  return first_of(area).address() + (number - kNumberBias) * area.stride - slab.address();
}

Result<std::vector<ExportedSlab>> KvMemory::export_slab(std::uint32_t slab) const {
  const Area& area = area_of(slab);
  std::vector<ExportedSlab> exported;
  if (area.page_bytes == 0) return exported;
  const gpu::Buffer& memory = context_.kv_slabs[slab];
  BULKHEAD_TRY(const std::uint64_t number, number_at(area, memory));
  BULKHEAD_TRY(UniqueFd fd, context_.device->export_memory(memory));
  exported.push_back({slab, offset_in(area, memory, number), std::move(fd)});
  return exported;
}

void KvMemory::take_slabs(std::span<ExportedSlab> slabs) {
  std::size_t left_out = 0;
  Status why;
  for (ExportedSlab& slab : slabs) {
    Status taken = take_slab(std::move(slab));
    if (!taken.ok() && left_out++ == 0) why = std::move(taken);
  }
  if (left_out == 0) return;
  spdlog::warn(
      "{}: {} of {} slabs of KV pages from the process before are left out: {}; the tokens in them "
      "are "
      "computed again, so their requests wait longer; if this comes back, set engine.kv_cache_mb "
      "to "
      "all the memory that the cache may have, because a cache of a fixed size has no slabs",
      context_.device->info().name, left_out, slabs.size(), why.error().message());
}

Status KvMemory::take_slab(ExportedSlab slab) {
  if (slab.piece >= context_.kv_slabs.size() || context_.kv_slabs[slab.piece].valid())
    return Error(ErrorCode::kInvalidArgument, "the cache has no place for it");
  const Area& area = area_of(slab.piece);
  if (area.page_bytes == 0) return {};
  BULKHEAD_TRY(gpu::Buffer memory, context_.device->import_memory(std::move(slab.memory),
                                                                  area.slab_bytes(), "KV pages"));
  // Its pages lie where the predecessor put them.
  BULKHEAD_TRY(const std::uint64_t number, number_at(area, memory));
  if (offset_in(area, memory, number) != slab.offset) {
    return Error(ErrorCode::kUnsupported,
                 "its memory lies at an address from which its pages can't be reached");
  }
  context_.kv_slabs[slab.piece] = std::move(memory);
  number_pages(slab.piece, number);
  return {};
}

}  // namespace bulkhead::forward
