// Which waiting request begins when pages are short: small ones may pass a large one, but not for ever.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"

namespace bulkhead::test {
namespace {

constexpr std::uint32_t kMostAtOnce = 4;
constexpr std::uint64_t kLong = 1, kLarge = 2;  // requests
constexpr std::uint32_t kLongAnswer = 60;
const Tokens kLargePrompt = some_tokens(kLarge, 72);

// 24 pages of 4 tokens. The large prompt takes 18 pages and one more, the long answer up to 17, a small request 3.
struct Admission : EngineHarness {
  explicit Admission(std::uint32_t steps_in_flight = 2)
      : EngineHarness(limits(steps_in_flight), options()) {
    engine.submit(endless(kLong, some_tokens(kLong, 8), kLongAnswer));
    run_until_tokens(kLong, 20);
    engine.submit(endless(kLarge, kLargePrompt, 4));
    turn();
  }
  static engine::ExecutorLimits limits(std::uint32_t steps_in_flight) {
    engine::ExecutorLimits made = small_limits();
    made.total_pages = 24;
    made.context = 96;
    made.steps_in_flight = steps_in_flight;
    return made;
  }
  static engine::EngineOptions options() {
    engine::EngineOptions made;
    made.scheduler.max_batch = kMostAtOnce;
    made.scheduler.prefix_cache = true;
    return made;
  }
  static Tokens small_prompt(std::uint64_t id) { return some_tokens(id, 5); }
  void submit_small(std::uint64_t id) { engine.submit(endless(id, small_prompt(id), 4)); }
  bool began(std::uint64_t id) { return !answer(id).tokens.empty(); }
  void expect_answer(std::uint64_t id, const Tokens& prompt, std::size_t count) {
    EXPECT_EQ(answer(id).tokens, answer_to(executor, prompt, count)) << id;
  }
};

TEST(Admission, SmallRequestsPassALargeOneThatLacksPages) {
  Admission harness;
  EXPECT_FALSE(harness.began(kLarge));
  for (const std::uint64_t id : {10, 11})
    harness.submit_small(id);
  while (!harness.answer(10).ended() || !harness.answer(11).ended())
    harness.turn();
  EXPECT_FALSE(harness.began(kLarge));
  EXPECT_FALSE(harness.answer(kLong).ended()) << "nobody waited for its whole answer";
  harness.run();
  harness.expect_answer(kLong, some_tokens(kLong, 8), kLongAnswer);
  harness.expect_answer(kLarge, kLargePrompt, 4);
  for (const std::uint64_t id : {10, 11})
    harness.expect_answer(id, Admission::small_prompt(id), 4);
}

// Two small requests wait at any time, so without a bound the large one would never get its pages.
TEST(Admission, ALargeRequestBeginsWhileSmallOnesKeepComing) {
  for (const std::uint32_t steps_in_flight : {1U, 2U}) {
    Admission harness(steps_in_flight);
    std::uint64_t next = 10;
    std::uint32_t passed = 0;
    for (int turns = 0; turns < 1000 && !harness.began(kLarge); ++turns) {
      while (harness.engine.outstanding() < kMostAtOnce + 4)
        harness.submit_small(next++);
      harness.turn();
    }
    ASSERT_TRUE(harness.began(kLarge));
    for (std::uint64_t id = 10; id < next; ++id)
      passed += harness.began(id) ? 1 : 0;
    EXPECT_GT(passed, 0U);
    EXPECT_LE(passed, 2 * kMostAtOnce) << "the bound, and those that began together with it";
    harness.run();
    harness.expect_answer(kLarge, kLargePrompt, 4);
    for (std::uint64_t id = 10; id < next; ++id)
      harness.expect_answer(id, Admission::small_prompt(id), 4);
  }
}

// The long answer grows until the small ones, which are younger, lose their pages. They must not come before the large
// request because of that, nor lose a token.
TEST(Admission, OnesThatLosePagesWaitInTheOrderOfTheirArrival) {
  Admission harness;
  for (std::uint64_t id = 10; id < 13; ++id)
    harness.engine.submit(endless(id, Admission::small_prompt(id), 40));
  harness.run();
  EXPECT_GT(figure(harness, "preemptions_total"), 0);
  harness.expect_answer(kLong, some_tokens(kLong, 8), kLongAnswer);
  harness.expect_answer(kLarge, kLargePrompt, 4);
  for (std::uint64_t id = 10; id < 13; ++id)
    harness.expect_answer(id, Admission::small_prompt(id), 40);
}

// Cancelling the large one frees the way at once.
TEST(Admission, WithoutTheLargeOneAllGoesOn) {
  Admission harness;
  for (std::uint64_t id = 10; id < 30; ++id)
    harness.submit_small(id);
  for (int turns = 0; turns < 5; ++turns)
    harness.turn();
  harness.engine.cancel(RequestId{kLarge});
  harness.run();
  for (std::uint64_t id = 10; id < 30; ++id)
    harness.expect_answer(id, Admission::small_prompt(id), 4);
}

}  // namespace
}  // namespace bulkhead::test
