#include "worker/forward/cache_growth.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace bulkhead::forward {

namespace {

// A cache that grows does so by about this much at a time, which takes 10 to 15 ms (NVIDIA H200), but by no more than
// kMostSlabs slabs, because each one takes a descriptor of the daemon. The host keeps some 200 bytes for each page that
// there may be: kMostPagesUnasked bounds that for small models, kMostPagesEver is what the vault's directory takes.
constexpr std::uint64_t kSlabBytes = std::uint64_t{512} << 20, kMostSlabs = 128;
constexpr std::uint64_t kMostPagesUnasked = 1U << 18, kMostPagesEver = (1U << 24) - 1;

// The pages of one kind.
struct KindOfPages {
  bool windows = false;
  std::uint64_t each = 0;   // pages of a slab
  std::uint64_t slabs = 0;  // that are there from the beginning

  std::uint64_t first() const { return each * slabs; }  // pages, with the hidden one
};

// A part with what is known of its memory.
struct MeasuredPart {
  const GrowingPart* facts = nullptr;
  PageBytes page_bytes;
  std::uint64_t most = 0;     // bytes that keys and values may take
  std::uint64_t largest = 0;  // bytes of a slab
  std::uint64_t target = 0;   // bytes that a slab should have

  // Returns the bytes of a page in all stores together.
  std::uint64_t bytes_of(const KindOfPages& kind) const {
    return kind.windows ? facts->wanted.window_bytes : facts->wanted.full_bytes;
  }
  bool is_cpu() const { return facts->room.kind == gpu::DeviceKind::kCpu; }
};

bool wants_growth(const GrowingPart& part) {
  const bool of_host =
      part.room.kind == gpu::DeviceKind::kCpu || part.room.kind == gpu::DeviceKind::kIntegrated;
  return !is_encoder(*part.graph) &&
         (part.engine.kv_cache_max_mb != 0 || (part.engine.kv_cache_mb == 0 && !of_host));
}

// Returns the bytes that keys and values of a part may take at most.
std::uint64_t most_bytes_of_part(const GrowingPart& part, const CacheSize& size) {
  const Wanted& wanted = part.wanted;
  const std::uint64_t free = part.room.free_bytes;
  const std::uint64_t kept = part.fixed + growth_reserve(part.room.memory_bytes);
  const std::uint64_t room = free - std::min(free, kept);
  if (part.engine.kv_cache_max_mb != 0)
    return std::min(room, std::uint64_t{part.engine.kv_cache_max_mb} << 20);
  const auto bytes_of = [&](std::uint64_t full, std::uint64_t windows) {
    return full * wanted.full_bytes + windows * wanted.window_bytes;
  };
  // Otherwise one model could take what another one needs to be loaded.
  if (part.room.beside_others) return std::min(room, bytes_of(size.pages, size.window_pages));
  const std::uint64_t pages = std::min(std::max<std::uint64_t>(size.pages, kMostPagesUnasked),
                                       std::uint64_t{part.engine.max_batch} * wanted.full);
  return std::min(room, bytes_of(pages, pages));
}

// Chooses the slabs of a kind, of which the cache begins with at least `first` pages. Returns false if a slab would be
// too large for some part.
bool choose_slabs(std::span<const MeasuredPart> parts, std::uint64_t first, bool asked,
                  KindOfPages& kind) {
  bool one_slab = false;
  std::uint64_t of_target = std::numeric_limits<std::uint64_t>::max(), slabs = 1;
  for (const MeasuredPart& part : parts) {
    const std::uint64_t bytes = part.bytes_of(kind);
    if (bytes == 0) continue;
    const std::uint64_t page = kind.windows ? part.page_bytes.window : part.page_bytes.full;
    // The host's allocator may place a CPU's slabs at any address, and a successor's at others.
    one_slab = one_slab || part.is_cpu() || page == 0;
    of_target = std::min(of_target, part.target / bytes);
    slabs = std::max(slabs,
                     (first * bytes + part.target - 1) / std::max<std::uint64_t>(part.target, 1));
  }
  kind.slabs = one_slab ? 1 : slabs;
  // If no setting names the size at the start, the first pages fill whole slabs.
  kind.each = kind.slabs > 1 && !asked ? of_target : (first + kind.slabs - 1) / kind.slabs;
  if (kind.each > 0) kind.slabs = std::max(kind.slabs, (first + kind.each - 1) / kind.each);
  return kind.each > 0 && std::ranges::all_of(parts, [&](const MeasuredPart& part) {
           return kind.each * part.bytes_of(kind) <= part.largest;
         });
}

// Returns how many pages of a kind the cache should begin with, the hidden one included.
std::uint64_t pages_to_begin_with(std::span<const MeasuredPart> parts, std::uint64_t size,
                                  bool asked, const KindOfPages& kind) {
  if (asked) return size + 1;
  std::uint64_t least = 0, of_target = std::numeric_limits<std::uint64_t>::max();
  for (const MeasuredPart& part : parts) {
    const std::uint64_t bytes = part.bytes_of(kind);
    if (bytes == 0) continue;
    const Wanted& wanted = part.facts->wanted;
    least = std::max(least, kind.windows ? wanted.least_windows + wanted.ahead : wanted.full);
    of_target = std::min(of_target, part.target / bytes);
  }
  return std::min(size + 1, std::max(least + 1, of_target));
}

bool any_part_has(std::span<const MeasuredPart> parts, const KindOfPages& kind) {
  return std::ranges::any_of(parts,
                             [&](const MeasuredPart& part) { return part.bytes_of(kind) > 0; });
}

// Returns how many further slabs of either kind may have memory at a time.
std::uint64_t further_slabs(std::span<const MeasuredPart> parts, const KindOfPages& full,
                            const KindOfPages& windows) {
  const std::uint64_t first = full.first() + windows.first();
  std::uint64_t count =
      (kMostPagesEver - std::min(kMostPagesEver, first)) / (full.each + windows.each);
  for (const MeasuredPart& part : parts) {
    std::uint64_t taken = 0, slab = 0;
    for (const KindOfPages* kind : {&full, &windows}) {
      taken += kind->first() * part.bytes_of(*kind);
      slab = std::max(slab, kind->each * part.bytes_of(*kind));
    }
    if (slab > 0) count = std::min(count, (part.most - std::min(part.most, taken)) / slab);
  }
  return count;
}

}  // namespace

