// Requests of all kinds, and the answers that they get without speculation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/speculating.hpp"

namespace bulkhead::test {

// Repeats, in most places, the token of eight tokens ago, so that n-grams find something.
inline std::optional<ipc::TokenId> repeats_itself(std::span<const ipc::TokenId> history) {
  std::uint64_t hash = 0;
  for (const ipc::TokenId token : history)
    hash = hash * 31 + token;
  if (hash % 61 == 0) return FakeTokenizer::kEos;
  if (history.size() < 8 || hash % 7 == 0) return std::nullopt;
  return history[history.size() - 8];
}

// Requests whose tokens are greedy or drawn by the device or the host, with penalties, log-probabilities, biases,
// stop strings and stop tokens.
inline std::vector<ipc::Submit> varied_requests(std::uint64_t count) {
  std::vector<ipc::Submit> requests;
  for (std::uint64_t i = 1; i <= count; ++i) {
    auto prompt = some_tokens(i % 9, 1 + (i * 13) % 60);
    ipc::Submit request = greedy_request(i, prompt, 24 + i % 17);
    if (i % 4 == 1) {
      request.sampling.temperature = 1;
      request.sampling.top_p = 0.9F;
      request.sampling.seed = i;
    }
    if (i % 4 == 2) request = sampled_request(i, prompt, 30, 1000 + i);
    if (i % 3 == 0) request.logprobs = static_cast<std::int32_t>(i % 5);
    if (i % 7 == 0) request.stop = {"a", "\x05\x06"};
    if (i % 11 == 0) request.stop_tokens = {7, 70, 170};
    if (i % 13 == 0) request.logit_bias = {{static_cast<ipc::TokenId>(i), 6.0F}};
    request.ignore_eos = i % 2 == 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

inline const std::map<std::uint64_t, Answer>& expected_answers(std::uint64_t count) {
  static std::map<std::uint64_t, Answer> answers;
  for (const ipc::Submit& request : varied_requests(count)) {
    const std::uint64_t id = request.request.value;
    if (answers.contains(id)) continue;
    EngineHarness harness(limits_of(1), options_of(engine::Speculation::kOff));
    harness.executor.script = repeats_itself;
    harness.engine.submit(request);
    harness.run();
    answers[id] = harness.answer(id);
  }
  return answers;
}

inline void expect_same(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.text, expected.text);
  EXPECT_EQ(answer.logprobs, expected.logprobs);
  ASSERT_TRUE(answer.finished && expected.finished);
  EXPECT_EQ(answer.finished->reason, expected.finished->reason);
  EXPECT_EQ(answer.finished->completion_tokens, expected.finished->completion_tokens);
}

// Submits this many varied requests while the engine computes, and then lets the engine end them
// all.
inline void submit_all(EngineHarness& harness, std::uint64_t count) {
  for (const ipc::Submit& request : varied_requests(count)) {
    harness.engine.submit(request);
    if (request.request.value % 3 == 0) harness.turn();
  }
  harness.run();
  while (harness.turn()) {
  }
}

// The answers are those of an engine that guesses nothing.
inline void expect_all_same(EngineHarness& harness, std::uint64_t count) {
  for (std::uint64_t id = 1; id <= count; ++id) {
    SCOPED_TRACE(id);
    expect_same(harness.answer(id), expected_answers(count).at(id));
  }
}

}  // namespace bulkhead::test
