#include "worker/forward/step_check.hpp"

#include <algorithm>
#include <string>

namespace bulkhead::forward {
namespace {

Error wrong_step(const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, "step: " + what);
}

Status check_states(const engine::Step& step, const engine::ExecutorLimits& limits) {
  if (limits.states == 0) return {};
  if (step.states.size() != step.sequences.size()) return wrong_step("sequences without states");
  for (const engine::StateUse& use : step.states) {
    if (std::max({use.from, use.to, use.saved}) >= limits.states)
      return wrong_step("a state's slot");
  }
  for (std::size_t i = 0; i < step.columns.size(); ++i) {
    const engine::Column& column = step.columns[i];
    const bool first = i == 0 || step.columns[i - 1].sequence != column.sequence;
    if (column.state_slot == engine::kNoState) {
      if (!first && step.columns[i - 1].state_slot != engine::kNoState)
        return wrong_step("a column after a draft that is no draft");
    } else if (first || column.state_slot >= limits.states) {
      return wrong_step("a draft's slot for states");
    }
  }
  for (std::size_t i = 1; i < step.columns.size(); ++i) {
    const engine::Column &column = step.columns[i], &before = step.columns[i - 1];
    const bool follows = column.sequence == before.sequence ? column.position == before.position + 1
                                                            : column.sequence > before.sequence;
    if (!follows) return wrong_step("columns of a sequence that do not follow each other");
  }
  return {};
}

Status check_windows(const engine::Step& step, const engine::ExecutorLimits& limits) {
  if (limits.window == 0) return {};
  if (step.windows.size() != step.sequences.size())
    return wrong_step("sequences without window pages");
  for (std::size_t i = 0; i < step.windows.size(); ++i) {
    const engine::WindowPages& window = step.windows[i];
    if (window.first + window.pages.size() > step.sequences[i].size())
      return wrong_step("more window pages than pages");
    for (const engine::PageIndex page : window.pages) {
      if (page < limits.total_pages || page - limits.total_pages >= limits.window_pages)
        return wrong_step("window page " + std::to_string(page));
    }
  }
  for (const engine::Column& column : step.columns) {
    const engine::WindowPages& window = step.windows[column.sequence];
    const std::uint32_t seen = std::min(column.position + 1, limits.window);
    if ((column.position + 1 - seen) / limits.page_tokens < window.first ||
        column.position / limits.page_tokens >= window.first + window.pages.size()) {
      return wrong_step("position " + std::to_string(column.position) +
                        " has not all pages of its window");
    }
  }
  return {};
}

// Each sequence's columns are those of positions 0 and up, one after the other.
Status check_whole(const engine::Step& step, const engine::ExecutorLimits& limits) {
  if (!limits.both_ways) return {};
  for (std::size_t i = 0; i < step.columns.size(); ++i) {
    const engine::Column& column = step.columns[i];
    const bool first = i == 0 || step.columns[i - 1].sequence != column.sequence;
    const bool rises = i == 0 || step.columns[i - 1].sequence <= column.sequence;
    if (!rises || column.position != (first ? 0 : step.columns[i - 1].position + 1))
      return wrong_step("a part of a sequence whose columns see all of it");
  }
  return {};
}

}  // namespace

Status check_step(const engine::Step& step, const engine::ExecutorLimits& limits,
                  std::uint32_t outputs_before) {
  if (step.columns.empty()) return wrong_step("no columns");
  if (step.columns.size() > limits.max_columns) {
    return wrong_step(std::to_string(step.columns.size()) + " columns; at most " +
                      std::to_string(limits.max_columns));
  }
  if (step.sequences.size() > limits.max_sequences) {
    return wrong_step(std::to_string(step.sequences.size()) + " sequences; at most " +
                      std::to_string(limits.max_sequences));
  }
  std::uint32_t outputs = 0;
  for (const engine::Column& column : step.columns) {
    if (column.token >= limits.vocabulary)
      return wrong_step("token " + std::to_string(column.token));
    if (column.chosen_by != engine::kByHost && column.chosen_by >= outputs_before)
      return wrong_step("output " + std::to_string(column.chosen_by) + " of the step before");
    if (column.position >= limits.context)
      return wrong_step("position " + std::to_string(column.position));
    if (column.sequence >= step.sequences.size())
      return wrong_step("sequence " + std::to_string(column.sequence));
    if (column.position / limits.page_tokens >= step.sequences[column.sequence].size()) {
      return wrong_step("position " + std::to_string(column.position) + " has no page");
    }
    outputs += column.output != engine::Output::kNone ? 1 : 0;
    if (column.output == engine::Output::kSampled &&
        (column.choice == nullptr || limits.sampled_top_k == 0 ||
         (column.choice->top_k > limits.sampled_top_k &&
          column.choice->top_k < limits.vocabulary))) {
      return wrong_step("a draw that the device can't make");
    }
    if ((column.output == engine::Output::kHidden || column.tells_hidden) && limits.embedding == 0)
      return wrong_step("a hidden state");
    if (column.logprobs >= 0 &&
        (column.logprobs > limits.most_logprobs ||
         (column.output != engine::Output::kGreedy && column.output != engine::Output::kSampled))) {
      return wrong_step("log-probabilities that the device can't compute");
    }
    if (column.adjusted && (!limits.adjusts || (column.output != engine::Output::kGreedy &&
                                                column.output != engine::Output::kSampled))) {
      return wrong_step("an adjustment where none can be");
    }
  }
  if (outputs > limits.max_outputs) return wrong_step(std::to_string(outputs) + " outputs");
  const std::uint64_t most_pages =
      (std::uint64_t{limits.context} + limits.page_tokens - 1) / limits.page_tokens;
  for (const auto& pages : step.sequences) {
    if (pages.size() > most_pages) return wrong_step("more pages than the context has");
    for (const engine::PageIndex page : pages) {
      if (page >= limits.total_pages) return wrong_step("page " + std::to_string(page));
    }
  }
  const std::size_t states = limits.takes_hidden ? step.columns.size() : 0;
  const bool fit = std::ranges::all_of(
      step.hidden, [&](const auto& state) { return state.size() == limits.embedding; });
  if (step.hidden.size() != states || !fit) return wrong_step("hidden states that do not fit");
  BULKHEAD_RETURN_IF_ERROR(check_windows(step, limits));
  BULKHEAD_RETURN_IF_ERROR(check_whole(step, limits));
  return check_states(step, limits);
}

}  // namespace bulkhead::forward
