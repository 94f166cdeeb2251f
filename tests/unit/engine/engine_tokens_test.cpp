// Which tokens come out: the same ones alone and among others, with any chunks, after losing pages, after a
// resumption.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"

namespace bulkhead::test {
namespace {

using engine::EngineOptions;
using engine::ExecutorLimits;
using ipc::TokenId;

EngineOptions with_chunk(std::uint32_t chunk) {
  EngineOptions options;
  options.scheduler = {.max_batch = 16, .prefill_chunk = chunk};
  return options;
}

std::vector<ipc::Submit> sixteen_requests() {
  std::vector<ipc::Submit> requests;
  for (std::uint64_t i = 1; i <= 16; ++i) {
    auto prompt = some_tokens(i, 1 + (i * 13) % 60);
    requests.push_back(i % 2 == 0 ? greedy_request(i, prompt, 30)
                                  : sampled_request(i, prompt, 30, 1000 + i));
    if (i % 5 == 0) requests.back().logprobs = 3;
  }
  return requests;
}

Answer alone(const ipc::Submit& request, std::uint32_t chunk = 256) {
  EngineHarness harness(small_limits(), with_chunk(chunk));
  harness.engine.submit(request);
  harness.run();
  return harness.answer(request.request.value);
}

void expect_same(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.text, expected.text);
  ASSERT_TRUE(answer.finished && expected.finished);
  EXPECT_EQ(answer.finished->reason, expected.finished->reason);
  ASSERT_EQ(answer.logprobs.size(), expected.logprobs.size());
  for (std::size_t i = 0; i < answer.logprobs.size(); ++i) {
    EXPECT_EQ(answer.logprobs[i].logprob, expected.logprobs[i].logprob);
    EXPECT_EQ(answer.logprobs[i].top.size(), expected.logprobs[i].top.size());
  }
}

TEST(EngineTokens, GreedyTokensAreTheModelsOwn) {
  const auto prompt = some_tokens(77, 21);
  const Answer answer = alone(greedy_request(1, prompt, 25));
  const FakeExecutor model(small_limits());
  std::vector<TokenId> history = prompt;
  for (const TokenId token : answer.tokens) {
    const auto row = model.logits_after(history);
    ASSERT_EQ(token, std::max_element(row.begin(), row.end()) - row.begin());
    history.push_back(token);
  }
  EXPECT_EQ(answer.tokens.size(), 25U);
  EXPECT_EQ(answer.accepted->prompt_tokens, prompt);
  EXPECT_EQ(answer.finished->reason, ipc::FinishReason::kLength);
}

TEST(EngineTokens, SixteenStreamsGetTheTokensThatEachGetsAlone) {
  EngineHarness harness(small_limits(), with_chunk(256));
  for (const ipc::Submit& request : sixteen_requests()) {
    harness.engine.submit(request);
    harness.turn();
    harness.turn();
  }
  harness.run();
  std::uint32_t widest = 0;
  for (const auto& step : harness.executor.steps) {
    widest = std::max(widest, static_cast<std::uint32_t>(step.columns_of.size()));
  }
  EXPECT_GT(widest, 10U) << "they hardly ran together";
  for (const ipc::Submit& request : sixteen_requests()) {
    SCOPED_TRACE(request.request.value);
    expect_same(harness.answer(request.request.value), alone(request));
  }
}

TEST(EngineTokens, ChunkingMakesNoDifference) {
  for (const ipc::Submit& request : sixteen_requests()) {
    const Answer whole = alone(request);
    for (const std::uint32_t chunk : {1U, 3U, 4U, 7U, 64U}) {
      SCOPED_TRACE(chunk);
      expect_same(alone(request, chunk), whole);
    }
  }
}

TEST(EngineTokens, LosingPagesMakesNoDifference) {
  ExecutorLimits limits = small_limits();
  limits.total_pages = 30;  // 120 positions for sixteen requests of up to 90
  EngineHarness harness(limits, with_chunk(32));
  for (const ipc::Submit& request : sixteen_requests())
    harness.engine.submit(request);
  harness.run();
  EXPECT_GT(harness.engine.scheduler().preemptions(), 3U) << "the cache was never short";
  EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
  for (const ipc::Submit& request : sixteen_requests()) {
    SCOPED_TRACE(request.request.value);
    expect_same(harness.answer(request.request.value), alone(request));
  }
}

// States that layers carry from position to position, with few slots, few pages, steps in flight, and cancellations.
TEST(EngineTokens, StatesFollowTheirSequences) {
  for (const std::uint32_t in_flight : {1U, 2U, 3U}) {
    SCOPED_TRACE(in_flight);
    ExecutorLimits limits = small_limits();
    limits.total_pages = 34;
    limits.states = 5;
    limits.steps_in_flight = in_flight;
    EngineOptions options = with_chunk(32);
    options.scheduler.prefix_cache = true;
    EngineHarness harness(limits, options);
    for (const ipc::Submit& request : sixteen_requests())
      harness.engine.submit(request);
    harness.run_until_tokens(3, 5);
    harness.engine.cancel(RequestId{4});
    harness.run();
    EXPECT_GT(harness.engine.scheduler().preemptions(), 0U) << "the cache was never short";
    for (const ipc::Submit& request : sixteen_requests()) {
      if (request.request.value == 4) continue;
      SCOPED_TRACE(request.request.value);
      expect_same(harness.answer(request.request.value), alone(request));
    }
  }
}

TEST(EngineTokens, LongPromptArrivesWithoutDelayingOthers) {
  ExecutorLimits limits = small_limits();
  limits.context = 2048;
  limits.total_pages = 1024;
  limits.max_columns = 300;
  EngineHarness harness(limits, with_chunk(256));
  harness.engine.submit(greedy_request(1, some_tokens(1, 10), 40));
  harness.run_until_tokens(1, 3);
  harness.engine.submit(greedy_request(2, some_tokens(2, 1500), 5));
  harness.turn();
  harness.engine.submit(greedy_request(3, some_tokens(3, 12), 5));
  const std::size_t before = harness.executor.steps.size();
  harness.run_until_tokens(3, 1);
  EXPECT_LE(harness.executor.steps.size() - before, 2U) << "a newcomer waited longer";
  harness.run();
  const Answer& talking = harness.answer(1);
  for (std::size_t i = 1; i < talking.lot_steps.size(); ++i) {
    EXPECT_EQ(talking.lot_steps[i], talking.lot_steps[i - 1] + 1) << "a stream skipped a step";
  }
  for (const auto& step : harness.executor.steps)
    EXPECT_LE(step.columns, 256U + 3U);
  EXPECT_EQ(harness.answer(2).tokens.size(), 5U);
}

// A worker dies after each number of tokens in turn, and its successor continues.
void expect_resumes(ipc::Submit request, std::vector<std::string> words = {},
                    std::function<std::optional<TokenId>(std::span<const TokenId>)> script = {}) {
  EngineHarness whole(small_limits(), {}, words);
  whole.executor.script = script;
  whole.engine.submit(request);
  whole.run();
  const Answer expected = whole.answer(request.request.value);
  ASSERT_TRUE(expected.finished.has_value());

  for (std::size_t sent = 0; sent <= expected.tokens.size(); ++sent) {
    SCOPED_TRACE("after " + std::to_string(sent) + " tokens");
    EngineHarness first(small_limits(), {}, words);
    first.executor.script = script;
    first.engine.submit(request);
    if (sent > 0) first.run_until_tokens(request.request.value, sent);
    Answer before = first.answer(request.request.value);
    if (sent == 0) before = Answer();
    ASSERT_EQ(before.tokens.size(), sent);
    // The worker may have died before it reported the end.
    if (before.finished) before.text.resize(before.text.size() - before.finished->text.size());

    EngineHarness second(small_limits(), {}, words);
    second.executor.script = script;
    ipc::Submit again = request;
    again.accepted_tokens = before.tokens;
    second.engine.submit(again);
    second.run();
    const Answer& after = second.answer(request.request.value);
    std::vector<TokenId> tokens = before.tokens;
    tokens.insert(tokens.end(), after.tokens.begin(), after.tokens.end());
    EXPECT_EQ(tokens, expected.tokens);
    EXPECT_EQ(before.text + after.text, expected.text);
    ASSERT_TRUE(after.finished.has_value());
    EXPECT_EQ(after.finished->reason, expected.finished->reason);
    EXPECT_EQ(after.finished->completion_tokens, expected.finished->completion_tokens);
    if (!after.tokens.empty()) {
      EXPECT_EQ(after.first_index, sent);
    }
    for (const ipc::Counter& counter : second.engine.stats().counters) {
      if (counter.name == "draws_below_accepted_total") {
        EXPECT_EQ(counter.value, 0);
      }
    }
  }
}

TEST(EngineTokens, ResumedGreedyRequestGoesOnAsIfNothingHadHappened) {
  expect_resumes(greedy_request(1, some_tokens(5, 17), 20));
}

TEST(EngineTokens, ResumedSampledRequestGoesOnAsIfNothingHadHappened) {
  expect_resumes(sampled_request(1, some_tokens(6, 17), 20, 31));
}

TEST(EngineTokens, ResumedRequestKeepsHeldTextAndHalfCharacters) {
  // The answer is "ab🐍abSTxSTOP...": a character over three tokens, a false and a true beginning of
  // the stop string.
  const std::vector<std::string> words = {"ab", "\xF0\x9F", "\x90", "\x8D", "ST", "OP", "x"};
  const std::vector<TokenId> answer = {258, 259, 260, 261, 258, 262, 264, 262, 263, 258};
  const auto script = [answer](std::span<const TokenId> history) -> std::optional<TokenId> {
    const std::size_t index = history.size() - 3;
    return index < answer.size() ? std::optional(answer[index]) : std::nullopt;
  };
  ipc::Submit request = greedy_request(1, {1, 2, 3}, 20);
  request.stop = {"STOP"};
  EngineHarness harness(small_limits(), {}, words);
  harness.executor.script = script;
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(harness.answer(1).text,
            "ab\xF0\x9F\x90\x8D"
            "abSTx");
  EXPECT_EQ(harness.answer(1).tokens.size(), 9U) << "the tokens of the stop string are included";
  EXPECT_EQ(harness.answer(1).finished->stopped_by, "STOP");
  EXPECT_EQ(harness.answer(1).finished->reason, ipc::FinishReason::kStop);
  expect_resumes(request, words, script);
}

TEST(EngineTokens, ResumedRequestThatWasAtItsEndEndsAtOnce) {
  EngineHarness harness;
  ipc::Submit request = greedy_request(1, {1, 2, 3}, 4);
  request.accepted_tokens = {10, 11, 12, 13};
  harness.engine.submit(request);
  EXPECT_TRUE(harness.answer(1).finished.has_value());
  EXPECT_EQ(harness.answer(1).finished->reason, ipc::FinishReason::kLength);
  EXPECT_EQ(harness.answer(1).finished->completion_tokens, 4U);
  EXPECT_TRUE(harness.executor.steps.empty());
}

TEST(EngineTokens, LogprobsAreOfTheRawRowWithPiecesAsBytes) {
  EngineHarness harness(small_limits(), {}, {"hello"});
  ipc::Submit request = greedy_request(1, {1, 2, 3}, 2);
  request.logprobs = 5;
  harness.executor.script = [](std::span<const TokenId> history) -> std::optional<TokenId> {
    return history.size() == 3 ? std::optional<TokenId>(258) : std::nullopt;
  };
  harness.engine.submit(request);
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_EQ(answer.logprobs.size(), 2U);
  EXPECT_EQ(answer.logprobs[0].bytes, "hello");
  ASSERT_EQ(answer.logprobs[0].top.size(), 5U);
  EXPECT_EQ(answer.logprobs[0].top[0].token, 258U);
  EXPECT_EQ(answer.logprobs[0].top[0].bytes, "hello");
  EXPECT_EQ(answer.logprobs[0].top[0].logprob, answer.logprobs[0].logprob);
  const FakeExecutor model(small_limits());
  const auto row = model.logits_after(std::vector<TokenId>{1, 2, 3, 258});
  double sum = 0;
  for (const float logit : row)
    sum += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(answer.logprobs[1].logprob, row[answer.tokens[1]] - std::log(sum), 1e-5);
}

}  // namespace
}  // namespace bulkhead::test
