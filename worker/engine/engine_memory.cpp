// The engine's part that deals with pages and states that the guard finds changed, and with those that a
// predecessor left.
#include <string>
#include <vector>

#include "config/base/log.hpp"
#include "worker/engine/engine.hpp"

namespace bulkhead::engine {

// Takes the results of the comparisons that were started before this step. Sequences that use a changed page
// have to compute their tokens again.
Status Engine::look_at_memory(std::uint64_t step) {
  BULKHEAD_TRY(const DamagedMemory found, guard_.collect(step));
  if (!found.states.empty()) leave_out_states(found.states);
  const std::span<const PageIndex> damaged = found.pages;
  if (damaged.empty()) return {};
  if (!scheduler_.can_leave_out(damaged)) {
    return Error(ErrorCode::kDeviceLost,
                 std::to_string(damaged.size()) +
                     " KV pages are not what they were, and the cache is too small without them");
  }
  const std::size_t again = scheduler_.distrust(damaged, PagePool::Fate::kLeaveOut);
  counts_.add("requests_computed_again_total", again);
  spdlog::error(
      "{} KV pages are not what they were, page {} among them: they are not used any more, and {} "
      "requests are computed again; the device's memory, or what writes to it, can't be trusted",
      damaged.size(), damaged.front(), again);
  return {};
}

// Nobody goes on from such states any more, and whoever did so computes its tokens again. The memory of the pages
// behind which they were saved is as good as before.
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
      "{} saved states are not what they were, slot {} among them: {} slots are not used any more, "
      "and {} requests are computed again; the device's memory, or what writes to it, can't be "
      "trusted",
      states.size(), states.front().slot, left_out, again);
}

Result<std::uint32_t> Engine::adopt(std::span<const EnteredPage> pages) {
  BULKHEAD_TRY(const std::vector<EnteredPage> sound, guard_.sound(pages));
  const std::uint32_t taken = scheduler_.adopt(sound);
  guard_.know(sound);
  for (const EnteredPage& page : pages) {
    if (page.page < scheduler_.pool().all_pages() && !scheduler_.pool().can_be_found(page.page))
      guard_.left(page.page);
  }
  BULKHEAD_TRY(const DamagedMemory found, guard_.collect(PageGuard::kAll));
  const std::span<const PageIndex> damaged = found.pages;
  if (damaged.empty()) return taken;
  scheduler_.distrust(damaged, scheduler_.can_leave_out(damaged) ? PagePool::Fate::kLeaveOut
                                                                 : PagePool::Fate::kUseAgain);
  spdlog::error(
      "{} of {} KV pages that the last process left are not what they were, page {} among them: "
      "what they held is computed again",
      damaged.size(), pages.size(), damaged.front());
  return taken;
}

Result<std::uint32_t> Engine::adopt_states(std::span<const EnteredState> states) {
  const std::uint64_t damaged = guard_.figures().damaged;
  BULKHEAD_TRY(const std::vector<bool> whole, guard_.whole(states));
  if (const std::uint64_t spoilt = guard_.figures().damaged - damaged; spoilt > 0) {
    spdlog::error("{} of {} saved states that the last process left are not what they were", spoilt,
                  states.size());
  }
  std::uint32_t taken = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!whole[i] || !scheduler_.adopt_state(states[i].page, states[i].slot)) {
      guard_.overwritten(states[i].slot);
      // Without checksums, nobody knows whether the memory is unchanged.
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