void let_grow(std::span<const GrowingPart> facts, CacheSize& size) {
  std::vector<MeasuredPart> parts;
  for (const GrowingPart& each : facts) {
    // A stage whose layers keep no keys.
    if (each.wanted.full_bytes + each.wanted.window_bytes == 0) continue;
    if (!wants_growth(each)) return;
    MeasuredPart& part = parts.emplace_back();
    part.facts = &each;
    part.page_bytes =
        page_bytes_of(*each.graph, kv_format(each.engine.kv_type), kv_windows(*each.graph));
    if (!part.page_bytes.equal) return;
    part.most = most_bytes_of_part(each, size);
    const std::uint64_t page = std::max(part.page_bytes.full, part.page_bytes.window);
    part.largest = each.room.max_allocation_bytes - std::min(each.room.max_allocation_bytes, page);
    part.target =
        std::min(std::max(kSlabBytes, part.most * facts.size() / kMostSlabs), part.largest);
  }
  const bool asked = std::ranges::any_of(
      facts, [](const GrowingPart& part) { return part.engine.kv_cache_mb != 0; });
  KindOfPages full{false}, windows{true};
  if (!any_part_has(parts, full) ||
      !choose_slabs(parts, pages_to_begin_with(parts, size.pages, asked, full), asked, full))
    return;
  const bool slides = any_part_has(parts, windows);
  if (slides && !choose_slabs(parts, pages_to_begin_with(parts, size.window_pages, asked, windows),
                              asked, windows))
    return;
  const std::uint64_t further = further_slabs(parts, full, windows);
  if (further == 0) return;
  size.eager_pages = size.pages;
  size.slab_pages = static_cast<std::uint32_t>(full.each);
  size.first_pages = static_cast<std::uint32_t>(full.first() - 1);
  size.pages = static_cast<std::uint32_t>(full.first() + further * full.each - 1);
  if (!slides) return;
  // More window pages are of no use than all sequences need to go on and steps in flight write.
  std::uint64_t useful = size.window_pages;
  for (const MeasuredPart& part : parts) {
    const Wanted& wanted = part.facts->wanted;
    useful = std::max(useful, part.facts->engine.max_batch * wanted.least_windows + wanted.ahead);
  }
  const std::uint64_t behind = useful - std::min(useful, windows.first());
  const std::uint64_t own = std::min(further, (behind + windows.each - 1) / windows.each);
  size.window_eager_pages = size.window_pages;
  size.window_slab_pages = static_cast<std::uint32_t>(windows.each);
  size.window_first_pages = static_cast<std::uint32_t>(windows.first() - 1);
  size.window_pages = static_cast<std::uint32_t>(windows.first() + own * windows.each - 1);
}

}  // namespace bulkhead::forward
