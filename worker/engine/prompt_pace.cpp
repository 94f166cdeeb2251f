#include "worker/engine/prompt_pace.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace bulkhead::engine {
namespace {

// Steps of the same columns differ, so a step is planned to take this part of its bound.
constexpr double kAim = 0.85;
// The bound is at least this many times the duration of a step without prompts, so that a slow device reads
// prompts, too.
constexpr double kLeastRoom = 1.5;
constexpr double kMostGrowth = 2;
// A step that used less of its share than this says nothing about a full step, because both have the same fixed
// part.
constexpr double kFullEnough = 0.5;
constexpr double kPlainLearning = 0.25;
constexpr double kFirstColumns = 64;
// The first guess is this part of what steps of prompts alone show, because a wide step takes less time for each
// column. With a half of it, the first steps beside a stream took 91 to 98 ms of a bound of 50 (H200, 8B Q4_K_M). A
// guess that is too low is doubled by each step that shows so.
constexpr double kOfAlone = 0.25;
// A step that took longer than the bound caps its depth at this part of its columns, for kCappedSteps steps with
// prompts. The cap was a mistake, for example because the machine had paused, if a step below it takes less than this
// part of its time.
constexpr double kOfTooMany = 0.9, kFarBelow = 1.0 / 3;
constexpr std::uint32_t kCappedSteps = 4096;

}  // namespace

std::size_t PromptColumns::depth_of(std::uint32_t position) {
  return std::min<std::size_t>(std::bit_width(position / 1024), kDepths - 1);
}

std::uint32_t PromptColumns::sum() const {
  return std::accumulate(by_depth.begin(), by_depth.end(), 0U);
}

PromptPace::PromptPace(std::chrono::nanoseconds longest_gap, std::uint32_t step_us)
    : gap_(std::chrono::duration<double>(longest_gap).count()), first_(kFirstColumns) {
  forget_caps();
  if (step_us == 0) return;
  plain_ = step_us * 1e-6;
  first_ = std::clamp<double>(2 * bound() / plain_, kLeastColumns, kFirstColumns);
}

double PromptPace::bound() const {
  return std::max(gap_, kLeastRoom * plain_);
}

// A deeper step takes longer, so what was too much at a depth is too much at all deeper ones.
double PromptPace::cap_at(std::size_t depth) const {
  return *std::min_element(most_.begin(), most_.begin() + static_cast<std::ptrdiff_t>(depth) + 1);
}

double PromptPace::known_at(std::size_t depth) const {
  if (full_[depth] > 0) return std::min(full_[depth], cap_at(depth));
  double most = cap_at(depth);
  for (std::size_t i = depth; i > 0; --i) {
    if (full_[i - 1] == 0) continue;
    most = std::min(most, full_[i - 1]);
    break;
  }
  for (std::size_t i = depth + 1; i > 0; --i) {
    if (number_at(i - 1) > 0) return std::min(number_at(i - 1), most);
  }
  for (std::size_t i = depth + 1; i < full_.size(); ++i) {
    if (number_at(i) > 0) return std::min(number_at(i), most);
  }
  return std::min(first_, most);
}

std::uint32_t PromptPace::columns(std::uint32_t position, double share) const {
  if (!bounded()) return static_cast<std::uint32_t>(kMostColumns);
  return static_cast<std::uint32_t>(known_at(PromptColumns::depth_of(position)) *
                                    std::max(share, 0.0));
}

double PromptPace::share_within(double part) const {
  const double room = bound() - plain_;
  return bounded() ? std::clamp((part * bound() - plain_) / room, 0.0, 1.0) : 1;
}

double PromptPace::share(std::uint32_t position, std::uint32_t columns) const {
  return bounded() ? columns / known_at(PromptColumns::depth_of(position)) : 0;
}

void PromptPace::ended(const PromptColumns& prompts, double share, std::chrono::nanoseconds took) {
  const double seconds = std::chrono::duration<double>(took).count();
  if (!bounded() || seconds <= 0) return;
  const std::uint32_t columns = prompts.sum();
  if (columns == 0) {
    // A step that took very long was probably interrupted by a pause of the machine.
    const double counted = plain_ > 0 ? std::min(seconds, 4 * plain_) : seconds;
    plain_ += (counted - plain_) * (plain_ > 0 ? kPlainLearning : 1);
    return;
  }
  if (share != kAlone) return adjust(prompts, share, seconds);
  const double guess = kOfAlone * columns * kAim * bound() / seconds;
  for (std::size_t i = 0; i < full_.size(); ++i) {
    if (prompts.by_depth[i] > 0 && number_at(i) == 0)
      guess_[i] = std::clamp<double>(guess, kLeastColumns, kMostColumns);
  }
}

void PromptPace::adjust(const PromptColumns& prompts, double share, double took) {
  std::array<double, PromptColumns::kDepths> known{};
  double used = 0;
  for (std::size_t i = 0; i < known.size(); ++i) {
    known[i] = known_at(i);
    used += prompts.by_depth[i] / known[i];
  }
  if (++capped_steps_ % kCappedSteps == 0) forget_caps();
  // The planned duration of the step: its fixed part, and its share of the rest of the bound.
  const double aim = kAim * (plain_ + share * (bound() - plain_));
  // The number of columns that would have filled that time, divided by the number that was expected
  // to.
  const double factor = std::min(used / share * aim / took, kMostGrowth);
  if (took <= aim && (used < kFullEnough * share || factor < 1)) return;
  for (std::size_t i = 0; i < full_.size(); ++i) {
    if (prompts.by_depth[i] == 0) continue;
    full_[i] = std::clamp<double>(known[i] * factor, kLeastColumns, kMostColumns);
    if (took > bound()) {
      // The step may have been planned with a larger number than the one that is known now.
      most_[i] = std::max<double>(kOfTooMany * known[i] * used / share, kLeastColumns);
    } else if (took < kFarBelow * aim) {
      std::fill_n(most_.begin(), i + 1, kMostColumns);
    }
  }
}

}  // namespace bulkhead::engine
