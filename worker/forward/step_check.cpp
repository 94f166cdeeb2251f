#include "worker/forward/step_check.hpp"

#include <string>

namespace bulkhead::forward {

Status check_step(const engine::Step& step, const engine::ExecutorLimits& limits,
                  std::uint32_t outputs_before) {
  const auto refuse = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "step: " + what);
  };
  if (step.columns.empty()) return refuse("no columns");
  if (step.columns.size() > limits.max_columns) {
    return refuse(std::to_string(step.columns.size()) + " columns; at most " +
                  std::to_string(limits.max_columns));
  }
  if (step.sequences.size() > limits.max_sequences) {
    return refuse(std::to_string(step.sequences.size()) + " sequences; at most " +
                  std::to_string(limits.max_sequences));
  }
  std::uint32_t outputs = 0;
  for (const engine::Column& column : step.columns) {
    if (column.token >= limits.vocabulary) return refuse("token " + std::to_string(column.token));
    if (column.chosen_by != engine::kByHost && column.chosen_by >= outputs_before)
      return refuse("output " + std::to_string(column.chosen_by) + " of the step before");
    if (column.position >= limits.context)
      return refuse("position " + std::to_string(column.position));
    if (column.sequence >= step.sequences.size())
      return refuse("sequence " + std::to_string(column.sequence));
    if (column.position / limits.page_tokens >= step.sequences[column.sequence].size()) {
      return refuse("position " + std::to_string(column.position) + " has no page");
    }
    outputs += column.output != engine::Output::kNone ? 1 : 0;
    if (column.output == engine::Output::kSampled &&
        (column.choice == nullptr || limits.sampled_top_k == 0 ||
         (column.choice->top_k > limits.sampled_top_k &&
          column.choice->top_k < limits.vocabulary))) {
      return refuse("a draw that the device can't make");
    }
    if (column.output == engine::Output::kHidden && limits.embedding == 0)
      return refuse("a hidden state");
    if (column.logprobs >= 0 &&
        (column.logprobs > limits.most_logprobs ||
         (column.output != engine::Output::kGreedy && column.output != engine::Output::kSampled))) {
      return refuse("log-probabilities that the device can't tell");
    }
  }
  if (outputs > limits.max_outputs) return refuse(std::to_string(outputs) + " outputs");
  const std::uint64_t most_pages =
      (std::uint64_t{limits.context} + limits.page_tokens - 1) / limits.page_tokens;
  for (const auto& pages : step.sequences) {
    if (pages.size() > most_pages) return refuse("more pages than the context has");
    for (const engine::PageIndex page : pages) {
      if (page >= limits.total_pages) return refuse("page " + std::to_string(page));
    }
  }
  return {};
}

}  // namespace bulkhead::forward
