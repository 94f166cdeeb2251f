// Tests the time that speculation gains and loses, on a device whose steps take as long as the test says. Speculation
// gains time where guesses are right and columns are cheap. Elsewhere it loses 2 % at most.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/support/sample.hpp"
#include "tests/unit/engine/speculating.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/draft_source.hpp"

namespace bulkhead::test {
namespace {

using engine::DraftSource;
using engine::EngineOptions;
using engine::ExecutorLimits;
using engine::RecordedSource;
using engine::Speculation;
using ipc::TokenId;

// Returns the duration of a step from its number, which begins at 0, and its columns.
using StepTime = std::function<std::chrono::microseconds(std::size_t, std::uint32_t)>;

StepTime flat(std::chrono::microseconds first, std::chrono::microseconds more) {
  return [=](std::size_t, std::uint32_t columns) { return first + more * (columns - 1); };
}

struct Cost {
  double seconds = 0;
  std::size_t steps = 0;
};

// Returns limits with room for two sequences of `tokens` tokens each.
ExecutorLimits limits_for(std::uint32_t tokens, std::uint32_t depth) {
  ExecutorLimits limits = limits_of(depth);
  limits.context = std::max(limits.context, tokens + 8);
  limits.total_pages = std::max(limits.total_pages, 2 * (limits.context / limits.page_tokens + 8));
  return limits;
}

// Makes a source of guesses for an answer whose tokens are given.
using SourceOf = std::function<std::unique_ptr<DraftSource>(const Tokens&)>;

SourceOf right_with(double accuracy) {
  return [accuracy](const Tokens& recorded) {
    return std::make_unique<RecordedSource>(recorded, accuracy, 300);
  };
}

// Returns the tokens of the request's answer without speculation.
Tokens plain_answer(const ExecutorLimits& limits, const ipc::Submit& request) {
  EngineHarness plain(limits, options_of(Speculation::kOff));
  plain.engine.submit(request);
  plain.run();
  return plain.answer(1).tokens;
}

// Makes each step of the harness take the time that `time` says. `time` must outlive the steps.
void pace(EngineHarness& harness, const StepTime& time) {
  harness.executor.while_waiting = [&harness, &time, waited = std::size_t{0}]() mutable {
    const std::uint32_t columns = harness.executor.steps.at(waited).columns;
    harness.now += time(waited++, columns);
  };
}

// Returns the cost of one answer. The source guesses the tokens of the same answer without speculation.
Cost cost_of(Speculation speculation, const SourceOf& source, const StepTime& time,
             std::uint32_t tokens = 110, std::uint32_t depth = 1) {
  const ExecutorLimits limits = limits_for(tokens, depth);
  const ipc::Submit request = greedy_request(1, {1, 2, 3}, tokens);
  const Tokens plain = plain_answer(limits, request);
  const Tokens recorded = Tokens{1, 2, 3} + plain;
  EngineOptions options = options_of(speculation);
  options.draft_source = [&](std::span<const TokenId>) { return source(recorded); };
  EngineHarness harness(limits, options);
  pace(harness, time);
  const engine::Clock::time_point begin = harness.now;
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(harness.answer(1).tokens.size(), tokens);
  EXPECT_EQ(harness.answer(1).tokens, plain);
  return {std::chrono::duration<double>(harness.now - begin).count(),
          harness.executor.steps.size()};
}

using std::chrono::microseconds;

TEST(Speculator, GainsWhereColumnsAreNearlyFree) {
  const StepTime time = flat(microseconds(3000), microseconds(50));
  const Cost without = cost_of(Speculation::kOff, right_with(0.8), time);
  for (const std::uint32_t depth : {1U, 2U}) {
    const Cost with = cost_of(Speculation::kNgram, right_with(0.8), time, 110, depth);
    EXPECT_LT(with.seconds * 2.2, without.seconds) << with.steps << " steps";
  }
}

// Guesses that are mostly right, where a column costs as much as a step or somewhat less. The tries by which the
// speculator learns that must cost less than 2 %.
TEST(Speculator, LosesNextToNothingWhereColumnsAreDear) {
  for (const int more : {1500, 2400, 3000, 6000}) {
    const StepTime time = flat(microseconds(3000), microseconds(more));
    const Cost without = cost_of(Speculation::kOff, right_with(0.5), time, 800);
    const Cost with = cost_of(Speculation::kNgram, right_with(0.5), time, 800);
    EXPECT_LT(with.seconds, without.seconds * 1.02) << more;
  }
}

TEST(Speculator, DraftsNothingWhereGuessesAreWrong) {
  const StepTime time = flat(microseconds(3000), microseconds(300));
  const Cost without = cost_of(Speculation::kOff, right_with(0), time, 500);
  const Cost with = cost_of(Speculation::kNgram, right_with(0), time, 500);
  EXPECT_LE(with.seconds, without.seconds * 1.01);
}

// Steps are slow until drafts have begun to pay; then steps of one column become fast. Only steps without drafts show
// that.
TEST(Speculator, LearnsAnewWhatStepsTakeWithoutDrafts) {
  const StepTime time = [](std::size_t step, std::uint32_t columns) {
    const microseconds first(step < 20 ? 12000 : 3000);
    return first + microseconds(columns > 1 ? 4000 : 0);
  };
  const Cost without = cost_of(Speculation::kOff, right_with(0.5), time, 2000);
  const Cost with = cost_of(Speculation::kNgram, right_with(0.5), time, 2000);
  EXPECT_LT(with.seconds, without.seconds * 1.15) << with.steps << " steps";
}

// Guesses one of every four tokens.
class EveryFourth final : public DraftSource {
 public:
  explicit EveryFourth(Tokens recorded) : recorded_(std::move(recorded)) {}
  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override {
    if (tokens.size() % 4 != 0 || tokens.size() >= recorded_.size() || guesses.empty()) return 0;
    guesses[0] = recorded_[tokens.size()];
    return 1;
  }

