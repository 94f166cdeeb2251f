// The scheduler's part that asks for more pages, if the cache can grow.
#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {
namespace {

// For so many steps after one kind of pages lacked memory, neither kind grows only to keep what the prefix cache has.
constexpr std::uint64_t kStepsInNeed = 1000;
// A dead process's streams come back within fewer steps than this.
constexpr std::uint64_t kStepsUntilBack = 200;

}  // namespace

// While a predecessor's streams come back one after another, the cache grows rather than forget what the later ones
// need.
std::uint32_t Scheduler::adopt(std::span<const EnteredPage> pages) {
  const std::uint32_t taken = pool_.adopt(pages);
  if (taken > 0) eager_until_ = step_number_ + kStepsUntilBack;
  return taken;
}

// Says whether the cache should grow before it hands out `wanted` pages of this kind.
bool Scheduler::lacks_pages(PageKind kind, std::uint32_t wanted) const {
  const WindowPool& windows = pool_.windows();
  const bool may_be_eager = step_number_ >= in_need_until_;
  const bool always_eager = step_number_ < eager_until_;
  switch (kind) {
    case PageKind::kFull: {
      const bool eager =
          may_be_eager && (always_eager || pool_.present_pages() < limits_.eager_pages);
      return (eager ? pool_.empty_pages() : pool_.free_pages()) < wanted;
    }
    case PageKind::kWindow:
      break;
  }
  const bool eager =
      may_be_eager && (always_eager || windows.present_pages() < limits_.window_eager_pages);
  return (eager ? windows.unlikely_pages() : windows.free_pages()) < wanted;
}

std::uint32_t Scheduler::free_pages_of(PageKind kind) const {
  return kind == PageKind::kFull ? pool_.free_pages() : pool_.windows().free_pages();
}

// Makes the cache grow because `wanted` pages of this kind are lacking, and returns whether the pool has more of them
// now. While sequences run, which wait for that, the cache grows at most once a step for sequences that have not begun.
bool Scheduler::more_pages(PageKind kind, std::uint32_t wanted, Need need) {
  if (const std::optional<std::uint32_t> leaving = pool_.slabs(kind).leaving()) {
    pool_.add_slab(*leaving);
    return true;
  }
  if (!grow_ || (need == Need::kWaiting && grew_ && !running_.empty())) return false;
  const std::optional<std::uint32_t> slab = pool_.absent_slab(kind);
  if (!slab || !grow_(*slab)) {
    if (free_pages_of(kind) < wanted) let_slab_leave_for(kind);
    return false;
  }
  pool_.add_slab(*slab);
  counts_.add("kv_slabs_added_total");
  too_few_pages_.reset();
  grew_ = true;
  return true;
}

// Pages of this kind are lacking and there is no memory for more. If the other kind has two slabs' pages to spare, one
// of its slabs leaves, so that this kind gets the memory in a later step.
void Scheduler::let_slab_leave_for(PageKind kind) {
  const PageKind other = kind == PageKind::kFull ? PageKind::kWindow : PageKind::kFull;
  const PageSlabs& slabs = pool_.slabs(other);
  if (slabs.present() == 0 || !pool_.slabs(kind).absent()) return;
  if (free_pages_of(other) < 2 * slabs.slab_pages() + running_.size()) return;
  let_slab_leave(other);
  in_need_until_ = step_number_ + kStepsInNeed;
}

// Makes the cache grow for a running sequence that lacks pages for its next position.
bool Scheduler::more_pages_for(const Sequence& sequence) {
  const bool lacks_full = pool_.pages_for(sequence.length()) > sequence.pages.pages().size();
  return more_pages(lacks_full ? PageKind::kFull : PageKind::kWindow, 1, Need::kRunning);
}

void Scheduler::let_slab_leave(PageKind kind) {
  const WindowPool& windows = pool_.windows();
  const bool full = kind == PageKind::kFull;
  const std::uint32_t longest = pool_.pages_for(sequence_limit_);
  const std::uint32_t least =
      full ? longest + limits_.slab_pages
           : std::min(longest, windows.reserve()) + limits_.window_slab_pages;
  const std::uint32_t present = full ? pool_.present_pages() : windows.present_pages();
  if (present >= least + pool_.pages_left_out(kind)) pool_.let_slab_leave(kind);
}

}  // namespace bulkhead::engine
