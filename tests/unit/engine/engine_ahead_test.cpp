// With several steps in flight there are the same tokens as with one; nothing that was computed after an end is
// sent; no page is reused while a step may write to it; and no sequence waits longer.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"

namespace bulkhead::test {
namespace {

using engine::EngineOptions;
using engine::ExecutorLimits;
using ipc::TokenId;

ExecutorLimits with_depth(std::uint32_t depth) {
  ExecutorLimits limits = small_limits();
  limits.steps_in_flight = depth;
  return limits;
}

EngineOptions with_chunk(std::uint32_t chunk) {
  EngineOptions options;
  options.scheduler = {.max_batch = 16, .prefill_chunk = chunk};
  return options;
}

double counter(const EngineHarness& harness, const std::string& name) {
  for (const ipc::Counter& each : harness.engine.stats().counters) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return -1;
}

// When the last answer has ended, steps whose results are not needed are still in flight.
void run_to_rest(EngineHarness& harness) {
  harness.run();
  while (harness.turn()) {
  }
  EXPECT_EQ(harness.engine.scheduler().in_flight(), 0U);
  EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
}

std::vector<ipc::Submit> mixed_requests() {
  std::vector<ipc::Submit> requests;
  for (std::uint64_t i = 1; i <= 16; ++i) {
    auto prompt = some_tokens(i, 1 + (i * 13) % 60);
    requests.push_back(i % 3 != 0 ? greedy_request(i, prompt, 30)
                                  : sampled_request(i, prompt, 30, 1000 + i));
    if (i % 5 == 0) requests.back().logprobs = 3;
    requests.back().ignore_eos = i % 2 == 0;
  }
  return requests;
}

// Ends some answers at a place that depends only on their tokens.
std::optional<TokenId> ends_now_and_then(std::span<const TokenId> history) {
  std::uint64_t hash = 0;
  for (const TokenId token : history)
    hash = hash * 31 + token;
  return hash % 23 == 0 ? std::optional(FakeTokenizer::kEos) : std::nullopt;
}

Answer alone(const ipc::Submit& request) {
  EngineHarness harness;
  harness.executor.script = ends_now_and_then;
  harness.engine.submit(request);
  harness.run();
  return harness.answer(request.request.value);
}

void expect_same(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.text, expected.text);
  EXPECT_EQ(answer.logprobs.size(), expected.logprobs.size());
  ASSERT_TRUE(answer.finished && expected.finished);
  EXPECT_EQ(answer.finished->reason, expected.finished->reason);
  EXPECT_EQ(answer.finished->completion_tokens, expected.finished->completion_tokens);
}

class EngineAhead : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Depth, EngineAhead, testing::Values(1U, 2U, 3U, 4U));

TEST_P(EngineAhead, TokensAreThoseOfOneStepAtATime) {
  EngineHarness harness(with_depth(GetParam()), with_chunk(64));
  harness.executor.script = ends_now_and_then;
  for (const ipc::Submit& request : mixed_requests()) {
    harness.engine.submit(request);
    harness.turn();
  }
  run_to_rest(harness);
  std::size_t deepest = 0;
  for (const auto& step : harness.executor.steps)
    deepest = std::max(deepest, step.in_flight);
  EXPECT_EQ(deepest, GetParam());
  std::size_t ended_early = 0;
  for (const ipc::Submit& request : mixed_requests()) {
    SCOPED_TRACE(request.request.value);
    const Answer expected = alone(request);
    ended_early += expected.tokens.size() < 30 ? 1 : 0;
    expect_same(harness.answer(request.request.value), expected);
  }
  EXPECT_GT(ended_early, 2U) << "nobody stopped by a token";
  if (GetParam() > 1) {
    EXPECT_GT(counter(harness, "discarded_outputs_total"), 0);
  }
  EXPECT_EQ(counter(harness, "draws_below_accepted_total"), 0);
}

TEST_P(EngineAhead, LosingPagesMakesNoDifference) {
  ExecutorLimits limits = with_depth(GetParam());
  limits.total_pages = 30;
  EngineHarness harness(limits, with_chunk(32));
  harness.executor.script = ends_now_and_then;
  for (const ipc::Submit& request : mixed_requests())
    harness.engine.submit(request);
  run_to_rest(harness);
  EXPECT_GT(harness.engine.scheduler().preemptions(), 2U) << "the cache was never short";
  for (const ipc::Submit& request : mixed_requests()) {
    SCOPED_TRACE(request.request.value);
    expect_same(harness.answer(request.request.value), alone(request));
  }
}