 private:
  Tokens recorded_;
};

// A step with a draft takes no longer, but the step after it, which waits for the host, takes more than twice as
// long.
TEST(Speculator, CountsWhatTheStepAfterDraftsLoses) {
  const auto time_with = [](microseconds lost) -> StepTime {
    return [lost, before = 1U](std::size_t, std::uint32_t columns) mutable {
      const bool waits = std::exchange(before, columns) > 1;
      return microseconds(3000) + (waits ? lost : microseconds(0));
    };
  };
  const SourceOf source = [](const Tokens& recorded) {
    return std::make_unique<EveryFourth>(recorded);
  };
  const Cost dear_off = cost_of(Speculation::kOff, source, time_with(microseconds(4000)), 800);
  const Cost dear = cost_of(Speculation::kNgram, source, time_with(microseconds(4000)), 800);
  EXPECT_LT(dear.seconds, dear_off.seconds * 1.02);
  const Cost cheap_off = cost_of(Speculation::kOff, source, time_with(microseconds(500)), 800);
  const Cost cheap = cost_of(Speculation::kNgram, source, time_with(microseconds(500)), 800);
  EXPECT_LT(cheap.seconds, cheap_off.seconds * 0.85) << "it pays here";
}

// Guesses two of every eight tokens for 64 tokens, then all eight for 64 tokens, and so on.
class InTurns final : public DraftSource {
 public:
  explicit InTurns(std::vector<TokenId> recorded) : recorded_(std::move(recorded)) {}
  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override {
    const std::size_t at = tokens.size(), of_eight = at % 8;
    const std::size_t known = at / 64 % 2 == 0 ? 2 : 8;
    if (of_eight != 0 || at >= recorded_.size()) return 0;
    const std::size_t count = std::min({known, guesses.size(), recorded_.size() - at});
    std::copy_n(recorded_.begin() + static_cast<std::ptrdiff_t>(at), count, guesses.begin());
    return count;
  }

 private:
  std::vector<TokenId> recorded_;
};

// A step after a step of more than `free` columns takes `lost` longer.
StepTime losing_behind(std::uint32_t free, microseconds lost) {
  return [free, lost, before = 1U](std::size_t, std::uint32_t columns) mutable {
    const bool waits = std::exchange(before, columns) > free;
    return microseconds(3000) + (waits ? lost : microseconds(0));
  };
}

TEST(Speculator, AWidthThatDoesNotPayLeavesTheOthersAlone) {
  const SourceOf source = [](const std::vector<TokenId>& recorded) {
    return std::make_unique<InTurns>(recorded);
  };
  const Cost without = cost_of(Speculation::kOff, source, losing_behind(4, microseconds(0)), 1600);
  const Cost narrow =
      cost_of(Speculation::kNgram, source, losing_behind(4, microseconds(60000)), 1600);
  EXPECT_LT(narrow.seconds, without.seconds * 0.92) << "two of sixteen tokens come for nothing";
  // The speculator must try each width before it knows that none pays.
  const Cost none =
      cost_of(Speculation::kNgram, source, losing_behind(1, microseconds(12000)), 1600);
  EXPECT_LT(none.seconds, without.seconds * 1.02);
}

// Guesses with the first accuracy for `period` tokens, then with the second accuracy for as many,
// and so on.
class ComeAndGo final : public DraftSource {
 public:
  ComeAndGo(const Tokens& recorded, double first, double second, std::size_t period)
      : first_(recorded, first, 300), second_(recorded, second, 300), period_(period) {}
  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override {
    return (tokens.size() / period_ % 2 == 0 ? first_ : second_).guess(tokens, guesses);
  }

