// The rules of supervision that need no process: when a worker counts as hung, when a successor is
// started and when no more are.
#include <gtest/gtest.h>

#include "orchestrator/supervisor/heartbeat.hpp"
#include "orchestrator/supervisor/restart_policy.hpp"

namespace bulkhead::orchestrator {
namespace {

using namespace std::chrono_literals;
using Phase = Heartbeat::Phase;

const Heartbeat::Clock::time_point kStart{1h};
constexpr std::chrono::milliseconds kTimeout{1000};

TEST(Heartbeat, ABusyOneLivesAsLongAsItsStepsAreCounted) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  for (int step = 0; step < 10; ++step) {
    const auto now = kStart + step * 900ms;
    EXPECT_EQ(heartbeat.look(now, Phase::kBusy, step, true, kTimeout).hang, "");
  }
  const auto last = kStart + 8100ms;
  // With a counter, answers to pings prove nothing.
  heartbeat.answered(0, last + 500ms);
  EXPECT_EQ(heartbeat.look(last + 1000ms, Phase::kBusy, 9, true, kTimeout).hang, "");
  EXPECT_EQ(heartbeat.look(last + 1001ms, Phase::kBusy, 9, true, kTimeout).hang,
            "hang: no progress for 1000 ms");
}

TEST(Heartbeat, WithoutACounterAnAnswerIsASignOfLife) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  const auto first = heartbeat.look(kStart + 300ms, Phase::kBusy, std::nullopt, true, kTimeout);
  ASSERT_TRUE(first.ping.has_value());
  EXPECT_FALSE(
      heartbeat.look(kStart + 400ms, Phase::kBusy, std::nullopt, true, kTimeout).ping.has_value());
  heartbeat.answered(*first.ping, kStart + 600ms);
  EXPECT_EQ(heartbeat.look(kStart + 1500ms, Phase::kBusy, std::nullopt, true, kTimeout).hang, "");
  EXPECT_NE(heartbeat.look(kStart + 1601ms, Phase::kBusy, std::nullopt, true, kTimeout).hang, "");
}

TEST(Heartbeat, AnIdleOneIsAskedAndHasToAnswer) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  const auto asked = heartbeat.look(kStart + 1h, Phase::kIdle, 5, true, kTimeout);
  ASSERT_TRUE(asked.ping.has_value());
  EXPECT_EQ(asked.hang, "");
  EXPECT_EQ(heartbeat.look(kStart + 1h + 1000ms, Phase::kIdle, 5, true, kTimeout).hang, "");
  EXPECT_EQ(heartbeat.look(kStart + 1h + 1001ms, Phase::kIdle, 5, true, kTimeout).hang,
            "hang: idle, and no answer for 1000 ms");
  heartbeat.answered(*asked.ping, kStart + 1h + 1001ms);
  EXPECT_TRUE(heartbeat.look(kStart + 2h, Phase::kIdle, 5, true, kTimeout).ping.has_value());
}

TEST(Heartbeat, ALoadingOneHasTenTimesThePatience) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  EXPECT_EQ(heartbeat.look(kStart + 10s, Phase::kLoading, std::nullopt, true, kTimeout).hang, "");
  EXPECT_EQ(heartbeat.look(kStart + 10001ms, Phase::kLoading, std::nullopt, true, kTimeout).hang,
            "hang: no progress for 10000 ms while loading");
}

TEST(RestartPolicy, WaitsLongerAndLongerUntilAToken) {
  RestartPolicy policy;
  std::vector<std::int64_t> delays;
  for (int death = 0; death < 10; ++death) {
    policy.died(true, 0s);
    delays.push_back(policy.delay().count());
  }
  EXPECT_EQ(delays,
            (std::vector<std::int64_t>{0, 250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000}));
  policy.reset();
  policy.died(true, 0s);
  EXPECT_EQ(policy.delay(), 0ms);
}

TEST(RestartPolicy, OnlyDeathsThatNoRequestExplainsCountAgainstTheBudget) {
  RestartPolicy policy;
  for (int death = 0; death < 100; ++death)
    policy.died(true, 0s);
  EXPECT_FALSE(policy.spent(3));
  policy.died(false, 0s);
  policy.died(false, 1s);
  EXPECT_FALSE(policy.spent(3));
  policy.died(false, 1s);
  EXPECT_TRUE(policy.spent(3));
  policy.reset();
  EXPECT_FALSE(policy.spent(3));
}

TEST(RestartPolicy, AMinuteOfServingIsANewBeginning) {
  RestartPolicy policy;
  for (int day = 0; day < 100; ++day)
    policy.died(false, 24h);
  EXPECT_FALSE(policy.spent(2));
  EXPECT_EQ(policy.delay(), 0ms);
}

}  // namespace
}  // namespace bulkhead::orchestrator