TEST_P(EngineAhead, SharedPrefixesMakeNoDifference) {
  EngineOptions options = with_chunk(16);
  options.scheduler.prefix_cache = true;
  EngineHarness harness(with_depth(GetParam()), options);
  harness.executor.script = ends_now_and_then;
  std::vector<ipc::Submit> requests;
  for (std::uint64_t i = 1; i <= 12; ++i) {
    auto prompt = some_tokens(99, 40);
    for (const TokenId token : some_tokens(i % 4, 3 + i))
      prompt.push_back(token);
    requests.push_back(greedy_request(i, prompt, 25));
    requests.back().ignore_eos = false;
  }
  for (const ipc::Submit& request : requests) {
    harness.engine.submit(request);
    harness.turn();
    harness.turn();
  }
  run_to_rest(harness);
  EXPECT_GT(harness.engine.scheduler().prefix_figures().hit_tokens, 100U);
  for (const ipc::Submit& request : requests) {
    SCOPED_TRACE(request.request.value);
    expect_same(harness.answer(request.request.value), alone(request));
  }
}

TEST_P(EngineAhead, NothingRunsPastALengthThatIsKnown) {
  EngineHarness harness(with_depth(GetParam()));
  for (std::uint64_t id = 1; id <= 4; ++id)
    harness.engine.submit(greedy_request(id, {1, 2}, 10));
  harness.engine.submit(greedy_request(5, some_tokens(5, 120), 0));  // until the context is full
  run_to_rest(harness);
  EXPECT_EQ(harness.answer(5).tokens.size(), 8U);
  EXPECT_EQ(harness.executor.steps.size(), 10U);
  EXPECT_EQ(counter(harness, "discarded_outputs_total"), 0);
}

TEST_P(EngineAhead, WhatIsComputedPastAStopIsSentToNobody) {
  const std::vector<std::string> words = {"one ", "STOP", " more"};
  EngineHarness harness(with_depth(GetParam()), {}, words);
  harness.executor.script = [](std::span<const TokenId> history) -> std::optional<TokenId> {
    return history.size() < 6 ? TokenId{258} : history.size() == 6 ? TokenId{259} : TokenId{260};
  };
  ipc::Submit request = greedy_request(1, {1, 2, 3}, 50);
  request.stop = {"STOP"};
  harness.engine.submit(request);
  run_to_rest(harness);
  EXPECT_EQ(harness.answer(1).text, "one one one ");
  EXPECT_EQ(harness.answer(1).tokens, (std::vector<TokenId>{258, 258, 258, 259}));
  EXPECT_EQ(harness.answer(1).finished->completion_tokens, 4U);
  EXPECT_EQ(harness.executor.steps.size(), 4U + GetParam() - 1);
  EXPECT_EQ(counter(harness, "discarded_outputs_total"), GetParam() - 1);
  EXPECT_EQ(counter(harness, "generated_tokens_total"), 4);
}

TEST_P(EngineAhead, CancellationAtEveryStepFreesThePagesOnceNoStepWritesToThem) {
  for (int when = 0; when < 14; ++when) {
    SCOPED_TRACE(when);
    ExecutorLimits limits = with_depth(GetParam());
    limits.total_pages = 22;  // so that freed pages are used again at once
    EngineHarness harness(limits, with_chunk(8));
    harness.engine.submit(greedy_request(1, some_tokens(1, 40), 12));
    harness.engine.submit(greedy_request(2, some_tokens(2, 9), 12));
    harness.engine.submit(greedy_request(3, some_tokens(3, 40), 12));
    for (int i = 0; i < when; ++i)
      harness.turn();
    if (when % 2 == 0)
      harness.engine.cancel(RequestId{1});
    else
      harness.cancel_during_a_step(1);
    run_to_rest(harness);
    const Answer& cancelled = harness.answer(1);
    ASSERT_TRUE(cancelled.finished.has_value());
    EXPECT_EQ(cancelled.finished->completion_tokens, cancelled.tokens.size());
    for (const std::uint64_t id : {2U, 3U}) {
      const auto prompt = id == 2 ? some_tokens(2, 9) : some_tokens(3, 40);
      EngineHarness by_itself;
      by_itself.engine.submit(greedy_request(id, prompt, 12));
      by_itself.run();
      EXPECT_EQ(harness.answer(id).tokens, by_itself.answer(id).tokens)
          << "a neighbour was touched";
    }
  }
}

TEST_P(EngineAhead, ResumedRequestsGoOnAsIfNothingHadHappened) {
  for (const bool greedy : {true, false}) {
    const auto prompt = some_tokens(6, 17);
    const ipc::Submit request =
        greedy ? greedy_request(1, prompt, 14) : sampled_request(1, prompt, 14, 31);
    const Answer expected = alone(request);
    for (std::size_t sent = 0; sent <= expected.tokens.size(); ++sent) {
      EngineHarness harness(with_depth(GetParam()));
      harness.executor.script = ends_now_and_then;
      ipc::Submit again = request;
      again.accepted_tokens.assign(expected.tokens.begin(),
                                   expected.tokens.begin() + static_cast<std::ptrdiff_t>(sent));
      harness.engine.submit(again);
      run_to_rest(harness);
      std::vector<TokenId> tokens = again.accepted_tokens;
      const auto& more = harness.answer(1).tokens;
      tokens.insert(tokens.end(), more.begin(), more.end());
      EXPECT_EQ(tokens, expected.tokens);
      EXPECT_EQ(counter(harness, "draws_below_accepted_total"), 0);
    }
  }
}

