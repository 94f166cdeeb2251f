// How the durations of steps decide how much of a prompt goes into a step.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "worker/engine/prompt_pace.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::microseconds;

struct Paced {
  std::vector<std::uint32_t> columns;  // of each step
  std::vector<ipc::TokenId> tokens;
};

// Runs a prompt of 100 tokens on a device that takes this long for each column.
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
  // 20 columns at first, from the duration of a step while loading. They take 2 s and not 1, so the next step is
  // smaller.
  EXPECT_EQ(run_paced(microseconds(100'000), 100'000).columns,
            (std::vector<std::uint32_t>{20, 10, 10, 10, 10, 10, 10, 10, 10, 1, 1}));
  // Nothing is known at first, so the first step takes 4.8 s.
  EXPECT_EQ(run_paced(microseconds(100'000), 0).columns.at(1), 10U);
  // The same holds for a very slow device.
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
  // 64 columns took 6.4 s; ten columns take one.
  EXPECT_EQ(run_paced(microseconds(100'000), 0, 64).columns.at(1), 10U);
  EXPECT_EQ(run_paced(microseconds(1000), 300'000, 64).columns,
            (std::vector<std::uint32_t>{6, 12, 24, 48, 10, 1, 1}));
}

// ---- prompts beside sequences that generate ----

using std::chrono::milliseconds;

// A step takes 10 ms, and 200 us for each column, plus 200 us for each 2,000 positions before the column. If the device
// has widths, a step takes as long as one of the next larger width.
struct Device {
  microseconds plain{10'000}, column{200};
  std::vector<std::uint32_t> widths = {};
  microseconds step(std::uint32_t columns, std::uint32_t position) const {
    const auto width = std::ranges::lower_bound(widths, columns);
    if (width != widths.end()) columns = *width;
    return plain + column * columns + column * columns * position / 2000;
  }
};

struct Beside {
  microseconds longest_step{0};  // the longest step that had the first stream in it
  microseconds longest_gap{0};   // the longest time between two of the stream's tokens
  std::size_t steps = 0;         // steps until the second request's first token
  std::vector<ipc::TokenId> prompt_answer, stream_answer;
};

// Runs a stream, and then a prompt of this many tokens beside it.
Beside run_beside(std::uint32_t prompt, milliseconds gap, const Device& device = {},
                  std::uint32_t depth = 1, bool by_host = false) {
  engine::ExecutorLimits limits = small_limits();
  limits.max_columns = 2048;
  limits.context = prompt + 512;
  limits.total_pages = limits.context;
  limits.steps_in_flight = depth;
  limits.sampled_top_k = 64;
  limits.widths = device.widths;
  limits.step_us = static_cast<std::uint32_t>(device.step(1, 0).count());
  limits.adjusts = !by_host;
  engine::EngineOptions options;
  options.scheduler.prefill_chunk = 0;
  options.scheduler.max_token_gap = gap;
  EngineHarness harness(limits, options);
  std::size_t waited = 0;
  std::uint32_t position = 0;  // position within the prompt
  Beside seen;
  harness.executor.while_waiting = [&] {
    const std::uint32_t columns = harness.executor.steps.at(waited++).columns;
    const microseconds took = device.step(columns, position);
    if (waited > 3) seen.longest_step = std::max(seen.longest_step, took);
    if (waited > 3) position += columns - 1;
    harness.now += took;
  };
  ipc::Submit stream = greedy_request(1, some_tokens(1, 5), 400);
  if (by_host) stream.sampling.frequency_penalty = 0.5F;
  harness.engine.submit(stream);
  harness.run_until_tokens(1, 3);
  harness.engine.submit(greedy_request(2, some_tokens(7, prompt), 3));
  const std::size_t before = harness.executor.steps.size();
  std::size_t tokens = harness.answer(1).tokens.size();
  engine::Clock::time_point last = harness.now;
  while (harness.answer(2).tokens.empty() && harness.turn()) {
    const std::size_t now = harness.answer(1).tokens.size();
    if (now == std::exchange(tokens, now)) continue;
    seen.longest_gap =
        std::max(seen.longest_gap, std::chrono::duration_cast<microseconds>(harness.now - last));
    last = harness.now;
  }
  seen.steps = harness.executor.steps.size() - before;
  EXPECT_FALSE(harness.answer(1).ended()) << "the stream was too short";
  harness.run();
  seen.prompt_answer = harness.answer(2).tokens;
  seen.stream_answer = harness.answer(1).tokens;
  return seen;
}

TEST(EnginePace, AStreamWaitsNoLongerThanItsBoundForAPrompt) {
  const Beside bounded = run_beside(6000, milliseconds(50));
  EXPECT_LE(bounded.longest_step, milliseconds(50));
  EXPECT_LE(bounded.longest_gap, milliseconds(50));
  // 160 columns take 42 ms at first and 40 ms at the end: no step is much shorter than allowed.
  EXPECT_LT(bounded.steps, 110U);
  const Beside unbounded = run_beside(6000, milliseconds(0));
  EXPECT_GT(unbounded.longest_step, milliseconds(400));
  EXPECT_EQ(bounded.prompt_answer, unbounded.prompt_answer);
  EXPECT_EQ(bounded.stream_answer, unbounded.stream_answer);
  EXPECT_LT(run_beside(6000, milliseconds(200)).steps, bounded.steps / 3);
}

// Where 128 columns take 36 to 50 ms, one column more would take 61 ms or more.
TEST(EnginePace, AStepHasNoColumnsThatWouldMakeItAsLongAsAWiderOne) {
  const Device device{
      microseconds(10'000), microseconds(200), {1, 16, 32, 64, 128, 256, 512, 1024, 2048}};
  const Beside seen = run_beside(6000, milliseconds(50), device);
  EXPECT_LE(seen.longest_step, milliseconds(50));
  EXPECT_LE(seen.longest_gap, milliseconds(50));
  EXPECT_LT(seen.steps, 140U);
}

// Room for 64 sequences.
engine::ExecutorLimits limits_of_many(const Device& device) {
  engine::ExecutorLimits limits = small_limits();
  limits.max_columns = 2048;
  limits.max_outputs = limits.max_sequences = 64;
  limits.context = 1024;
  limits.total_pages = 64 * limits.context;
  limits.widths = device.widths;
  return limits;
}
engine::EngineOptions many_at_once() {
  engine::EngineOptions options;
  options.scheduler = {.max_batch = 64, .prefill_chunk = 0, .max_token_gap = milliseconds(50)};
  return options;
}

// A step takes from several prompts, in turn, until it has a width's columns. A prompt after these must not begin the
// next width.
TEST(EnginePace, SeveralPromptsFillAWidthAndNoMore) {
  const Device device{
      milliseconds(2), microseconds(65), {1, 16, 32, 64, 128, 256, 512, 1024, 2048}};
  EngineHarness harness(limits_of_many(device), many_at_once());
  std::size_t waited = 0;
  harness.executor.while_waiting = [&] {
    harness.now += device.step(harness.executor.steps.at(waited++).columns, 0);
  };
  harness.engine.submit(greedy_request(1, some_tokens(1, 5), 400));
  harness.run_until_tokens(1, 3);
  for (std::uint64_t id = 2; id <= 40; ++id)
    harness.engine.submit(greedy_request(id, some_tokens(id, 300), 2));
  harness.run();
  std::size_t full = 0;
  for (const FakeExecutor::StepRecord& step : harness.executor.steps) {
    full += step.columns == 512 ? 1 : 0;
    EXPECT_LE(step.columns, 512U);
  }
  EXPECT_GT(full, 15U);
}

// The sequence's next token needs what the host made of the one before, so it waits for two steps.
TEST(EnginePace, ASequenceThatTheHostDrawsForWaitsNoLongerEither) {
  for (const std::uint32_t depth : {1U, 2U}) {
    const Beside seen = run_beside(3000, milliseconds(50), {}, depth, true);
    EXPECT_LE(seen.longest_gap, milliseconds(50)) << depth;
    EXPECT_LT(seen.steps, 150U) << depth;
  }
}

TEST(EnginePace, ADeviceThatIsSlowByItselfReadsPromptsAllTheSame) {
  const Device slow{milliseconds(80), microseconds(4000)};
  const Beside seen = run_beside(200, milliseconds(50), slow);
  EXPECT_LE(seen.longest_step, milliseconds(130));
  EXPECT_LT(seen.steps, 60U);
}

// Thirty-two clients come at once, and the pace says when each has its first token, in their order.
std::vector<engine::Clock::duration> first_tokens(std::uint32_t prompt, const Device& device,
                                                  std::uint32_t depth) {
  constexpr std::uint64_t kClients = 32;
  engine::ExecutorLimits limits = limits_of_many(device);
  limits.steps_in_flight = depth;
  EngineHarness harness(limits, many_at_once());
  std::size_t waited = 0;
  harness.executor.while_waiting = [&] {
    harness.now += device.step(harness.executor.steps.at(waited++).columns, 0);
  };
  for (std::uint64_t id = 1; id <= kClients; ++id)
    harness.engine.submit(greedy_request(id, some_tokens(id, prompt), 300));
  std::vector<engine::Clock::duration> firsts;
  std::vector<bool> seen(kClients + 1);
  const engine::Clock::time_point begin = harness.now;
  while (firsts.size() < kClients && harness.turn()) {
    for (std::uint64_t id = 1; id <= kClients; ++id) {
      if (seen[id] || harness.answer(id).tokens.empty()) continue;
      seen[id] = true;
      firsts.push_back(harness.now - begin);
    }
  }
  EXPECT_EQ(firsts.size(), kClients);
  harness.run();
  return firsts;
}

// Half of them have their first token in little more time than all prompts take alone, because no client waits for
// another one's answer.
TEST(EnginePace, ThirtyTwoWhoArriveAtOnceWaitForPromptsAlone) {
  const std::vector<engine::Clock::duration> firsts = first_tokens(128, {}, 1);
  const microseconds all = Device{}.step(32 * 128, 0);
  EXPECT_LE(firsts.at(15), all * 13 / 10);
  EXPECT_LE(firsts.back(), all * 2);
}

// Steps beside streams have fewer columns than a prompt has tokens. A prompt whose rest is read after all others would
// bring its stream as late as the last one.
TEST(EnginePace, APromptOfUsualLengthIsReadBeforeTheNextOne) {
  const Device fast{
      milliseconds(2), microseconds(65), {1, 16, 32, 64, 128, 256, 384, 512, 1024, 2048}};
  const std::vector<engine::Clock::duration> firsts = first_tokens(512, fast, 2);
  const microseconds all = fast.step(2048, 0) * (32 * 512 / 2048);
  EXPECT_LE(firsts.at(15), all * 7 / 10);
  EXPECT_LE(firsts.back(), all * 13 / 10);
}

// Columns of prompts alone cost a quarter of what they cost beside a stream, at each depth.
TEST(EnginePace, AGuessByPromptsAloneLetsNoDeeperStepTakeTooLong) {
  const Device beside, alone{milliseconds(10), microseconds(50)};
  constexpr std::uint32_t kWide = 2048, kPrompt = 60'000;
  engine::PromptPace pace(milliseconds(50), 10'000);
  for (std::uint32_t position = 0; position < kPrompt; position += kWide) {
    engine::PromptColumns columns;
    columns.add(position, kWide);
    pace.ended(columns, engine::PromptPace::kAlone, alone.step(kWide, position));
  }
  std::uint32_t position = 0, steps = 0;
  while (position < kPrompt) {
    const std::uint32_t count = pace.columns(position, 1);
    ASSERT_GE(count, engine::PromptPace::kLeastColumns);
    const microseconds took = beside.step(count, position);
    ++steps;
    EXPECT_LE(took, milliseconds(50)) << "at position " << position;
    engine::PromptColumns columns;
    columns.add(position, count);
    pace.ended(columns, 1, took);
    position += count;
  }
  // Each step but the first ones comes near to what it is allowed.
  EXPECT_LT(steps, 7500U);
}

// Beyond 128 columns another kernel computes attention, which takes twice as long. Where 128 columns leave room and 256
// do not, a few steps find that out, and no more.
TEST(EnginePace, AWidthThatTookTooLongIsNotTriedAgainAndAgain) {
  engine::PromptPace pace(milliseconds(50), 2500);
  const auto step = [](std::uint32_t columns, std::uint32_t position) {
    const std::uint32_t width = columns <= 128 ? 128 : 256;
    return microseconds(2500 + 60 * width + (width / 128) * width * position / 66);
  };
  std::uint32_t position = 0, steps = 0, too_long = 0, narrow = 0;
  while (position < 12'000) {
    const std::uint32_t count = std::min(pace.columns(position, 1), 256U);
    const microseconds took = step(count, position);
    ++steps;
    if (took > milliseconds(50)) ++too_long;
    if (position > 4096 && count < 100) ++narrow;
    engine::PromptColumns columns;
    columns.add(position, count);
    pace.ended(columns, 1, took);
    position += count;
  }
  EXPECT_LE(too_long, 6U) << steps << " steps";
  EXPECT_LE(narrow, steps / 8) << steps << " steps";
}

// Two steps are planned with the same number of columns, and both take too long. When the second step ends, the pace
// has already lowered the number because of the first step.
TEST(EnginePace, AStepThatWasTooLongIsNotTakenForASmallerOne) {
  engine::PromptPace pace(milliseconds(50), 2500);
  const auto end = [&](std::uint32_t count, milliseconds took) {
    engine::PromptColumns columns;
    columns.add(0, count);
    pace.ended(columns, 1, took);
  };
  while (pace.columns(0, 1) < 600) {
    const std::uint32_t count = pace.columns(0, 1);
    end(count, milliseconds(20));
  }
  end(600, milliseconds(67));
  end(600, milliseconds(67));
  // Steps of fewer columns than these are not too long.
  for (int i = 0; i < 4; ++i)
    end(pace.columns(0, 1), milliseconds(30));
  EXPECT_GE(pace.columns(0, 1), 500U);
  EXPECT_LT(pace.columns(0, 1), 600U);
}

TEST(EnginePace, APauseOfTheMachineIsForgotten) {
  engine::PromptPace pace(milliseconds(50), 2500);
  std::uint32_t count = 0;
  const auto run = [&](microseconds pause) {
    count = std::min(pace.columns(0, 1), 512U);
    engine::PromptColumns columns;
    columns.add(0, count);
    pace.ended(columns, 1, microseconds(2500 + 60 * count) + pause);
  };
  for (int i = 0; i < 20; ++i)
    run(microseconds(0));
  EXPECT_EQ(count, 512U);
  for (int i = 0; i < 3; ++i)
    run(std::chrono::seconds(2));
  EXPECT_LT(count, 64U);
  for (int i = 0; i < 12; ++i)
    run(microseconds(0));
  EXPECT_GT(count, 400U);
}

TEST(EnginePace, TheTokensAreTheSame) {
  const Paced fast = run_paced(microseconds(10), 0), slow = run_paced(microseconds(900'000), 1);
  ASSERT_NE(fast.columns, slow.columns);
  EXPECT_EQ(fast.tokens, slow.tokens);
  EXPECT_EQ(fast.tokens.size(), 3U);
}

}  // namespace
}  // namespace bulkhead::test
