#include "worker/forward/step_copy.hpp"

namespace bulkhead::forward {

void StepCopy::take(const engine::Step& step) {
  columns_.assign(step.columns.begin(), step.columns.end());
  plain_.assign(step.columns.begin(), step.columns.end());
  for (engine::Column& column : plain_) {
    column.output = engine::Output::kNone;
    column.choice = nullptr;
    column.logprobs = -1;
    column.masked = false;
  }
  masks_.clear();
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

void StepCopy::take_masks(std::span<const engine::Executor::Mask> masks) {
  mask_words_.clear();
  for (const engine::Executor::Mask mask : masks)
    mask_words_.insert(mask_words_.end(), mask.begin(), mask.end());
  engine::Executor::Mask left = mask_words_;
  masks_.clear();
  for (const engine::Executor::Mask mask : masks) {
    masks_.push_back(left.first(mask.size()));
    left = left.subspan(mask.size());
  }
}

}  // namespace bulkhead::forward
