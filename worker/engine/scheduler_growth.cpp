// The scheduler's part that asks for more pages, if the cache can grow.
#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {

// Says whether the cache should grow before it hands out `wanted` pages of this kind.
bool Scheduler::lacks_pages(PageKind kind, std::uint32_t wanted) const {
  const WindowPool& windows = pool_.windows();
  switch (kind) {
    case PageKind::kFull: {
      const bool eager = pool_.present_pages() < limits_.eager_pages;
      return (eager ? pool_.empty_pages() : pool_.free_pages()) < wanted;
    }
    case PageKind::kWindow:
      break;
  }
  const bool eager = windows.present_pages() < limits_.window_eager_pages;
  return (eager ? windows.unlikely_pages() : windows.free_pages()) < wanted;
}

// Makes the cache grow, and returns whether the pool has more pages of this kind now. While sequences run, which wait
// for that, the cache grows at most once a step for sequences that have not begun.
bool Scheduler::more_pages(PageKind kind, Need need) {
  if (const std::optional<std::uint32_t> leaving = pool_.slabs(kind).leaving()) {
    pool_.add_slab(*leaving);
    return true;
  }
  const std::optional<std::uint32_t> slab = pool_.absent_slab(kind);
  if (!slab || !grow_) return false;
  if (need == Need::kWaiting && grew_ && !running_.empty()) return false;
  if (!grow_(*slab)) return false;
  pool_.add_slab(*slab);
  counts_.add("kv_slabs_added_total");
  too_few_pages_.reset();
  grew_ = true;
  return true;
}

// Makes the cache grow for a running sequence that lacks pages for its next position.
bool Scheduler::more_pages_for(const Sequence& sequence) {
  const bool lacks_full = pool_.pages_for(sequence.length()) > sequence.pages.pages().size();
  return more_pages(lacks_full ? PageKind::kFull : PageKind::kWindow, Need::kRunning);
}

void Scheduler::let_slab_leave(PageKind kind) {
  const WindowPool& windows = pool_.windows();
  const bool full = kind == PageKind::kFull;
  const std::uint32_t longest = pool_.pages_for(sequence_limit_);
  const std::uint32_t least = full ? longest + pool_.pages_left_out() + limits_.slab_pages
                                   : std::min(longest, windows.reserve()) +
                                         windows.pages_left_out() + limits_.window_slab_pages;
  if ((full ? pool_.present_pages() : windows.present_pages()) >= least) pool_.let_slab_leave(kind);
}

}  // namespace bulkhead::engine