TEST_P(EngineAhead, NewcomersWaitForTwoChunksAtMost) {
  ExecutorLimits limits = with_depth(GetParam());
  limits.context = 2048;
  limits.total_pages = 1024;
  limits.max_columns = 300;
  EngineHarness harness(limits, with_chunk(256));
  harness.engine.submit(greedy_request(1, some_tokens(1, 10), 60));
  harness.run_until_tokens(1, 3);
  harness.engine.submit(greedy_request(2, some_tokens(2, 1900), 5));
  for (std::uint32_t i = 0; i < GetParam(); ++i)
    harness.turn();
  // The steps in flight were planned before this request came.
  const std::size_t in_flight = harness.engine.scheduler().in_flight();
  const std::size_t before = harness.executor.steps.size();
  harness.engine.submit(greedy_request(3, some_tokens(3, 12), 5));
  harness.turn();
  std::size_t place = before;
  while (place < harness.executor.steps.size() &&
         harness.executor.steps[place].columns_of.size() < 3)
    ++place;
  harness.run_until_tokens(3, 1);
  while (harness.executor.steps[place].columns_of.size() < 3)
    ++place;
  EXPECT_LE(place - before, GetParam() == 1 ? 1U : 0U) << "it is not in the next step";
  EXPECT_LE(in_flight, GetParam() - 1);
  run_to_rest(harness);
  const Answer& talking = harness.answer(1);
  for (std::size_t i = 1; i < talking.lot_steps.size(); ++i) {
    EXPECT_EQ(talking.lot_steps[i], talking.lot_steps[i - 1] + 1) << "a stream skipped a step";
  }
}

// The device draws the same tokens, and the host waits for none of them.
TEST_P(EngineAhead, DrawsOnTheDeviceAreThoseOfTheHost) {
  ExecutorLimits limits = with_depth(GetParam());
  limits.sampled_top_k = 64;
  EngineHarness harness(limits, with_chunk(64));
  harness.executor.script = ends_now_and_then;
  std::vector<ipc::Submit> requests;
  for (std::uint64_t i = 1; i <= 12; ++i) {
    ipc::Submit request = greedy_request(i, some_tokens(i, 1 + (i * 13) % 60), 30);
    request.sampling.temperature = 0.5F + 0.1F * static_cast<float>(i);
    request.sampling.top_k = i % 3 == 0 ? 0 : static_cast<std::uint32_t>(i * 10);
    request.sampling.top_p = i % 2 == 0 ? 0.9F : 1.0F;
    request.sampling.min_p = i % 4 == 0 ? 0.02F : 0.0F;
    request.sampling.seed = i;
    request.ignore_eos = i % 2 == 0;
    request.logprobs = i == 12 ? 2 : -1;
    requests.push_back(request);
  }
  for (const ipc::Submit& request : requests) {
    harness.engine.submit(request);
    harness.turn();
  }
  run_to_rest(harness);
  for (const ipc::Submit& request : requests) {
    SCOPED_TRACE(request.request.value);
    const Answer expected = alone(request);
    expect_same(harness.answer(request.request.value), expected);
    // Also from the middle, as after a worker's death.
    EngineHarness successor(limits);
    successor.executor.script = ends_now_and_then;
    ipc::Submit again = request;
    const std::size_t sent = expected.tokens.size() / 2;
    again.accepted_tokens.assign(expected.tokens.begin(),
                                 expected.tokens.begin() + static_cast<std::ptrdiff_t>(sent));
    successor.engine.submit(again);
    run_to_rest(successor);
    std::vector<TokenId> tokens = again.accepted_tokens;
    const auto& more = successor.answer(request.request.value).tokens;
    tokens.insert(tokens.end(), more.begin(), more.end());
    EXPECT_EQ(tokens, expected.tokens);
  }
}

