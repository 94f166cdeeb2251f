// The scheduler's part that asks for more pages, if the cache can grow.
#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {

// Says whether the cache should grow before it hands out `wanted` pages.
bool Scheduler::lacks_pages(std::uint32_t wanted) const {
  const bool eager = pool_.present_pages() < limits_.eager_pages;
  return (eager ? pool_.empty_pages() : pool_.free_pages()) < wanted;
}

// Makes the cache grow, and returns whether the pool has more pages now. While sequences run, which wait for that, the
// cache grows at most once a step for sequences that have not begun.
bool Scheduler::more_pages(Need need) {
  if (const std::optional<std::uint32_t> leaving = pool_.leaving_slab()) {
    pool_.add_slab(*leaving);
    return true;
  }
  const std::optional<std::uint32_t> slab = pool_.absent_slab();
  if (!slab || !grow_) return false;
  if (need == Need::kWaiting && grew_ && !running_.empty()) return false;
  if (!grow_(*slab)) return false;
  pool_.add_slab(*slab);
  counts_.add("kv_slabs_added_total");
  too_few_pages_.reset();
  grew_ = true;
  return true;
}

void Scheduler::let_slab_leave() {
  const std::uint32_t least =
      pool_.pages_for(sequence_limit_) + pool_.pages_left_out() + limits_.slab_pages;
  if (pool_.present_pages() >= least) pool_.let_slab_leave();
}

}  // namespace bulkhead::engine
