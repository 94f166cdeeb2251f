#include "worker/engine/scheduler.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace bulkhead::engine {
namespace {

// Returns how many slots of states drafts may have at once.
std::uint32_t most_draft_states(const ExecutorLimits& limits) {
  return std::min(limits.max_drafts, limits.states - std::min(limits.states, 1U));
}

// One column is always left for a prompt. Otherwise a full batch would keep the prompt waiting until a sequence ends.
std::uint32_t most_running(const ExecutorLimits& limits, std::uint32_t max_batch) {
  const std::uint32_t columns = limits.max_columns > 1 ? limits.max_columns - 1 : 1;
  const std::uint32_t states =
      limits.states > 0 ? limits.states - most_draft_states(limits) : max_batch;
  return std::max(1U,
                  std::min({max_batch, limits.max_outputs, limits.max_sequences, columns, states}));
}

}  // namespace

Scheduler::Scheduler(const ExecutorLimits& limits, const SchedulerOptions& options)
    : limits_(limits),
      prefill_chunk_(
          std::max(1U, options.prefill_chunk == 0 ? limits.max_columns : options.prefill_chunk)),
      prefill_chunk_alone_(std::max(prefill_chunk_, options.prefill_chunk_alone)),
      prefill_limit_(prefill_chunk_alone_),
      prefix_cache_(options.prefix_cache && !limits.both_ways),
      max_running_(most_running(limits, options.max_batch)),
      pace_(options.max_token_gap, limits.step_us),
      pool_(limits, prefix_cache_ ? Sharing::kPrefixes : Sharing::kNone),
      states_(limits.states, max_running_ + most_draft_states(limits), limits.total_pages) {
  if (limits.states > 0) limits_.max_drafts = most_draft_states(limits);
  if (limits.states > 0) pool_.set_states(&states_);
  sequence_limit_ = static_cast<std::uint32_t>(longest_sequence());
  running_.reserve(max_running_);
  turn_.reserve(max_running_);
  records_.resize(std::size_t{std::max(1U, limits.steps_in_flight)} + 1);
  for (Planned& record : records_) {
    record.members.reserve(max_running_);
    record.tables.reserve(max_running_);
    record.windows.reserve(pool_.windows().exists() ? max_running_ : 0);
    record.states.reserve(max_running_);
    record.columns.reserve(limits.max_columns);
  }
  kept_.reserve(std::size_t{max_running_} * records_.size());
  held_.reserve(max_running_);
}

void Scheduler::add(Sequence& sequence) {
  sequence.state = Sequence::State::kWaiting;
  sequence.pages = PageList(pool_);
  sequence.pages.reserve(
      std::min(std::max<std::uint32_t>(sequence.most_tokens,
                                       static_cast<std::uint32_t>(sequence.tokens.size())),
               sequence_limit_));
  sequence.computed = sequence.done = sequence.unknown = 0;
  sequence.arrival = ++arrivals_;
  sequence.passed = 0;
  too_few_pages_.reset();  // it may fit although an earlier one does not
  waiting_.push_back(&sequence);
}

void Scheduler::remove(Sequence& sequence) {
  switch (sequence.state) {
    case Sequence::State::kDetached:
      return;
    case Sequence::State::kWaiting:
      std::erase(waiting_, &sequence);
      too_few_pages_.reset();
      break;
    case Sequence::State::kRunning:
      std::erase(running_, &sequence);
      break;
  }
  forget_outputs_of(sequence);
  free_pages_of(sequence);
  sequence.computed = sequence.done = sequence.unknown = 0;
  sequence.state = Sequence::State::kDetached;
}

