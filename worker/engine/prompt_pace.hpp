// Decides, from how long steps took, how many columns of prompts a step may have beside sequences that generate.
//
// A sequence that generates gets one token from each step, so it waits for as long as the step takes. The scheduler
// limits the prompts' part of a step so that the step takes no longer than a bound. The bound is `longest_gap`, or
// one and a half times the duration of a step without prompts if that is longer; otherwise a slow device would never
// finish a prompt.
//
// The cost of a prompt's column depends on the model, on the device and on the positions before the column, to which
// it attends. So the pace keeps a number for each depth: how many columns from that depth on would fill a step. If a
// step has prompts of several depths, each prompt uses a share of the step: its columns divided by the number for its
// depth. If a step took too long, the numbers of its depths are lowered at once. If a step was full and took less
// time, these numbers are raised, at most twofold. A depth without a number takes that of the nearest depth below it,
// or of the nearest depth above it if no depth below has one.
//
// A step of few columns can take much less time per column than a slightly larger one, which other kernels compute. So
// if a step took longer than the bound, the pace keeps below that step's columns at this depth and deeper, for the next
// thousands of steps. Otherwise it would try them again as soon as a smaller step took little time.
//
// Steps that consist only of prompts give a depth its first guess. Such steps are wide, and a wide step takes less
// time per column, the more so the deeper it is. So a depth with a guess takes no more columns than the nearest depth
// below it whose number comes from a step beside sequences that generate.
//
// The pace changes no computed value (executor.hpp). Use it from one thread. It allocates nothing.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace bulkhead::engine {

// Columns of prompts in a step, by depth.
struct PromptColumns {
  static constexpr std::size_t kDepths = 12;
  // The depths are the positions up to 1,023, up to 2,047, up to 4,095, and so on.
  static std::size_t depth_of(std::uint32_t position);

  std::array<std::uint32_t, kDepths> by_depth{};
  void add(std::uint32_t position, std::uint32_t columns) {
    by_depth[depth_of(position)] += columns;
  }
  std::uint32_t sum() const;
};

class PromptPace {
 public:
  static constexpr std::uint32_t kLeastColumns = 4;  // the fewest in a step, even on a slow device
  static constexpr double kMostColumns = 1U << 16;

  // If `longest_gap` is 0, steps have no bound. For `step_us` see ExecutorLimits.
  PromptPace(std::chrono::nanoseconds longest_gap, std::uint32_t step_us);
  bool bounded() const { return gap_ > 0; }

  // Returns the share of a step that prompts may have if the step must end within `part` of the bound.
  double share_within(double part) const;
  // Returns how many columns from `position` on take `share` of a step. 1 is a whole step.
  std::uint32_t columns(std::uint32_t position, double share) const;
  // Returns the share of a step that `columns` columns from `position` on take.
  double share(std::uint32_t position, std::uint32_t columns) const;

  // Records a step that has ended. `prompts`: its columns of prompts. `share`: the share of the step that they were
  // allowed. `took`: the time since the step before it ended. The share kAlone means that no sequence generated. Such
  // a step had another bound, and the pace uses it only for a first guess.
  static constexpr double kAlone = 0;
  void ended(const PromptColumns& prompts, double share, std::chrono::nanoseconds took);

 private:
  double known_at(std::size_t depth) const;
  double cap_at(std::size_t depth) const;
  void forget_caps() { most_.fill(kMostColumns); }
  double number_at(std::size_t depth) const {
    return full_[depth] > 0 ? full_[depth] : guess_[depth];
  }
  double bound() const;  // seconds
  void adjust(const PromptColumns& prompts, double share, double took);

  double gap_;        // seconds
  double plain_ = 0;  // how long steps without prompts took recently; 0: unknown
  double first_;      // the number of columns to start with, until the pace has measured
  // Columns by depth, 0 if unknown: from steps beside sequences that generate, and from steps that consist only of
  // prompts.
  std::array<double, PromptColumns::kDepths> full_{}, guess_{};
  // By depth: numbers that the depth must not exceed, because a step took too long with more. They are forgotten after
  // some steps; `capped_steps_` counts these.
  std::array<double, PromptColumns::kDepths> most_{};
  std::uint32_t capped_steps_ = 0;
};

}  // namespace bulkhead::engine
