// The engine's part that deals with pages and states that the guard finds changed, and with those that a
// predecessor left.
#include <algorithm>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "config/base/log.hpp"
#include "worker/engine/engine.hpp"

namespace bulkhead::engine {

// Asks the device for a slab's memory, but not again and again while there is none.
bool Engine::grow_cache(std::uint32_t slab) {
  constexpr std::chrono::seconds kBetweenRefusals{1};
  const Clock::time_point now = options_.now();
  if (refused_at_ && now - *refused_at_ < kBetweenRefusals) return false;
  refused_at_.reset();
  // Its memory is still there if the steps that may read its pages have not ended yet.
  const bool still_there = std::exchange(slabs_leave_after_[slab], 0) != 0;
  const auto left = std::ranges::count_if(slabs_leave_after_, [](auto step) { return step != 0; });
  if (!still_there && scheduler_.pool().slabs_there() + left >= executor_.limits().slabs())
    return false;
  if (!still_there && !executor_.grow(slab)) {
    refused_at_ = now;
    counts_.add("kv_slabs_refused_total");
    return false;
  }
  if (!still_there) guard_.slab_added(slab);
  note_slab_added(slab, now);
  return true;
}

// The scheduler is about to get the slab.
void Engine::note_slab_added(std::uint32_t slab, Clock::time_point now) {
  for (const PageKind kind : kPageKinds) {
    const PageSlabs& slabs = scheduler_.pool().slabs(kind);
    if (slabs.owns(slab)) use_of(kind).needed_at[slabs.present()] = now;
  }
}

std::uint32_t Engine::pages_used(PageKind kind) const {
  const PagePool& pool = scheduler_.pool();
  return kind == PageKind::kFull ? pool.used_pages() : pool.windows().used_pages();
}

// While sequences run, slabs up to the eager size are needed for what the prefix cache has there, and so is a page that
// each of them takes next: the scheduler grows the cache for it. Pages that are left out count as used, too, but no
// sequence has them.
void Engine::note_slabs_needed(PageKind kind, Clock::time_point now) {
  const ExecutorLimits& limits = executor_.limits();
  const PageSlabs& slabs = scheduler_.pool().slabs(kind);
  SlabUse& use = use_of(kind);
  const std::uint32_t eager =
      kind == PageKind::kFull ? limits.eager_pages : limits.window_eager_pages;
  const std::uint32_t used = std::exchange(use.most_pages_used, pages_used(kind));
  const bool runs = used > scheduler_.pool().pages_left_out(kind);
  const auto next = static_cast<std::uint32_t>(scheduler_.running());
  const std::uint32_t pages = runs ? std::max(used + next, eager) : 0;
  const std::uint32_t behind = pages - std::min(pages, slabs.always());
  const std::size_t needed = std::min<std::size_t>(
      (behind + slabs.slab_pages() - 1) / slabs.slab_pages(), use.needed_at.size());
  std::fill_n(use.needed_at.begin(), needed, now);
}

// Gives back slabs when fewer have sufficed for some time. Steps in flight may still read a page that no sequence has
// any more (PageList::publish), so the device keeps the memory until these steps have ended.
void Engine::give_slabs_back() {
  constexpr std::chrono::milliseconds kBetweenLooks{250};
  if (slabs_leave_after_.empty()) return;
  const Clock::time_point now = options_.now();
  const bool look = now - slabs_looked_at_ >= kBetweenLooks;
  if (look) slabs_looked_at_ = now;
  for (const PageKind kind : kPageKinds) {
    SlabUse& use = use_of(kind);
    use.most_pages_used = std::max(use.most_pages_used, pages_used(kind));
    if (!look || use.needed_at.empty() || options_.keep_slabs.count() == 0) continue;
    note_slabs_needed(kind, now);
    const std::uint32_t present = scheduler_.pool().slabs(kind).present();
    if (present > 0 && now - use.needed_at[present - 1] >= options_.keep_slabs)
      scheduler_.let_slab_leave(kind);
  }
  if (const std::optional<std::uint32_t> slab = scheduler_.slab_that_left())
    slabs_leave_after_[*slab] = std::max<std::uint64_t>(steps_submitted_, 1);
  for (std::uint32_t slab = 0; slab < slabs_leave_after_.size(); ++slab) {
    std::uint64_t& after = slabs_leave_after_[slab];
    if (after == 0 || (scheduler_.in_flight() > 0 && steps_ended_ < after)) continue;
    after = 0;
    guard_.slab_returned(slab);
    executor_.shrink(slab);
    counts_.add("kv_slabs_returned_total");
  }
}

// Takes the results of the comparisons that were started before this step. Sequences that use a changed page
// have to compute their tokens again.
Status Engine::look_at_memory(std::uint64_t step) {
  BULKHEAD_TRY(const DamagedMemory found, guard_.collect(step));
  if (!found.states.empty()) leave_out_states(found.states);
  const std::span<const PageIndex> damaged = found.pages;
  if (damaged.empty()) {
    give_slabs_back();
    return {};
  }
  if (!scheduler_.can_leave_out(damaged)) {
    return Error(ErrorCode::kDeviceLost,
                 std::to_string(damaged.size()) +
                     " KV pages have changed in memory, and the cache is too small without them");
  }
  const std::size_t again = scheduler_.distrust(damaged, PagePool::Fate::kLeaveOut);
  counts_.add("requests_computed_again_total", again);
  spdlog::error(
      "{} KV pages have changed in memory, page {} among them: they are no longer used, and {} "
      "requests are computed again; the device's memory, or what writes to it, can't be trusted",
      damaged.size(), damaged.front(), again);
  return {};
}

// No sequence goes on from these states any more, and sequences that did so compute their tokens again. The pages
// after which the states were saved are not damaged, so their memory is used again.
void Engine::leave_out_states(std::span<const EnteredState> states) {
  std::vector<PageIndex> pages;
  for (const EnteredState& state : states)
    pages.push_back(state.page);
  const std::size_t again = scheduler_.distrust(pages, PagePool::Fate::kUseAgain);
  counts_.add("requests_computed_again_total", again);
  std::size_t left_out = 0;
  for (const EnteredState& state : states)
    left_out += scheduler_.leave_out_state(state.slot) ? 1 : 0;
  spdlog::error(
      "{} saved states have changed in memory, slot {} among them: {} slots are no longer used, "
      "and "
      "{} requests are computed again; the device's memory, or what writes to it, can't be trusted",
      states.size(), states.front().slot, left_out, again);
}

// Returns the pages whose memory is there, without those that follow an absent one.
std::vector<EnteredPage> Engine::present_of(std::span<const EnteredPage> pages) const {
  const PagePool& pool = scheduler_.pool();
  std::vector<bool> there(pool.all_pages());
  std::vector<EnteredPage> present;
  for (const EnteredPage& page : pages) {
    const bool follows = page.before == PrefixIndex::kRoot || there[page.before];
    if (!follows || !pool.is_present(page.page)) continue;
    there[page.page] = true;
    present.push_back(page);
  }
  return present;
}

Result<std::uint32_t> Engine::adopt(std::span<const EnteredPage> pages) {
  BULKHEAD_TRY(const std::vector<EnteredPage> sound, guard_.sound(present_of(pages)));
  const std::uint32_t taken = scheduler_.adopt(sound);
  guard_.know(sound);
  // Each page leaves before the one that it follows, or belongs to.
  for (const EnteredPage& page : std::views::reverse(pages)) {
    if (page.page < scheduler_.pool().all_pages() && !scheduler_.pool().can_be_found(page.page))
      guard_.left(page.page);
  }
  BULKHEAD_TRY(const DamagedMemory found, guard_.collect(PageGuard::kAll));
  const std::span<const PageIndex> damaged = found.pages;
  if (damaged.empty()) return taken;
  scheduler_.distrust(damaged, scheduler_.can_leave_out(damaged) ? PagePool::Fate::kLeaveOut
                                                                 : PagePool::Fate::kUseAgain);
  spdlog::error(
      "{} of {} KV pages that the last process left have changed in memory, page {} among them: "
      "their tokens are computed again",
      damaged.size(), pages.size(), damaged.front());
  return taken;
}

Result<std::uint32_t> Engine::adopt_states(std::span<const EnteredState> states) {
  const std::uint64_t damaged = guard_.figures().damaged;
  BULKHEAD_TRY(const std::vector<bool> whole, guard_.whole(states));
  if (const std::uint64_t spoilt = guard_.figures().damaged - damaged; spoilt > 0) {
    spdlog::error("{} of {} saved states that the last process left have changed in memory", spoilt,
                  states.size());
  }
  std::uint32_t taken = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!whole[i] || !scheduler_.adopt_state(states[i].page, states[i].slot)) {
      guard_.overwritten(states[i].slot);
      // Without checksums, there is no sign whether the memory is unchanged.
      if (!whole[i] && executor_.limits().most_pages_summed > 0)
        scheduler_.leave_out_state(states[i].slot);
      continue;
    }
    guard_.know(states[i]);
    ++taken;
  }
  return taken;
}

}  // namespace bulkhead::engine
