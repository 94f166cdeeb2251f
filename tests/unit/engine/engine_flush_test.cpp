// When tokens are sent: the first at once, later ones in groups, and none later than the interval.
#include <chrono>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::microseconds;

engine::EngineOptions lots_of(std::uint32_t tokens, microseconds interval) {
  engine::EngineOptions options;
  options.flush_tokens = tokens;
  options.flush_interval = interval;
  return options;
}

TEST(EngineFlush, OneRecordForEachStepOfAllSequences) {
  EngineHarness harness(small_limits(), lots_of(1, microseconds(2000)));
  for (std::uint64_t id = 1; id <= 8; ++id)
    harness.engine.submit(greedy_request(id, {1, 2}, 10));
  harness.run();
  EXPECT_EQ(harness.executor.steps.size(), 10U);
  EXPECT_EQ(harness.records, 10U);
}

TEST(EngineFlush, FirstTokenAtOnceThenInLots) {
  EngineHarness harness(small_limits(), lots_of(4, microseconds(2000)));
  harness.engine.submit(greedy_request(1, {1, 2}, 11));
  harness.run();
  EXPECT_EQ(harness.answer(1).lots, (std::vector<std::size_t>{1, 4, 4, 2}));
}

TEST(EngineFlush, NobodyWaitsLongerThanTheInterval) {
  EngineHarness harness(small_limits(), lots_of(100, microseconds(2000)));
  harness.executor.while_waiting = [&] { harness.now += microseconds(900); };
  harness.engine.submit(greedy_request(1, {1, 2}, 14));
  harness.run();
  // Tokens are sent when they would be older than 2 ms at the end of the next step: after two more.
  for (std::size_t i = 1; i + 1 < harness.answer(1).lots.size(); ++i) {
    EXPECT_LE(harness.answer(1).lots[i], 3U);
    EXPECT_GE(harness.answer(1).lots[i], 2U);
  }
}

TEST(EngineFlush, StepsLongerThanTheIntervalSendEachTokenBeforeTheNextWait) {
  EngineHarness harness(small_limits(), lots_of(100, microseconds(2000)));
  std::vector<std::size_t> sent_during_wait;
  harness.executor.while_waiting = [&] {
    harness.now += microseconds(30000);
    sent_during_wait.push_back(harness.answer(1).tokens.size());
  };
  harness.engine.submit(greedy_request(1, {1, 2}, 6));
  harness.run();
  EXPECT_EQ(sent_during_wait, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5}))
      << "a token waited for a step to end";
}

TEST(EngineFlush, WhatOneSendsTheOthersGoWith) {
  EngineHarness harness(small_limits(), lots_of(4, microseconds(2000)));
  harness.engine.submit(greedy_request(1, {1, 2}, 12));
  harness.run_until_tokens(1, 1);
  harness.turn();
  harness.turn();
  EXPECT_EQ(harness.answer(1).tokens.size(), 1U);
  harness.engine.submit(greedy_request(2, {3, 4}, 3));
  harness.turn();
  EXPECT_EQ(harness.answer(2).tokens.size(), 1U);
  EXPECT_EQ(harness.answer(1).tokens.size(), 4U);
}

TEST(EngineFlush, ResumedRequestsNextTokenGoesAtOnce) {
  EngineHarness harness(small_limits(), lots_of(8, microseconds(2000)));
  ipc::Submit request = greedy_request(1, {1, 2}, 12);
  request.accepted_tokens = {5, 6};
  harness.engine.submit(request);
  harness.turn();
  EXPECT_EQ(harness.answer(1).tokens.size(), 1U);
}

TEST(EngineFlush, NothingToRunMeansNothingIsKept) {
  EngineHarness harness(small_limits(), lots_of(100, microseconds(1000000)));
  harness.engine.submit(greedy_request(1, {1, 2}, 5));
  harness.run();
  EXPECT_EQ(harness.answer(1).lots, (std::vector<std::size_t>{1, 4}));
}

TEST(EngineFlush, RecordsTooLargeForTheRingAreSplitBySequence) {
  engine::EngineOptions options = lots_of(1, microseconds(2000));
  options.max_message_bytes = 2048;
  EngineHarness harness(small_limits(), options);
  for (std::uint64_t id = 1; id <= 16; ++id) {
    ipc::Submit request = greedy_request(id, {1, 2}, 3);
    request.logprobs = 20;
    harness.engine.submit(request);
  }
  harness.run();
  EXPECT_EQ(harness.records, 48U);
  for (std::uint64_t id = 1; id <= 16; ++id)
    EXPECT_EQ(harness.answer(id).tokens.size(), 3U);
}

}  // namespace
}  // namespace bulkhead::test
