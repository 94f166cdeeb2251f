#include "worker/forward/step_copy.hpp"

namespace bulkhead::forward {

void StepCopy::take(const engine::Step& step) {
  columns_.assign(step.columns.begin(), step.columns.end());
  plain_.assign(step.columns.begin(), step.columns.end());
  for (engine::Column& column : plain_) {
    column.output = engine::Output::kNone;
    column.choice = nullptr;
    column.logprobs = -1;
    column.adjusted = column.tells_hidden = false;
  }
  adjustments_.clear();
  // Pointers into `choices_` hold only if it does not grow any more.
  choices_.clear();
  choices_.reserve(columns_.size());
  for (engine::Column& column : columns_) {
    if (column.choice != nullptr) column.choice = &choices_.emplace_back(*column.choice);
  }
  pages_.clear();
  for (const auto& pages : step.sequences)
    pages_.insert(pages_.end(), pages.begin(), pages.end());
  for (const engine::WindowPages& window : step.windows)
    pages_.insert(pages_.end(), window.pages.begin(), window.pages.end());
  std::span<const engine::PageIndex> left = pages_;
  const auto next = [&left](std::size_t count) {
    const auto taken = left.first(count);
    left = left.subspan(count);
    return taken;
  };
  sequences_.clear();
  for (const auto& pages : step.sequences)
    sequences_.push_back(next(pages.size()));
  states_.assign(step.states.begin(), step.states.end());
  windows_.clear();
  for (const engine::WindowPages& window : step.windows)
    windows_.push_back({window.first, next(window.pages.size())});
}

void StepCopy::take_adjustments(std::span<const engine::Adjustment> adjustments) {
  mask_words_.clear();
  edits_.clear();
  std::span<const engine::LogitEdit> shared;
  const auto shares = [&shared](std::span<const engine::LogitEdit> list) {
    return list.data() == shared.data() && list.size() == shared.size();
  };
  for (const engine::Adjustment& each : adjustments) {
    mask_words_.insert(mask_words_.end(), each.mask.begin(), each.mask.end());
    const engine::LogitEdits& edits = each.edits;
    if (!shares(edits.list)) edits_.insert(edits_.end(), edits.list.begin(), edits.list.end());
    edits_.insert(edits_.end(), edits.ahead.begin(), edits.ahead.end());
    shared = edits.list;
  }
  std::span<const std::uint32_t> words = mask_words_;
  std::span<const engine::LogitEdit> left = edits_, list;
  const auto next = [&left](std::size_t count) {
    const auto taken = left.first(count);
    left = left.subspan(count);
    return taken;
  };
  adjustments_.clear();
  shared = {};
  for (const engine::Adjustment& each : adjustments) {
    if (!shares(each.edits.list)) list = next(each.edits.list.size());
    shared = each.edits.list;
    adjustments_.push_back({words.first(each.mask.size()),
                            {list, next(each.edits.ahead.size()), each.edits.repetition}});
    words = words.subspan(each.mask.size());
  }
}

}  // namespace bulkhead::forward
