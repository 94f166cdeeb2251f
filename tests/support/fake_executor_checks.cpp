// Checks that each step keeps the contract of executor.hpp.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tests/support/fake_executor.hpp"

namespace bulkhead::test {

Error FakeExecutor::broken(const std::string& what) {
  return Error(ErrorCode::kInternal, "the step breaks the executor's contract: " + what);
}

bool FakeExecutor::is_present(engine::PageIndex page) const {
  if (page < limits_.pages_at_first()) return true;
  if (page >= limits_.total_pages + limits_.window_pages) return true;  // a state, or a gap
  if (page >= limits_.total_pages && page - limits_.total_pages < limits_.window_pages_at_first())
    return true;
  return std::ranges::any_of(slabs, [&](std::uint32_t slab) {
    const auto [first, count] = pages_of(slab);
    return page >= first && page - first < count;
  });
}

Status FakeExecutor::check(const engine::Step& step) const {
  if (!in_flight_.empty() && in_flight_.back().waits_for_adjustments)
    return broken("a step behind one that waits for its adjustments");
  if (in_flight_.size() >= std::max(1U, limits_.steps_in_flight))
    return broken("too many steps in flight");
  if (step.columns.empty()) return broken("it has no columns");
  if (step.columns.size() > limits_.max_columns) return broken("too many columns");
  if (step.sequences.size() > limits_.max_sequences) return broken("too many sequences");
  const auto outputs = std::count_if(step.columns.begin(), step.columns.end(), [](const auto& c) {
    return c.output != engine::Output::kNone;
  });
  if (outputs > limits_.max_outputs) return broken("too many outputs");
  if (std::ranges::count(step.columns, engine::Output::kLogits, &engine::Column::output) >
      reserved_)
    return broken("more rows of logits than were reserved");
  std::map<engine::PageIndex, std::uint32_t> users;
  for (const auto& pages : step.sequences) {
    const std::set<engine::PageIndex> distinct(pages.begin(), pages.end());
    if (distinct.size() != pages.size()) return broken("a page twice in one sequence");
    for (const engine::PageIndex page : pages) {
      if (page >= limits_.total_pages) return broken("a page that does not exist");
      if (!is_present(page)) return broken("a page without memory");
      ++users[page];
    }
  }
  if (limits_.states > 0 && step.states.size() != step.sequences.size())
    return broken("sequences without states");
  std::set<std::uint32_t> written;
  for (const engine::StateUse& use : step.states) {
    if (limits_.states == 0 || std::max({use.from, use.to, use.saved}) >= limits_.states)
      return broken("a state's slot that does not exist");
    if (!written.insert(use.to).second) return broken("a state's slot of two sequences");
    if (use.saved_after > 0 && !written.insert(use.saved).second)
      return broken("a state saved where another one lies");
  }
  BULKHEAD_RETURN_IF_ERROR(check_drafts(step, written));
  for (std::size_t i = 0; i < step.states.size(); ++i) {
    const engine::StateUse& use = step.states[i];
    if (use.from != use.to && written.contains(use.from))
      return broken("a state that the same step overwrites");
  }
  if (step.hidden.size() != (limits_.takes_hidden ? step.columns.size() : 0))
    return broken("hidden states for other columns than it has");
  for (const std::span<const float> state : step.hidden) {
    if (state.size() != limits_.embedding) return broken("a hidden state of another width");
  }
  std::uint32_t sequence_before = 0;
  std::vector<std::optional<std::uint32_t>> last(step.sequences.size());
  for (const engine::Column& column : step.columns) {
    if (column.sequence >= step.sequences.size()) return broken("a column of no sequence");
    if ((column.output == engine::Output::kHidden || column.tells_hidden) && limits_.embedding == 0)
      return broken("a hidden state that is not on offer");
    if (limits_.states > 0 && column.sequence < sequence_before)
      return broken("a sequence's columns apart");
    sequence_before = column.sequence;
    if (column.output == engine::Output::kSampled &&
        (column.choice == nullptr || limits_.sampled_top_k == 0 ||
         (column.choice->top_k > limits_.sampled_top_k &&
          column.choice->top_k < limits_.vocabulary))) {
      return broken("a draw that is not on offer");
    }
    if (column.logprobs > limits_.most_logprobs ||
        (column.logprobs >= 0 && column.output != engine::Output::kGreedy &&
         column.output != engine::Output::kSampled)) {
      return broken("log-probabilities that are not on offer");
    }
    if (column.adjusted && (!edits_reserved_ || (column.output != engine::Output::kGreedy &&
                                                 column.output != engine::Output::kSampled))) {
      return broken("adjustments that are not on offer");
    }
    if (column.token >= limits_.vocabulary) return broken("a token outside the vocabulary");
    if (column.chosen_by != engine::kByHost &&
        (column.chosen_by >= outputs_submitted_.size() ||
         outputs_submitted_[column.chosen_by] == engine::Output::kLogits)) {
      return broken("a token that the step before does not choose");
    }
    if (column.position >= limits_.context) return broken("a position past the context");
    if (column.position / limits_.page_tokens >= step.sequences[column.sequence].size()) {
      return broken("a position without a page");
    }
    const auto page = step.sequences[column.sequence][column.position / limits_.page_tokens];
    if (users[page] > 1) return broken("a write to a page that two sequences share");
    auto& previous = last[column.sequence];
    if (previous && column.position != *previous + 1) return broken("positions with a gap");
    previous = column.position;
  }
  return {};
}

// Adds the slots that drafts write to.
Status FakeExecutor::check_drafts(const engine::Step& step,
                                  std::set<std::uint32_t>& written) const {
  std::uint32_t own = 0;  // columns of the sequence before its drafts
  for (std::size_t i = 0; i < step.columns.size(); ++i) {
    const engine::Column& column = step.columns[i];
    const bool first = i == 0 || step.columns[i - 1].sequence != column.sequence;
    if (first) own = 0;
    if (column.state_slot == engine::kNoState) {
      if (!first && step.columns[i - 1].state_slot != engine::kNoState)
        return broken("a column after a draft that is no draft");
      ++own;
      continue;
    }
    if (first) return broken("a draft without a column before it");
    if (step.states[column.sequence].saved_after > own) return broken("a draft's states are saved");
    if (column.state_slot >= limits_.states || !written.insert(column.state_slot).second)
      return broken("a draft's slot that does not exist or is used twice");
  }
  return {};
}

Status FakeExecutor::check_against(const Pending& earlier, const engine::Step& step) const {
  for (const engine::Column& column : earlier.columns) {
    const std::size_t at = column.position / limits_.page_tokens;
    const auto& owner = earlier.tables[column.sequence];
    for (const auto& pages : step.sequences) {
      const auto found = std::find(pages.begin(), pages.end(), owner[at]);
      if (found == pages.end()) continue;
      const auto index = static_cast<std::size_t>(found - pages.begin());
      if (index != at) return broken("a page that a step in flight may still write to");
    }
  }
  return {};
}

Status FakeExecutor::check_windows(const engine::Step& step) const {
  if (limits_.window == 0) return {};
  if (step.windows.size() != step.sequences.size()) return broken("sequences without window pages");
  std::map<engine::PageIndex, std::uint32_t> users;
  for (std::size_t s = 0; s < step.windows.size(); ++s) {
    const engine::WindowPages& window = step.windows[s];
    if (window.first + window.pages.size() > step.sequences[s].size())
      return broken("more window pages than pages");
    const std::set<engine::PageIndex> distinct(window.pages.begin(), window.pages.end());
    if (distinct.size() != window.pages.size())
      return broken("a window page twice in one sequence");
    for (const engine::PageIndex page : window.pages) {
      if (page < limits_.total_pages || page >= limits_.total_pages + limits_.window_pages)
        return broken("a window page that does not exist");
      if (!is_present(page)) return broken("a window page without memory");
      ++users[page];
    }
  }
  for (const engine::Column& column : step.columns) {
    const engine::WindowPages& window = step.windows[column.sequence];
    const std::uint32_t first = column.position + 1 - std::min(column.position + 1, limits_.window);
    const std::uint32_t at = column.position / limits_.page_tokens;
    if (first / limits_.page_tokens < window.first || at >= window.first + window.pages.size())
      return broken("a position whose window has not all pages");
    if (users[window.pages[at - window.first]] > 1)
      return broken("a write to a window page that two sequences share");
    for (const Pending& earlier : in_flight_) {
      for (const engine::Column& other : earlier.columns) {
        const std::size_t index = other.position / limits_.page_tokens;
        if (earlier.windows[other.sequence][index] == window.pages[at - window.first] &&
            index != at)
          return broken("a window page that a step in flight may still write to");
      }
    }
  }
  return {};
}

}  // namespace bulkhead::test
