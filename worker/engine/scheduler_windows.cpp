// The scheduler's part that deals with layers that have sliding windows (window_pages.hpp).
#include <algorithm>

#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {

// If there are fewer window pages than a long sequence needs to go on, sequences never release any,
// so all of a sequence's positions must fit them.
std::uint64_t Scheduler::longest_sequence() const {
  const std::uint64_t longest = std::min<std::uint64_t>(limits_.context, pool_.total_positions());
  const WindowPool& windows = pool_.windows();
  const std::uint32_t always = windows.slabs().always();
  return always >= windows.reserve()
             ? longest
             : std::min(longest, std::uint64_t{always} * pool_.page_tokens());
}

// Gives the sequence the window pages with which it can go on even if no further ones are free, but
// none past its tokens.
bool Scheduler::cover_reserve(Sequence& sequence, Growth growth) {
  const std::uint64_t size = pool_.page_tokens();
  const WindowPages has = sequence.pages.windows();
  const std::uint64_t end = (has.first + std::uint64_t{pool_.windows().reserve()}) * size;
  const std::uint64_t full = sequence.pages.pages().size() * size;
  const auto wanted =
      static_cast<std::uint32_t>(std::min({end, full, std::uint64_t{sequence.length()}}));
  if (growth == Growth::kAllowed) {
    const std::uint32_t pages = pool_.pages_for(wanted) - has.first;
    const auto own = static_cast<std::uint32_t>(has.pages.size());
    const std::uint32_t lacking = pages - std::min(pages, own);
    while (lacks_pages(PageKind::kWindow, lacking) &&
           more_pages(PageKind::kWindow, lacking, Need::kWaiting)) {
    }
  }
  return sequence.pages.cover_windows(wanted);
}

// Gives the sequence window pages for up to `wanted` columns, and returns for how many columns it has
// them. One page for each running sequence stays free, so that no sequence that generates is preempted
// for a prompt. The cache grows to its eager size so that the step has all columns, and beyond if it would have none.
std::uint32_t Scheduler::columns_with_windows(Sequence& sequence, std::uint32_t wanted) {
  const WindowPool& windows = pool_.windows();
  if (!windows.exists()) return wanted;
  const auto count_now = [&] {
    const std::uint32_t free = windows.free_pages();
    const std::uint32_t spare = free - std::min(free, static_cast<std::uint32_t>(running_.size()));
    const WindowPages has = sequence.pages.windows();
    const std::uint64_t room = (has.first + has.pages.size() + spare) * pool_.page_tokens();
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(wanted, room - std::min<std::uint64_t>(room, sequence.computed)));
  };
  std::uint32_t count = count_now();
  while ((count == 0 || (count < wanted && windows.present_pages() < limits_.window_eager_pages)) &&
         more_pages(PageKind::kWindow, static_cast<std::uint32_t>(running_.size()) + 1,
                    Need::kWaiting))
    count = count_now();
  if (count == 0 || !sequence.pages.cover_windows(sequence.computed + count)) {
    lacks_windows_ = true;
    return 0;
  }
  return count;
}

// Releases window pages that no step of the sequence needs any more. A sequence that reads a prompt
// gets its reserve again at once, before a newcomer takes those pages.
void Scheduler::slide_window(Sequence& sequence) {
  const auto page_at = [&](std::uint32_t position) {
    return position > sequence.own_from ? 0 : position / pool_.page_tokens();
  };
  const std::uint32_t ends[] = {page_at(end_to_save(sequence)), page_at(sequence.known),
                                page_at(sequence.reused_end), page_at(sequence.branch)};
  sequence.pages.slide(sequence.done, ends);
  if (sequence.pending() > 1) static_cast<void>(cover_reserve(sequence, Growth::kForbidden));
}

// Says whether pages that a generating sequence lacks may become free when a step in flight has
// ended.
bool Scheduler::pages_come_free_for(const Sequence& sequence) const {
  const bool lacks_full = pool_.pages_for(sequence.length()) > sequence.pages.pages().size();
  return !kept_.empty() || (planned_ > 0 && !lacks_full);
}

// Preempts a sequence if a step would compute nothing because sequences that read prompts have all window pages. In
// the end the oldest sequence continues, alone if necessary.
void Scheduler::preempt_for_windows() {
  while (records_[latest_].columns.empty() && planned_ == 0 && running_.size() > 1 &&
         lacks_windows_) {
    preempt_youngest();
    plan_prefill();
  }
}

}  // namespace bulkhead::engine
