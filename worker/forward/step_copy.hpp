// A copy of a step, for an executor that still needs the step after submit() has returned. It allocates nothing once
// it has held a step as large as the next one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::forward {

class StepCopy {
 public:
  void take(const engine::Step& step);
  // Return the step as it was, and the same step without outputs. Both are valid until the next take().
  engine::Step whole() const { return step_of(columns_); }
  engine::Step without_outputs() const { return step_of(plain_); }
  // Keeps the adjustments of the step's outputs (Executor::choose()). adjustments() returns them, or nothing before
  // that.
  void take_adjustments(std::span<const engine::Adjustment> adjustments);
  std::span<const engine::Adjustment> adjustments() const { return adjustments_; }
  std::uint32_t columns() const { return static_cast<std::uint32_t>(columns_.size()); }

 private:
  engine::Step step_of(std::span<const engine::Column> columns) const {
    return {columns, sequences_, states_, windows_};
  }

  std::vector<engine::Column> columns_, plain_;
  std::vector<engine::Choice> choices_;   // of the columns that have a choice, in order
  std::vector<engine::PageIndex> pages_;  // of all sequences, then of all windows
  std::vector<std::span<const engine::PageIndex>> sequences_;
  std::vector<engine::StateUse> states_;
  std::vector<engine::WindowPages> windows_;
  std::vector<std::uint32_t> mask_words_;  // of all masks
  std::vector<engine::LogitEdit> edits_;   // of all lists
  std::vector<engine::Adjustment> adjustments_;
};

}  // namespace bulkhead::forward
