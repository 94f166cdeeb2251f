// How much of a prompt goes into a step, by how long steps take.
#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::microseconds;

struct Paced {
  std::vector<std::uint32_t> columns;  // of each step
  std::vector<ipc::TokenId> tokens;
};

// A prompt of 100 tokens on a device that takes so long for each column.
Paced run_paced(microseconds column, std::uint32_t step_us, std::uint32_t alone = 0) {
  engine::ExecutorLimits limits = small_limits();
  limits.step_us = step_us;
  engine::EngineOptions options;
  options.scheduler.prefill_chunk = 48;
  options.scheduler.prefill_chunk_alone = alone;
  options.longest_step = std::chrono::milliseconds(1000);
  EngineHarness harness(limits, options);
  harness.executor.while_waiting = [&] {
    harness.now += column * harness.executor.steps.back().columns;
  };
  harness.engine.submit(greedy_request(1, some_tokens(7, 100), 3));
  harness.run();
  Paced paced;
  for (const FakeExecutor::StepRecord& step : harness.executor.steps)
    paced.columns.push_back(step.columns);
  paced.tokens = harness.answer(1).tokens;
  return paced;
}

TEST(EnginePace, AFastDeviceGetsWholeChunks) {
  EXPECT_EQ(run_paced(microseconds(10), 2000).columns,
            (std::vector<std::uint32_t>{48, 48, 4, 1, 1}));
  EXPECT_EQ(run_paced(microseconds(10), 0).columns, (std::vector<std::uint32_t>{48, 48, 4, 1, 1}));
}

TEST(EnginePace, ASlowDeviceGetsWhatItCanDoInTime) {
  // 20 columns at first, by what a step took while loading; they take 2 s and not 1.
  EXPECT_EQ(run_paced(microseconds(100'000), 100'000).columns,
            (std::vector<std::uint32_t>{20, 10, 10, 10, 10, 10, 10, 10, 10, 1, 1}));
  // Nothing was known: the first step takes 4.8 s.
  EXPECT_EQ(run_paced(microseconds(100'000), 0).columns.at(1), 10U);
  // However slow it is.
  const Paced slow = run_paced(microseconds(3'000'000), 4'000'000);
  EXPECT_EQ(slow.columns.front(), 4U);
  EXPECT_EQ(slow.columns.size(), 27U);
}

TEST(EnginePace, ADeviceThatWasHeldUpWhileLoadingGetsMoreAsItShowsItsSpeed) {
  EXPECT_EQ(run_paced(microseconds(1000), 300'000).columns,
            (std::vector<std::uint32_t>{6, 12, 24, 48, 10, 1, 1}));
}

TEST(EnginePace, WiderStepsOfPromptsAloneArePacedAlike) {
  EXPECT_EQ(run_paced(microseconds(10), 0, 64).columns, (std::vector<std::uint32_t>{64, 36, 1, 1}));
  // 64 columns took 6.4 s; ten take one.
  EXPECT_EQ(run_paced(microseconds(100'000), 0, 64).columns.at(1), 10U);
  EXPECT_EQ(run_paced(microseconds(1000), 300'000, 64).columns,
            (std::vector<std::uint32_t>{6, 12, 24, 48, 10, 1, 1}));
}

TEST(EnginePace, TheTokensAreTheSame) {
  const Paced fast = run_paced(microseconds(10), 0), slow = run_paced(microseconds(900'000), 1);
  ASSERT_NE(fast.columns, slow.columns);
  EXPECT_EQ(fast.tokens, slow.tokens);
  EXPECT_EQ(fast.tokens.size(), 3U);
}

}  // namespace
}  // namespace bulkhead::test
