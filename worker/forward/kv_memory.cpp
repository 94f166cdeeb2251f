#include "worker/forward/kv_memory.hpp"

#include <algorithm>
#include <utility>

#include "config/base/log.hpp"
#include "worker/forward/memory_need.hpp"

namespace bulkhead::forward {

// There is one page more than sequences are given: the warm-up's.
std::uint64_t KvMemory::bytes_of_keys(model::KvIndex store) const {
  const std::uint64_t page_bytes = context_.kv_shape(context_.graph.kv[store]).page_bytes();
  if (size_.grows()) return size_.slab_pages * page_bytes;
  const std::uint64_t pages = context_.windows.slides[store] ? size_.window_pages : size_.pages;
  return (pages + 1) * page_bytes;
}

std::uint64_t KvMemory::slab_data_bytes() const {
  std::uint64_t bytes = 0;
  for (const std::uint64_t each : store_bytes_)
    bytes += each;
  return bytes;
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
  if (!size.grows()) {
    blocks_ = plan_blocks(store_bytes_, context_.device->info().max_allocation_bytes);
    return {};
  }
  page_bytes_ = common_page_bytes(graph, context_.kv_format);
  if (page_bytes_ == 0 || !graph.states.empty() || context_.windows.exist())
    return Error(ErrorCode::kUnsupported, "the KV cache of this model can't grow");
  blocks_.blocks.assign(size.first_slabs(), slab_data_bytes() + page_bytes_);
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
  return size_.grows() ? place_slabs() : place();
}

Status KvMemory::place() {
  const auto address = [&](std::size_t piece) {
    const Place& place = blocks_.places[piece];
    return context_.kv_blocks[place.block].address() + place.offset;
  };
  const std::size_t stores = context_.graph.kv.size();
  for (model::KvIndex i = 0; i < stores; ++i) {
    const bool has_values = context_.graph.kv[i].value_entries == 0;
    const std::uint64_t keys = address(i);
    context_.kv.push_back({keys, has_values ? keys + bytes_of_keys(i) : keys});
  }
  for (std::size_t i = 0; i < context_.graph.states.size(); ++i)
    context_.states.push_back(address(stores + i));
  return {};
}

Status KvMemory::place_slabs() {
  std::uint64_t keys = context_.kv_blocks.front().address() - kNumberBias * page_bytes_;
  for (model::KvIndex i = 0; i < context_.graph.kv.size(); ++i) {
    const bool has_values = context_.graph.kv[i].value_entries == 0;
    context_.kv.push_back({keys, has_values ? keys + bytes_of_keys(i) : keys});
    keys += store_bytes_[i];
  }
  context_.kv_slabs.resize((size_.pages + 1) / size_.slab_pages - size_.first_slabs());
  // Pages without memory have the hidden page's number, so that not even a mistake reads what is not there.
  BULKHEAD_TRY(const std::uint64_t last, number_at(context_.kv_blocks.back()));
  context_.page_numbers.assign(size_.pages + 1,
                               static_cast<std::uint32_t>(last + size_.slab_pages - 1));
  for (std::uint32_t slab = 0; slab < size_.first_slabs(); ++slab) {
    BULKHEAD_TRY(const std::uint64_t number, number_at(context_.kv_blocks[slab]));
    begins_late_ = begins_late_ || offset_in(context_.kv_blocks[slab], number) != 0;
    for (std::uint32_t i = 0; i < size_.slab_pages; ++i) {
      const std::uint64_t page = std::uint64_t{slab} * size_.slab_pages + i;
      if (page < size_.first_pages)
        context_.page_numbers[page] = static_cast<std::uint32_t>(number + i);
    }
  }
  return {};
}

// Returns the number of the first page in a slab: of the first place that is a whole number of pages away from the
// first slab.
Result<std::uint64_t> KvMemory::number_at(const gpu::Buffer& slab) const {
  const std::uint64_t first = context_.kv_blocks.front().address(), at = slab.address();
  // How many pages above (or, wrapping around, below) the first slab, rounded up.
  const std::uint64_t number = at >= first
                                   ? (at - first + page_bytes_ - 1) / page_bytes_ + kNumberBias
                                   : kNumberBias - (first - at) / page_bytes_;
  const std::uint64_t begin = first + (number - kNumberBias) * page_bytes_;
  if (number > 0xFFFFFFFF - size_.slab_pages || begin + slab_data_bytes() > at + slab.bytes())
    return Error(ErrorCode::kUnsupported, "a slab of KV pages lies where no page number leads");
  return number;
}

void KvMemory::number_pages(std::uint32_t slab, std::uint64_t number) {
  const std::uint64_t first = size_.first_pages + std::uint64_t{slab} * size_.slab_pages;
  for (std::uint32_t i = 0; i < size_.slab_pages; ++i)
    context_.page_numbers[first + i] = static_cast<std::uint32_t>(number + i);
}

// The driver's newest answer may be older than slabs that were added since. One that was added while the driver was
// asked may be missing in that answer, so slabs count until a second one has come.
bool KvMemory::has_room(gpu::FreeMemoryWatch& watch) {
  const std::uint64_t answers = watch.answers();
  std::erase_if(added_, [answers](const Added& each) { return each.answers + 2 <= answers; });
  std::uint64_t taken = block_bytes().front();
  for (const Added& each : added_)
    taken += each.bytes;
  const std::uint64_t free = answers == 0 ? context_.device->free_memory_bytes() : watch.newest();
  return free >= taken + growth_reserve(context_.device->info().device_memory_bytes);
}

bool KvMemory::grow(std::uint32_t slab, gpu::Memory kind, gpu::FreeMemoryWatch& watch) {
  const bool room = has_room(watch);
  watch.ask();
  if (!room) {
    spdlog::debug("the KV cache does not grow: only {} MiB are free", watch.newest() >> 20);
    return false;
  }
  const std::uint64_t bytes = block_bytes().front();
  auto made = context_.device->allocate(bytes, kind, "KV pages");
  if (!made.ok()) {
    spdlog::debug("the KV cache does not grow: {}", made.error().message());
    return false;
  }
  const auto number = number_at(*made);
  if (!number.ok()) {
    spdlog::debug("the KV cache does not grow: {}", number.error().message());
    return false;
  }
  context_.kv_slabs[slab] = *std::move(made);
  number_pages(slab, *number);
  added_.push_back({bytes, watch.answers()});
  return true;
}

void KvMemory::shrink(std::uint32_t slab) {
  context_.kv_slabs[slab] = {};
  const std::uint64_t first = size_.first_pages + std::uint64_t{slab} * size_.slab_pages;
  std::fill_n(context_.page_numbers.begin() + static_cast<std::ptrdiff_t>(first), size_.slab_pages,
              context_.page_numbers.back());
}

std::vector<std::uint32_t> KvMemory::present_slabs() const {
  std::vector<std::uint32_t> present;
  for (std::uint32_t slab = 0; slab < context_.kv_slabs.size(); ++slab) {
    if (context_.kv_slabs[slab].valid()) present.push_back(slab);
  }
  return present;
}

std::uint64_t KvMemory::offset_in(const gpu::Buffer& slab, std::uint64_t number) const {
  return context_.kv_blocks.front().address() + (number - kNumberBias) * page_bytes_ -
         slab.address();
}

Result<ExportedSlab> KvMemory::export_slab(std::uint32_t slab) const {
  const gpu::Buffer& memory = context_.kv_slabs[slab];
  ExportedSlab exported;
  exported.slab = slab;
  BULKHEAD_TRY(const std::uint64_t number, number_at(memory));
  exported.offset = offset_in(memory, number);
  BULKHEAD_TRY(exported.memory, context_.device->export_memory(memory));
  return exported;
}

void KvMemory::take_slab(ExportedSlab slab) {
  if (slab.slab >= context_.kv_slabs.size() || context_.kv_slabs[slab.slab].valid()) return;
  auto memory =
      context_.device->import_memory(std::move(slab.memory), block_bytes().front(), "KV pages");
  if (!memory.ok()) {
    spdlog::debug("a slab of KV pages is left out: {}", memory.error().message());
    return;
  }
  // Its pages lie where the predecessor put them.
  const auto number = number_at(*memory);
  if (!number.ok() || offset_in(*memory, *number) != slab.offset) {
    spdlog::debug("a slab of KV pages is left out: it lies where no page number leads");
    return;
  }
  context_.kv_slabs[slab.slab] = *std::move(memory);
  number_pages(slab.slab, *number);
}

}  // namespace bulkhead::forward
