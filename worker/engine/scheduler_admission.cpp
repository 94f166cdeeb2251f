// The scheduler's part that admits waiting sequences (scheduler.hpp, "Admission").
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {
namespace {

// How many waiting sequences behind the first one a step looks at, because each look searches the prefix cache.
constexpr std::size_t kMostLookedAt = 32;

}  // namespace

// Puts a sequence that has lost its pages back into the queue: before all that arrived later.
void Scheduler::wait_again(Sequence& sequence) {
  sequence.state = Sequence::State::kWaiting;
  too_few_pages_.reset();  // the flag was about another sequence
  const auto place = std::ranges::upper_bound(waiting_, sequence.arrival, {}, &Sequence::arrival);
  waiting_.insert(place, &sequence);
}

// Gives a waiting sequence pages for all its tokens and one more, but no more than there can be. Returns false, and the
// sequence has none, if too few are free.
bool Scheduler::give_pages(Sequence& sequence, Growth growth) {
  const auto positions = static_cast<std::uint32_t>(sequence.tokens.size());
  if (shares_pages(sequence)) reuse_pages(sequence);
  const auto wanted = [&] {
    const std::uint32_t most = pool_.present_pages() - pool_.pages_left_out(PageKind::kFull);
    return std::min(pool_.pages_for(positions) + 1, most) -
           static_cast<std::uint32_t>(sequence.pages.pages().size());
  };
  while (growth == Growth::kAllowed && lacks_pages(PageKind::kFull, wanted()) &&
         more_pages(PageKind::kFull, wanted(), Need::kWaiting)) {
  }
  if (pool_.free_pages() >= wanted() && sequence.pages.cover(positions) &&
      cover_reserve(sequence, growth))
    return true;
  sequence.pages.clear();
  return false;
}

void Scheduler::run(Sequence& sequence) {
  sequence.known = static_cast<std::uint32_t>(sequence.tokens.size());
  go_on_after_shared(sequence);
  if (limits_.states > 0) sequence.slot = states_.lend();
  sequence.state = Sequence::State::kRunning;
  // It comes after the sequences that wait for their next chunk, but not after those whose chunk in flight was
  // planned before this sequence arrived.
  sequence.served = completed_turns_;
  sequence.in_turn = sequence.passed = 0;
  const auto place = std::ranges::upper_bound(running_, sequence.arrival, {}, &Sequence::arrival);
  running_.insert(place, &sequence);
}

void Scheduler::admit() {
  const FreePages free = free_pages();
  const std::optional<FreePages> before = std::exchange(too_few_pages_, std::nullopt);
  // Since the scheduler looked last, nobody has come and no page has become free.
  const bool looked = before && free.full <= before->full && free.windows <= before->windows;
  std::size_t at = 0;  // the sequences before it do not fit
  while (at < waiting_.size() && running_.size() < max_running_) {
    Sequence& sequence = *waiting_[at];
    if (sequence.unknown > 0) return;  // it lost its pages, and its last token is not known yet
    if (give_pages(sequence, at == 0 ? Growth::kAllowed : Growth::kForbidden)) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
      run(sequence);
      for (std::size_t i = 0; i < at; ++i)
        ++waiting_[i]->passed;
    } else {
      ++at;
      if (grew_) return;  // the cache grows for the first one, by a slab in each step
    }
    if (at > 0) too_few_pages_ = looked ? before : free_pages();
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(at);
    const bool enough = std::any_of(waiting_.begin(), end, [this](const Sequence* each) {
      return each->passed >= max_running_;
    });
    if ((looked && at > 0) || enough || at > kMostLookedAt) return;
  }
}

}  // namespace bulkhead::engine
