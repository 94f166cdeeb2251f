// How many columns of prompts a step may have beside sequences that generate, by what steps take.
//
// Whoever generates gets a token of each step, and so waits as long as a step takes. A prompt's part is
// cut so that a step takes no longer than `longest_gap`, or one and a half times what a step without
// prompts takes if that is more: a device that is slow by itself would read prompts for ever otherwise.
//
// What a prompt's column costs depends on the model, on the device and on the positions before it, to
// which it attends. So there is one number for each depth: the columns from there on that would fill a
// step. A step with prompts of several depths gets a share of each. A step that took too long lowers the
// numbers of its depths at once. One that was full and took less raises them, twofold at most. A depth that
// nothing is known of has the number of the nearest depth below it, or of the nearest one above.
//
// Nothing computed depends on it (executor.hpp). One thread; nothing allocates.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace bulkhead::engine {

// Columns of prompts in a step, by depth.
struct PromptColumns {
  static constexpr std::size_t kDepths = 12;
  // Positions up to 1,023, up to 2,047, up to 4,095, and so on.
  static std::size_t depth_of(std::uint32_t position);

  std::array<std::uint32_t, kDepths> by_depth{};
  void add(std::uint32_t position, std::uint32_t columns) {
    by_depth[depth_of(position)] += columns;
  }
  std::uint32_t sum() const;
};

class PromptPace {
 public:
  static constexpr std::uint32_t kLeastColumns = 4;  // of a step, however slow the device is

  // longest_gap 0: no bound. `step_us`: as ExecutorLimits has it.
  PromptPace(std::chrono::nanoseconds longest_gap, std::uint32_t step_us);
  bool bounded() const { return gap_ > 0; }

  // The share of a step that its prompts may have where it must end within this part of the bound.
  double share_within(double part) const;
  // How many columns from this position on take so large a share of a step (1: all of it).
  std::uint32_t columns(std::uint32_t position, double share) const;
  // The share of a step that they take.
  double share(std::uint32_t position, std::uint32_t columns) const;

  // A step has ended that had these columns of prompts, which might have had this share of it.
  // `took`: since the step before it ended. kAlone for the share: nobody generated, so the step had
  // another bound, and serves for a first guess only.
  static constexpr double kAlone = 0;
  void ended(const PromptColumns& prompts, double share, std::chrono::nanoseconds took);

 private:
  double known_at(std::size_t depth) const;
  double number_at(std::size_t depth) const {
    return full_[depth] > 0 ? full_[depth] : guess_[depth];
  }
  double bound() const;  // seconds
  void adjust(const PromptColumns& prompts, double share, double took);

  double gap_;        // seconds
  double plain_ = 0;  // seconds that steps without prompts took lately; 0: not known
  double first_;      // columns to begin with, until the pace knows better
  // Columns by depth, 0 where not known: by steps beside sequences that generate, and by steps of prompts alone.
  std::array<double, PromptColumns::kDepths> full_{}, guess_{};
};

}  // namespace bulkhead::engine