// Log-probabilities from the device are the same, and no step waits for the host. Only requests for more
// log-probabilities than the device computes need the host.
TEST_P(EngineAhead, LogprobabilitiesOfTheDeviceAreThoseOfTheHost) {
  ExecutorLimits limits = with_depth(GetParam());
  limits.sampled_top_k = 64;
  limits.most_logprobs = 5;
  EngineHarness harness(limits, with_chunk(64));
  harness.executor.script = ends_now_and_then;
  std::vector<ipc::Submit> requests;
  for (std::uint64_t i = 1; i <= 12; ++i) {
    requests.push_back(i % 2 == 0 ? greedy_request(i, some_tokens(i, 1 + (i * 13) % 60), 30)
                                  : sampled_request(i, some_tokens(i, 1 + (i * 13) % 60), 30, i));
    requests.back().logprobs = static_cast<std::int32_t>(i) % 7;
    if (i == 3) requests.back().sampling.presence_penalty = 0.4F;
  }
  for (const ipc::Submit& request : requests) {
    harness.engine.submit(request);
    harness.turn();
  }
  run_to_rest(harness);
  for (const ipc::Submit& request : requests) {
    SCOPED_TRACE(request.request.value);
    const Answer& answer = harness.answer(request.request.value);
    const Answer expected = alone(request);
    expect_same(answer, expected);
    ASSERT_EQ(answer.logprobs.size(), answer.tokens.size());
    for (std::size_t n = 0; n < answer.logprobs.size(); ++n)
      EXPECT_EQ(answer.logprobs[n], expected.logprobs[n]) << "token " << n;
  }
  EngineHarness one(limits);
  ipc::Submit request = greedy_request(1, {1, 2}, 8);
  request.logprobs = 5;
  one.engine.submit(request);
  run_to_rest(one);
  std::size_t deepest = 0;
  for (const auto& step : one.executor.steps)
    deepest = std::max(deepest, step.in_flight);
  EXPECT_EQ(deepest, GetParam());
}

// Biases and penalties need no host, so a stream has a column in each step, and its tokens are those that the host
// would choose.
TEST_P(EngineAhead, ChangedLogitsLeaveOutNoStep) {
  ipc::Submit biased = greedy_request(1, some_tokens(1, 9), 40);
  biased.logit_bias = {{3, 2.5F}, {77, -4}, {3, 0.5F}};
  biased.logprobs = 2;
  ipc::Submit present = greedy_request(2, some_tokens(2, 50), 40);
  present.sampling.presence_penalty = 1.5F;
  ipc::Submit repeating = sampled_request(3, some_tokens(3, 20), 40, 5);
  repeating.logit_bias = {{9, 3}};
  repeating.logprobs = 4;
  for (const ipc::Submit& request : {biased, present, repeating}) {
    ExecutorLimits limits = with_depth(GetParam());
    limits.sampled_top_k = 64;
    limits.most_logprobs = 5;
    EngineHarness device(limits);
    limits.adjusts = false;
    EngineHarness host(limits);
    for (EngineHarness* harness : {&device, &host}) {
      harness->engine.submit(request);
      run_to_rest(*harness);
    }
    const std::uint64_t id = request.request.value;
    expect_same(device.answer(id), host.answer(id));
    EXPECT_EQ(device.answer(id).logprobs, host.answer(id).logprobs);
    EXPECT_EQ(device.answer(id).tokens.size(), 40U);
    EXPECT_EQ(device.executor.steps.size(), 40U) << id;
    EXPECT_EQ(std::ranges::count(device.executor.steps, std::size_t{std::min(GetParam(), 2U)},
                                 &FakeExecutor::StepRecord::in_flight),
              GetParam() == 1 ? 40 : 39);
  }
}

TEST(EngineAhead, SequencesThatNeedTheHostLeaveOutStepsInFlight) {
  EngineHarness harness(with_depth(2));
  harness.engine.submit(sampled_request(1, {1, 2}, 6, 7));
  run_to_rest(harness);
  EXPECT_EQ(harness.executor.steps.size(), 6U);
  for (const auto& step : harness.executor.steps)
    EXPECT_EQ(step.in_flight, 1U);
  // Beside a sequence that does not need the host, it takes part in every second step.
  harness.executor.steps.clear();
  harness.engine.submit(greedy_request(2, {1, 2}, 12));
  harness.engine.submit(sampled_request(3, {1, 2}, 6, 7));
  run_to_rest(harness);
  EXPECT_EQ(harness.answer(3).tokens, harness.answer(1).tokens);
  EXPECT_EQ(harness.executor.steps.size(), 12U);
}

TEST(EngineAhead, ALostDeviceLosesNoTokenThatWasKnown) {
  EngineHarness harness(with_depth(2));
  harness.engine.submit(greedy_request(1, {1, 2}, 9));
  harness.executor.lose_device_in = 3;
  ASSERT_TRUE(harness.turn());  // this submits two steps
  ASSERT_TRUE(harness.turn());
  const auto lost = harness.engine.turn([] {});
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code(), ErrorCode::kDeviceLost);
  EXPECT_TRUE(lost.error().message().starts_with("step 4 (1 columns of 1 sequences): "))
      << lost.error().message();
  EXPECT_EQ(harness.answer(1).tokens.size(), 2U) << "what was computed had been sent";
}

}  // namespace
}  // namespace bulkhead::test
