#include "worker/engine/scheduler.hpp"

#include <algorithm>

namespace bulkhead::engine {
namespace {

// One column is always left for a prompt, or a full batch would keep it waiting for as long as it
// generates.
std::uint32_t most_running(const ExecutorLimits& limits, std::uint32_t max_batch) {
  const std::uint32_t columns = limits.max_columns > 1 ? limits.max_columns - 1 : 1;
  return std::max(1U, std::min({max_batch, limits.max_outputs, limits.max_sequences, columns}));
}

}  // namespace

Scheduler::Scheduler(const ExecutorLimits& limits, const SchedulerOptions& options)
    : limits_(limits),
      prefill_chunk_(std::max(1U, options.prefill_chunk)),
      prefix_cache_(options.prefix_cache),
      max_running_(most_running(limits, options.max_batch)),
      pool_(limits.total_pages, limits.page_tokens,
            options.prefix_cache ? Sharing::kPrefixes : Sharing::kNone) {
  sequence_limit_ =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(limits.context, pool_.total_positions()));
  running_.reserve(max_running_);
  turn_.reserve(max_running_);
  members_.reserve(max_running_);
  tables_.reserve(max_running_);
  columns_.reserve(limits.max_columns);
}

void Scheduler::add(Sequence& sequence) {
  sequence.state = Sequence::State::kWaiting;
  sequence.pages = PageList(pool_);
  sequence.pages.reserve(
      std::min(std::max<std::uint32_t>(sequence.most_tokens,
                                       static_cast<std::uint32_t>(sequence.tokens.size())),
               sequence_limit_));
  sequence.computed = 0;
  waiting_.push_back(&sequence);
}

void Scheduler::remove(Sequence& sequence) {
  switch (sequence.state) {
    case Sequence::State::kDetached:
      return;
    case Sequence::State::kWaiting:
      std::erase(waiting_, &sequence);
      break;
    case Sequence::State::kRunning:
      std::erase(running_, &sequence);
      break;
  }
  for (Member& member : members_) {
    if (member.sequence == &sequence) member.sequence = nullptr;
  }
  sequence.pages.clear();
  sequence.state = Sequence::State::kDetached;
}

const Step* Scheduler::plan() {
  columns_.clear();
  tables_.clear();
  members_.clear();
  if (running_.empty() && waiting_.empty()) return nullptr;
  ++step_number_;
  // Running sequences grow before new ones are let in, so that a page is not given away and taken
  // back at once.
  plan_generating();
  admit();
  plan_prefill();
  step_.columns = columns_;
  step_.sequences = tables_;
  return columns_.empty() ? nullptr : &step_;
}

void Scheduler::complete() {
  for (const Member& member : members_) {
    if (member.sequence == nullptr) continue;
    Sequence& sequence = *member.sequence;
    sequence.computed += member.columns;
    sequence.pages.publish({sequence.tokens.data(), sequence.computed});
  }
}

void Scheduler::plan_generating() {
  // Oldest first: who loses its pages is younger than who takes them, so it has no columns in this
  // step yet.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.pending() != 1) continue;
    const auto positions = static_cast<std::uint32_t>(sequence.tokens.size());
    while (sequence.state == Sequence::State::kRunning && !sequence.pages.cover(positions)) {
      preempt_youngest();
    }
    if (sequence.state == Sequence::State::kRunning) add_columns(sequence, 1);
  }
}

void Scheduler::admit() {
  while (!waiting_.empty() && running_.size() < max_running_) {
    Sequence& sequence = *waiting_.front();
    const auto positions = static_cast<std::uint32_t>(sequence.tokens.size());
    sequence.pages.adopt(all_but_last(sequence));
    const std::uint32_t wanted = std::min(pool_.pages_for(positions) + 1, pool_.total_pages()) -
                                 static_cast<std::uint32_t>(sequence.pages.pages().size());
    if (pool_.free_pages() < wanted || !sequence.pages.cover(positions)) {
      sequence.pages.clear();
      return;
    }
    go_on_after_shared(sequence);
    waiting_.pop_front();
    sequence.state = Sequence::State::kRunning;
    sequence.served = ++turns_;  // behind those that wait for their next chunk
    running_.push_back(&sequence);
  }
}

void Scheduler::plan_prefill() {
  turn_.clear();
  for (Sequence* sequence : running_) {
    if (sequence->planned_in != step_number_) turn_.push_back(sequence);
  }
  std::sort(turn_.begin(), turn_.end(),
            [](const Sequence* a, const Sequence* b) { return a->served < b->served; });
  const auto used = static_cast<std::uint32_t>(columns_.size());
  std::uint32_t budget = std::min(prefill_chunk_, limits_.max_columns - used);
  for (Sequence* sequence : turn_) {
    if (budget == 0) return;
    if (prefix_cache_ && sequence->computed == sequence->pages.shared_positions()) {
      if (sequence->pages.adopt(all_but_last(*sequence)) > 0) go_on_after_shared(*sequence);
      if (waits_for_another(*sequence)) continue;
    }
    const std::uint32_t count = std::min(budget, sequence->pending());
    prefix_figures_.miss_tokens += count;
    prefix_figures_.miss_pages += (sequence->computed + count) / pool_.page_tokens() -
                                  sequence->computed / pool_.page_tokens();
    add_columns(*sequence, count);
    budget -= count;
    sequence->served = ++turns_;
  }
}

std::span<const TokenId> Scheduler::all_but_last(const Sequence& sequence) {
  return std::span(sequence.tokens).first(sequence.tokens.size() - 1);
}

void Scheduler::go_on_after_shared(Sequence& sequence) {
  const std::uint32_t positions = sequence.pages.shared_positions();
  const std::uint32_t found = positions - sequence.computed;
  prefix_figures_.hit_tokens += found;
  prefix_figures_.hit_pages += found / pool_.page_tokens();
  if (sequence.preemptions == 0) sequence.adopted += found;
  sequence.computed = positions;
}

// Whether another running sequence with the same tokens so far is at work on the page that this one
// comes to next.
bool Scheduler::waits_for_another(const Sequence& sequence) const {
  const std::uint32_t at = sequence.pages.shared();
  const std::size_t begin = sequence.computed, size = pool_.page_tokens();
  if (begin + size >= sequence.tokens.size()) return false;  // its last token is in it
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    const bool ahead = other->computed > sequence.computed || other->planned_in == step_number_;
    return other != &sequence && ahead && other->pages.shared() == at &&
           (at == 0 || other->pages.pages()[at - 1] == sequence.pages.pages()[at - 1]) &&
           other->tokens.size() >= begin + size &&
           std::equal(other->tokens.begin() + begin, other->tokens.begin() + begin + size,
                      sequence.tokens.begin() + begin);
  });
}

void Scheduler::preempt_youngest() {
  Sequence& victim = *running_.back();
  running_.pop_back();
  victim.pages.clear();
  victim.computed = 0;
  victim.state = Sequence::State::kWaiting;
  ++victim.preemptions;
  ++preemptions_;
  waiting_.push_front(&victim);
}

void Scheduler::add_columns(Sequence& sequence, std::uint32_t count) {
  const auto index = static_cast<std::uint32_t>(members_.size());
  const auto tokens = static_cast<std::uint32_t>(sequence.tokens.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t position = sequence.computed + i;
    columns_.push_back({.token = sequence.tokens[position],
                        .position = position,
                        .sequence = index,
                        .output = position + 1 == tokens ? sequence.output : Output::kNone});
  }
  tables_.push_back(sequence.pages.pages());
  members_.push_back({&sequence, count});
  sequence.planned_in = step_number_;
}

}  // namespace bulkhead::engine