const Step* Scheduler::plan() {
  forget_completed();
  for (; !held_.empty(); held_.pop_back())
    states_.let_go(held_.back());
  if (running_.empty() && waiting_.empty()) return nullptr;
  if (planned_ > 0 && records_[latest_].drafts > 0) return nullptr;
  latest_ = (oldest_ + planned_) % records_.size();
  Planned& record = records_[latest_];
  record.columns.clear();
  record.tables.clear();
  record.windows.clear();
  record.states.clear();
  record.members.clear();
  record.outputs = record.drafts = 0;
  record.prompts = {};
  record.number = ++step_number_;
  grew_ = false;
  // Running sequences get pages before new ones are admitted, so that no page is given away and taken back at once.
  plan_generating();
  if (record.drafts == 0) {
    admit();
    plan_prefill();
    preempt_for_windows();
  }
  if (record.columns.empty()) {
    --step_number_;
    return nullptr;
  }
  record.turns = turns_;
  ++planned_;
  step_.columns = record.columns;
  step_.sequences = record.tables;
  step_.states = record.states;
  step_.windows = record.windows;
  return &step_;
}

void Scheduler::complete() {
  forget_completed();
  const Planned& record = oldest();
  completed_ = true;
  completed_number_ = record.number;
  completed_turns_ = record.turns;
  for (const Member& member : record.members) {
    if (member.sequence == nullptr) {
      if (member.saved != kNoState) states_.give_back(member.saved);
      continue;
    }
    Sequence& sequence = *member.sequence;
    sequence.unknown -= member.outputs;
    if (member.preemptions != sequence.preemptions) {  // it lost the pages of that step
      if (member.saved != kNoState) states_.give_back(member.saved);
      continue;
    }
    sequence.done += member.columns;
    publish(sequence);
    if (member.saved != kNoState) keep_saved(sequence, member);
    if (pool_.windows().exists()) slide_window(sequence);
  }
  std::erase_if(kept_, [this](const Kept& kept) { return kept.after <= completed_number_; });
}

void Scheduler::forget_completed() {
  if (!std::exchange(completed_, false)) return;
  free_states_of_drafts(records_[oldest_]);
  oldest_ = (oldest_ + 1) % records_.size();
  --planned_;
}

bool Scheduler::confirm(std::uint32_t column) {
  Planned& record = records_[oldest_];
  Column& computed = record.columns[column];
  const Member& member = record.members[computed.sequence];
  if (column < member.drafts_from) return true;
  if (member.sequence == nullptr) return false;
  Sequence& sequence = *member.sequence;
  if (computed.output != sequence.output) return false;
  if (computed.position >= sequence.tokens.size() ||
      sequence.tokens[computed.position] != computed.token) {
    return false;
  }
  // No step was planned since then, so the sequence still has its pages.
  ++sequence.computed;
  ++sequence.done;
  publish(sequence);
  if (limits_.states > 0) go_on_after_draft(sequence, computed);
  return true;
}

// Lets other sequences find the pages that steps which have ended filled.
void Scheduler::publish(Sequence& sequence) {
  if (sequence.alone) return;
  sequence.pages.publish(
      std::span(sequence.tokens)
          .first(std::min<std::size_t>(sequence.done, sequence.tokens.size())));
}

void Scheduler::ask(Sequence& sequence, Output output) {
  sequence.output = output;
  for (std::size_t i = 1; i < planned_; ++i) {  // the first record is the completed step's
    for (Member& member : records_[(oldest_ + i) % records_.size()].members) {
      if (member.sequence != &sequence) continue;
      sequence.unknown -= member.outputs;
      if (member.preemptions == sequence.preemptions) sequence.computed -= member.columns;
      member.sequence = nullptr;
    }
  }
}

std::uint32_t Scheduler::draft_room() const {
  if (in_flight() > 0 && records_[latest_].drafts > 0) return 0;  // no further step is planned after one with drafts
  const bool reads = std::ranges::any_of(running_, [](const Sequence* sequence) {
    return sequence->computed < sequence->known || sequence->pending() > 1;
  });
  const FreePages free = free_pages();
  const bool admits = !waiting_.empty() && running_.size() < max_running_ &&
                      (!too_few_pages_ || free.full > too_few_pages_->full ||
                       free.windows > too_few_pages_->windows);
  const auto own = static_cast<std::uint32_t>(running_.size());
  const std::uint32_t columns = std::min(limits_.max_columns, limits_.max_outputs);
  if (reads || admits || columns <= own) return 0;
  return std::min({limits_.max_drafts, columns - own, prefill_limit_});
}

