// The scheduler's part that deals with states (scheduler.hpp, "States"): which snapshot a sequence goes on from,
// which states of a step are worth saving, and what becomes of the states after drafts.
#include <algorithm>
#include <utility>

#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {
namespace {

// The snapshot of a prompt is saved at least this many tokens before its end: chat templates open an
// answer with a few tokens that the next turn's prompt does not have there.
constexpr std::uint32_t kPromptTail = 8;

}  // namespace

void Scheduler::go_on_from_snapshot(Sequence& sequence) {
  if (sequence.resume != kNoState) states_.let_go(sequence.resume);
  sequence.resume = states_.use(sequence.pages.pages()[sequence.pages.shared() - 1]);
  states_.hold(sequence.resume);
}

// Returns the position after the last page of a prompt that gets a snapshot; 0 if the prompt is
// too short.
std::uint32_t Scheduler::end_to_save(const Sequence& sequence) const {
  const std::uint32_t end = sequence.known - std::min(sequence.known, kPromptTail);
  return end / pool_.page_tokens() * pool_.page_tokens();
}

// Most pages have no snapshot. So a sequence waits only for the snapshot at the end of another
// sequence's prompt, if its own tokens begin with that prompt.
bool Scheduler::waits_for_snapshot(const Sequence& sequence) const {
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    const std::uint32_t end = end_to_save(*other);
    const bool ahead = other->computed > sequence.computed || other->planned_in == step_number_;
    return other != &sequence && ahead && shares_pages(*other) && end > sequence.computed &&
           other->pages.shared_positions() < end && sequence.tokens.size() > end &&
           std::equal(other->tokens.begin(), other->tokens.begin() + end, sequence.tokens.begin());
  });
}

StateUse Scheduler::use_of_states(Sequence& sequence, Member& member) {
  StateUse use{sequence.slot, sequence.slot};
  if (sequence.resume != kNoState) {
    use.from = std::exchange(sequence.resume, kNoState);
    held_.push_back(use.from);
  }
  if (shares_pages(sequence)) choose_saving(sequence, member);
  if (member.saved_at == 0) return use;
  member.saved = states_.lend_for_saving();
  if (member.saved == kNoState) return use;
  use.saved = member.saved;
  use.saved_after = member.saved_at - sequence.computed;
  return use;
}

// Chooses one of the pages that the sequence's columns of this step fill: the one whose states are
// worth saving.
void Scheduler::choose_saving(Sequence& sequence, Member& member) const {
  const std::uint32_t from = sequence.computed, to = from + member.columns;
  const auto is_here = [&](std::uint32_t position) { return position > from && position <= to; };
  const std::uint32_t last = to / pool_.page_tokens() * pool_.page_tokens();
  const bool reads = from < sequence.known;
  if (reads && is_here(sequence.branch)) {
    member.saved_at = std::exchange(sequence.branch, 0);
  } else if (reads && is_here(end_to_save(sequence))) {
    member.saved_at = end_to_save(sequence);
  } else if (is_here(last) && (!reads || to < sequence.known)) {
    member.saved_at = last;
    member.passing = true;
  }
}

void Scheduler::keep_saved(Sequence& sequence, const Member& member) {
  const std::uint32_t pages = member.saved_at / pool_.page_tokens();
  if (pages > sequence.pages.shared()) return states_.give_back(member.saved);
  const PageIndex page = sequence.pages.pages()[pages - 1];
  const std::uint64_t number = states_.enter(page, member.saved);
  states_.drop(std::exchange(sequence.passing_page, page),
               std::exchange(sequence.passing, member.passing ? number : 0));
}

// Call it when the draft was right: the sequence continues from the states after it. If the draft filled a page, these
// states become the page's snapshot, and the sequence's next columns read them there and write to its own slot.
void Scheduler::go_on_after_draft(Sequence& sequence, Column& draft) {
  if (sequence.resume != kNoState) states_.let_go(std::exchange(sequence.resume, kNoState));
  const std::uint32_t positions = draft.position + 1, pages = positions / pool_.page_tokens();
  if (positions % pool_.page_tokens() == 0 && shares_pages(sequence) &&
      pages <= sequence.pages.shared()) {
    const PageIndex page = sequence.pages.pages()[pages - 1];
    const std::uint64_t number = states_.enter_lent(page, draft.state_slot);
    if (number != 0) {
      sequence.resume = std::exchange(draft.state_slot, kNoState);
      states_.hold(sequence.resume);
      return states_.drop(std::exchange(sequence.passing_page, page),
                          std::exchange(sequence.passing, number));
    }
  }
  std::swap(sequence.slot, draft.state_slot);
}

// The slots of right drafts belong to their sequences by now, which left their former slots instead.
void Scheduler::free_states_of_drafts(Planned& record) {
  if (record.drafts == 0) return;
  for (Column& column : record.columns) {
    if (column.state_slot != kNoState)
      states_.give_back(std::exchange(column.state_slot, kNoState));
  }
}

void Scheduler::free_state_of(Sequence& sequence) {
  if (sequence.resume != kNoState) states_.let_go(std::exchange(sequence.resume, kNoState));
  if (sequence.slot != kNoState) states_.give_back(std::exchange(sequence.slot, kNoState));
}

bool Scheduler::adopt_state(PageIndex page, StateSlot slot) {
  return prefix_cache_ && page < pool_.total_pages() && pool_.index().contains(page) &&
         states_.adopt(page, slot);
}

}  // namespace bulkhead::engine
