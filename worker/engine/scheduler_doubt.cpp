// Doubt: what happens to sequences whose pages or outputs may be wrong (scheduler.hpp).
#include <vector>

#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {

std::size_t Scheduler::distrust(std::span<const PageIndex> pages, PagePool::Fate fate) {
  const std::vector<bool> dropped = pool_.drop(pages, fate);
  std::size_t count = 0;
  for (std::size_t i = running_.size(); i > 0; --i) {
    Sequence& sequence = *running_[i - 1];
    if (std::ranges::none_of(sequence.pages.pages(), [&](PageIndex page) { return dropped[page]; }))
      continue;
    send_back(sequence);
    ++count;
  }
  // Preempted sequences no longer have the pages, but steps in flight may still compute their tokens from them.
  for (Sequence* const sequence : waiting_)
    forget_coming_tokens(*sequence);
  return count;
}

void Scheduler::compute_again(Sequence& sequence) {
  const std::span<const PageIndex> all = sequence.pages.pages();
  const std::vector<PageIndex> shared(all.begin(), all.begin() + sequence.pages.shared());
  distrust(shared, PagePool::Fate::kUseAgain);
  sequence.alone = true;
  if (sequence.state == Sequence::State::kRunning) send_back(sequence);
}

std::size_t Scheduler::lose_step() {
  forget_completed();
  std::size_t count = 0;
  for (std::size_t i = running_.size(); i > 0; --i) {
    Sequence& sequence = *running_[i - 1];
    if (std::ranges::none_of(oldest().members, [&](const Member& member) {
          return member.sequence == &sequence && member.preemptions == sequence.preemptions;
        }))
      continue;
    send_back(sequence);
    ++count;
  }
  for (Sequence* const sequence : waiting_) {
    if (std::ranges::find(oldest().members, sequence, &Member::sequence) != oldest().members.end())
      forget_coming_tokens(*sequence);
  }
  return count;
}

// A preempted sequence waits while steps in flight still choose tokens of it. Drops these tokens: one of them may be
// wrong or never come, and the later ones follow from it.
void Scheduler::forget_coming_tokens(Sequence& sequence) {
  forget_outputs_of(sequence);
  sequence.unknown = 0;
}

// Sends a sequence back to the queue, as preemption does, but without using any of its pages again.
void Scheduler::send_back(Sequence& sequence) {
  std::erase(running_, &sequence);
  forget_outputs_of(sequence);
  free_pages_of(sequence);
  sequence.computed = sequence.done = sequence.unknown = 0;
  ++sequence.preemptions;
  wait_again(sequence);
}

}  // namespace bulkhead::engine