std::uint32_t Scheduler::most_tokens_of(const Sequence& sequence) const {
  return sequence.most_tokens != 0 ? std::min(sequence.most_tokens, sequence_limit_)
                                   : sequence_limit_;
}

// Says whether this step can compute the sequence's next token: its last token is known, or the step before chooses
// it.
bool Scheduler::may_generate(const Sequence& sequence, std::uint64_t step) const {
  if (sequence.pending() != 1) return false;
  if (sequence.unknown == 0) return true;
  if (!limits_.hands_tokens_on) return false;
  // If layers carry states, a dropped position can't be computed again.
  const bool stays = !sequence.may_ask_otherwise || limits_.states == 0;
  return sequence.output != Output::kLogits && stays && sequence.planned_in + 1 == step &&
         sequence.length() < most_tokens_of(sequence);
}

// How many generating sequences a step has at most. If the executor hands no tokens on, each step in flight has its
// share of them.
std::size_t Scheduler::most_generating() const {
  if (limits_.hands_tokens_on || limits_.steps_in_flight < 2) return running_.size();
  const auto generating = static_cast<std::size_t>(std::ranges::count_if(
      running_, [](const Sequence* each) { return each->unknown > 0 || each->pending() == 1; }));
  return (generating + limits_.steps_in_flight - 1) / limits_.steps_in_flight;
}

void Scheduler::plan_generating() {
  const auto each = static_cast<std::uint32_t>(running_.size());
  for (const PageKind kind : kPageKinds) {
    if (lacks_pages(kind, each)) more_pages(kind, each, Need::kRunning);
  }
  const std::uint32_t room = draft_room();
  std::size_t left = most_generating();
  // The oldest sequence comes first. A sequence that loses its pages is younger than the one that takes them, so it
  // has no columns in this step yet.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const std::span<const TokenId> drafts = std::exchange(sequence.drafts, {});
    if (!may_generate(sequence, step_number_)) continue;
    if (left == 0) {
      sequence.passed_over_in = step_number_;  // its turn comes in another step
      continue;
    }
    --left;
    // If pages become free when a step has ended, the sequence waits for that.
    while (sequence.state == Sequence::State::kRunning &&
           !sequence.pages.cover_all(sequence.length()) && !pages_come_free_for(sequence)) {
      if (!more_pages_for(sequence)) preempt_youngest();
    }
    const bool covered = sequence.length() <= sequence.pages.covered();
    if (sequence.state != Sequence::State::kRunning || !covered) continue;
    add_columns(sequence, 1);
    add_drafts(sequence, drafts.first(std::min<std::size_t>(
                             drafts.size(), room - std::min(room, records_[latest_].drafts))));
  }
}

// Adds the drafts' columns after the sequence's own column, which add_columns() has just added.
void Scheduler::add_drafts(Sequence& sequence, std::span<const TokenId> drafts) {
  Planned& record = records_[latest_];
  // The output of the last draft's column gives the sequence's last token.
  const std::uint32_t length = sequence.length();
  const std::uint32_t most = most_tokens_of(sequence);
  drafts = drafts.first(std::min<std::size_t>(drafts.size(), most - std::min(most, length)));
  if (drafts.empty()) return;
  // One page for each running sequence stays free, so that no sequence is preempted for a guess.
  const auto wanted = sequence.computed + static_cast<std::uint32_t>(drafts.size());
  const FreePages free = free_pages();
  const std::uint32_t least =
      pool_.windows().exists() ? std::min(free.full, free.windows) : free.full;
  if (least < running_.size() + drafts.size() || !sequence.pages.cover_all(wanted)) {
    const std::uint64_t room = sequence.pages.covered() - sequence.computed;
    drafts = drafts.first(std::min<std::uint64_t>(drafts.size(), room));
  }
  record.tables.back() = sequence.pages.pages();
  if (pool_.windows().exists()) record.windows.back() = sequence.pages.windows();
  for (const TokenId token : drafts) {
    Column column = record.columns.back();
    column.token = token;
    column.chosen_by = kByHost;
    ++column.position;
    if (limits_.states > 0) column.state_slot = states_.lend();
    record.columns.push_back(column);
  }
  record.outputs += static_cast<std::uint32_t>(drafts.size());
  record.drafts += static_cast<std::uint32_t>(drafts.size());
}