 private:
  RecordedSource first_, second_;
  std::size_t period_;
};

struct Hard {
  const char* name;
  SourceOf source;
  std::function<StepTime()> time;
};

// Lists devices on which drafts seem to save time although they lose it.
std::vector<Hard> hard_cases() {
  std::vector<Hard> cases;
  const auto dear_behind = [] { return losing_behind(1, microseconds(12000)); };
  for (const double accuracy : {0.0, 0.3, 0.5, 0.8})
    cases.push_back(
        {"the step behind takes five times as long", right_with(accuracy), dear_behind});
  const SourceOf in_turns = [](const Tokens& recorded) {
    return std::make_unique<ComeAndGo>(recorded, 0.0, 0.9, 32);
  };
  cases.push_back({"the same, and guesses come and go", in_turns, dear_behind});
  const auto linear = [] { return flat(microseconds(2000), microseconds(2000)); };
  cases.push_back({"each column costs a step", right_with(0.8), linear});
  const auto deeper = []() -> StepTime {
    return
        [behind = losing_behind(1, microseconds(4000))](std::size_t step, std::uint32_t columns) {
          return behind(step, columns) * (1000 + step) / 1000;
        };
  };
  cases.push_back({"steps take ever longer", right_with(0.5), deeper});
  const auto by_turns = []() -> StepTime {
    return [free = flat(microseconds(2000), microseconds(20)),
            dear = losing_behind(1, microseconds(8000))](std::size_t step, std::uint32_t columns) {
      const microseconds now_free = free(step, columns), now_dear = dear(step, columns);
      return step / 300 % 2 == 0 ? now_free : now_dear;
    };
  };
  cases.push_back({"drafts are dear by turns", right_with(0.2), by_turns});
  return cases;
}

TEST(Speculator, LosesTwoPercentAtMostWhateverTheDeviceDoes) {
  std::vector<Hard> cases = hard_cases();
  if (kSample) cases.resize(2);
  for (const Hard& hard : cases) {
    for (const std::uint32_t depth : {1U, 2U}) {
      SCOPED_TRACE(std::string(hard.name) + ", steps in flight: " + std::to_string(depth));
      const Cost without = cost_of(Speculation::kOff, hard.source, hard.time(), 512, depth);
      const Cost with = cost_of(Speculation::kNgram, hard.source, hard.time(), 512, depth);
      EXPECT_LT(with.seconds, without.seconds * 1.02) << with.steps << " steps";
    }
  }
}

// The step after the prompt's takes much longer than those that follow.
TEST(Speculator, TakesNoSlowFirstStepForWhatStepsTakeWithoutDrafts) {
  const StepTime time = [](std::size_t step, std::uint32_t columns) {
    return microseconds(step == 1 ? 20000 : 2000) + microseconds(columns > 1 ? 6000 : 0);
  };
  const Cost without = cost_of(Speculation::kOff, right_with(0.5), time, 512);
  const Cost with = cost_of(Speculation::kNgram, right_with(0.5), time, 512);
  EXPECT_LT(with.seconds, without.seconds * 1.02);
}

// ---- streams side by side ----

struct Ends {
  double guessed = 0, other = 0;  // seconds until the answer was there
};

// One answer of 300 tokens that are all guessed, and one of 80 tokens that are never guessed.
Ends ends_of_two(Speculation speculation, const StepTime& time) {
  const ExecutorLimits limits = limits_for(320, 1);
  const ipc::Submit request = greedy_request(1, {1, 2, 3}, 300);
  const Tokens plain = plain_answer(limits, request);
  const Tokens recorded = Tokens{1, 2, 3} + plain;
  EngineOptions options = options_of(speculation);
  options.draft_source = [&](std::span<const TokenId> prompt) {
    return std::make_unique<RecordedSource>(prompt[0] == 1 ? recorded : Tokens(), 1, 300);
  };
  EngineHarness harness(limits, options);
  pace(harness, time);
  const engine::Clock::time_point begin = harness.now;
  harness.engine.submit(request);
  harness.engine.submit(greedy_request(2, {4, 5, 6}, 80));
  Ends ends;
  while (!harness.answer(1).ended() || !harness.answer(2).ended()) {
    if (!harness.turn()) break;
    const double seconds = std::chrono::duration<double>(harness.now - begin).count();
    if (ends.other == 0 && harness.answer(2).ended()) ends.other = seconds;
    if (ends.guessed == 0 && harness.answer(1).ended()) ends.guessed = seconds;
  }
  EXPECT_EQ(harness.answer(1).tokens, plain);
  EXPECT_EQ(harness.answer(2).tokens.size(), 80U);
  return ends;
}

TEST(Speculator, LetsNoStreamWaitForTheGuessesOfAnother) {
  // All tokens together would come a third faster, but the other answer would be slower.
  const StepTime dear = flat(microseconds(3000), microseconds(400));
  EXPECT_LT(ends_of_two(Speculation::kNgram, dear).other,
            ends_of_two(Speculation::kOff, dear).other * 1.02);
  const StepTime free = flat(microseconds(3000), microseconds(2));
  const Ends with = ends_of_two(Speculation::kNgram, free);
  const Ends without = ends_of_two(Speculation::kOff, free);
  EXPECT_LT(with.other, without.other * 1.02);
  EXPECT_LT(with.guessed, without.guessed * 0.5);
  // After each step with drafts a third of a step is lost, even if such steps follow each other.
  EXPECT_LT(ends_of_two(Speculation::kNgram, losing_behind(2, microseconds(1000))).other,
            ends_of_two(Speculation::kOff, losing_behind(2, microseconds(1000))).other * 1.02);
}

}  // namespace
}  // namespace bulkhead::test