void Scheduler::plan_prefill() {
  lacks_windows_ = false;
  turn_.clear();
  for (Sequence* sequence : running_) {
    const bool waits = sequence->planned_in == step_number_ ||
                       sequence->passed_over_in == step_number_ || sequence->unknown > 0 ||
                       sequence->pages.pages().size() < pool_.pages_for(sequence->length());
    if (waits) continue;
    // Keeps the order; among equals the older one comes first. (std::stable_sort allocates.)
    const auto place = std::upper_bound(
        turn_.begin(), turn_.end(), sequence,
        [](const Sequence* a, const Sequence* b) { return a->served < b->served; });
    turn_.insert(place, sequence);
  }
  Planned& record = records_[latest_];
  const auto used = static_cast<std::uint32_t>(record.columns.size());
  std::uint32_t chunk = prefill_chunk_alone_;
  const bool beside = any_generates() && !limits_.both_ways;
  double share = record.share = beside ? share_for_prompts() : PromptPace::kAlone;
  if (beside) {
    // All columns together fill a device's tiles, and a few columns more would begin another tile.
    const std::uint32_t rest = prefill_chunk_ - std::min(used, prefill_chunk_);
    chunk = std::max({rest, prefill_chunk_ / 2, 1U});
  }
  std::uint32_t budget = std::min({chunk, prefill_limit_, limits_.max_columns - used});
  if (limits_.both_ways) budget = limits_.max_columns - used;
  for (std::size_t i = 0; i < turn_.size() && budget > 0; ++i) {
    Sequence* const sequence = turn_[i];
    if (shares_pages(*sequence) && sequence->computed == sequence->pages.shared_positions()) {
      if (reuse_pages(*sequence) > 0) go_on_after_shared(*sequence);
      if (waits_for_another(*sequence)) continue;
    }
    std::uint32_t count = std::min(budget, sequence->pending());
    // The step after this one has room for it, because the sequence is then the first.
    if (limits_.both_ways && count < sequence->pending()) break;
    // A step makes at most one snapshot of each sequence; here it would have to make two.
    if (limits_.states > 0 && sequence->branch > sequence->computed &&
        sequence->branch < end_to_save(*sequence))
      count = std::min(count, sequence->branch - sequence->computed);
    if (sequence->prompt_output != Output::kNone &&
        sequence->computed + 1 < sequence->prompt_length) {
      // Each of its columns may need a row of outputs, and each sequence after it may need one.
      const auto behind = static_cast<std::uint32_t>(turn_.size() - 1 - i);
      count = std::min(count, limits_.max_outputs - record.outputs - behind);
    }
    if (beside) {
      const std::uint32_t least = record.prompts.sum() == 0 ? PromptPace::kLeastColumns : 0;
      const std::uint32_t paced = within_width(static_cast<std::uint32_t>(record.columns.size()),
                                               pace_.columns(sequence->computed, share));
      count = std::min(count, std::max(paced, least));
      if (count == 0) break;
    }
    count = columns_with_windows(*sequence, count);
    if (count == 0) continue;
    if (beside) share -= pace_.share(sequence->computed, count);
    record.prompts.add(sequence->computed, count);
    add_columns(*sequence, count);
    budget -= count;
    // A turn has several steps, so that a prompt of usual length is read at once, and its stream begins early.
    sequence->in_turn += count;
    if (2 * sequence->in_turn < prefill_limit_) continue;
    sequence->in_turn = 0;
    sequence->served = ++turns_;
  }
}

// Returns how many of `count` further columns a step takes. The step is bounded by time and already has `used` columns.
// A step that fills less than three quarters of a width may take longer than a full step of the next smaller width, and
// read hardly more. Such a step takes only as many columns as fill the smaller width. If it has these already, and some
// of them are a prompt's, it takes none.
std::uint32_t Scheduler::within_width(std::uint32_t used, std::uint32_t count) const {
  const std::uint32_t all = used + count;
  const auto next = std::ranges::upper_bound(limits_.widths, all);
  if (next == limits_.widths.begin()) return count;
  const std::uint32_t width = *std::prev(next);
  if (next == limits_.widths.end() || 4 * all >= 3 * *next) return count;
  if (width > used) return width - used;
  return records_[latest_].prompts.sum() > 0 ? 0 : count;
}

// Returns the share of a step for prompts. It is never 0: a step takes a prompt's least columns
// however long they take.
double Scheduler::share_for_prompts() const {
  const bool any_waits = std::ranges::any_of(running_, [](const Sequence* sequence) {
    return sequence->computed >= sequence->known && sequence->output == Output::kLogits;
  });
  constexpr double kLeastShare = 0.01;
  const double part = any_waits ? 1.0 / std::max(1U, limits_.steps_in_flight) : 1;
  return std::max(pace_.share_within(part), kLeastShare);
}

// Says whether any sequence generates. One that this step leaves out counts, too, if the host has
// yet to choose its token.
bool Scheduler::any_generates() const {
  return std::ranges::any_of(
      running_, [](const Sequence* sequence) { return sequence->computed >= sequence->known; });
}

void Scheduler::preempt_youngest() {
  Sequence& victim = *running_.back();
  running_.pop_back();
  free_pages_of(victim);
  victim.computed = victim.done = 0;
  ++victim.preemptions;
  counts_.add("preemptions_total");
  wait_again(victim);
}

void Scheduler::forget_outputs_of(const Sequence& sequence) {
  for (Planned& record : records_) {
    for (Member& member : record.members) {
      if (member.sequence == &sequence) member.sequence = nullptr;
    }
  }
}

// Frees the sequence's states as well.
void Scheduler::free_pages_of(Sequence& sequence) {
  free_state_of(sequence);
  if (sequence.planned_in <= completed_number_ || sequence.pages.pages().empty())
    return sequence.pages.clear();
  kept_.push_back({std::move(sequence.pages), sequence.planned_in});
  sequence.pages = PageList(pool_);
}

void Scheduler::add_columns(Sequence& sequence, std::uint32_t count) {
  Planned& record = records_[latest_];
  const auto index = static_cast<std::uint32_t>(record.members.size());
  const auto known = static_cast<std::uint32_t>(sequence.tokens.size());
  const std::uint32_t length = sequence.length();
  const std::uint32_t row_before = sequence.row;
  std::uint32_t outputs = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    Column column;
    column.position = sequence.computed + i;
    column.sequence = index;
    if (column.position < known) {
      column.token = sequence.tokens[column.position];
    } else {
      column.chosen_by = row_before;
    }
    if (column.position + 1 == length) {
      column.output = sequence.output;
      column.tells_hidden = sequence.tells_hidden;
      if (column.output == Output::kSampled) column.choice = &sequence.choice;
      if (column.output != Output::kLogits) {
        column.logprobs = sequence.logprobs;
        column.adjusted = sequence.adjusted;
        column.edited = sequence.edited;
      }
      sequence.row = record.outputs++;
      ++outputs;
    } else if (sequence.prompt_output != Output::kNone &&
               column.position + 1 < sequence.prompt_length) {
      column.output = sequence.prompt_output;
      ++record.outputs;
    }
    record.columns.push_back(column);
  }
  const std::uint32_t from = std::min(sequence.computed, sequence.known);
  const std::uint32_t to = std::min(sequence.computed + count, sequence.known);
  prefix_figures_.miss_tokens += to - from;
  prefix_figures_.miss_pages += to / pool_.page_tokens() - from / pool_.page_tokens();
  record.tables.push_back(sequence.pages.pages());
  if (pool_.windows().exists()) record.windows.push_back(sequence.pages.windows());
  Member member{&sequence, count, outputs, sequence.preemptions};
  if (sequence.slot != kNoState) record.states.push_back(use_of_states(sequence, member));
  member.drafts_from = static_cast<std::uint32_t>(record.columns.size());
  record.members.push_back(member);
  sequence.computed += count;
  sequence.unknown += outputs;
  sequence.planned_in = step_number_;
}

}  // namespace bulkhead::engine
