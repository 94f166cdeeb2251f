// The rules of supervision that need no process: when a worker counts as hung, when a successor is started at once,
// later or not at all, and when a request is to blame.
#include <fcntl.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "orchestrator/supervisor/blame.hpp"
#include "orchestrator/supervisor/heartbeat.hpp"
#include "orchestrator/supervisor/restart_policy.hpp"
#include "orchestrator/supervisor/standby_pool.hpp"
#include "orchestrator/supervisor/worker.hpp"
#include "orchestrator/supervisor/worker_process.hpp"

namespace bulkhead::orchestrator {
namespace {

using namespace std::chrono_literals;
using Phase = Heartbeat::Phase;

const Heartbeat::Clock::time_point kStart{1h};
constexpr std::chrono::milliseconds kTimeout{1000};

// The result of look_until().
struct Looked {
  std::string hang;                    // how the heartbeat describes the first hang; empty: there was none
  Heartbeat::Clock::duration after{};  // from the first look to that hang
  std::optional<std::uint64_t> ping;   // the number of the last ping that a look asked for
};
// Looks at the heartbeat from `from` to `end`, as often as the daemon looks, but stops at the first hang.
Looked look_until(Heartbeat& heartbeat, Heartbeat::Clock::time_point from,
                  Heartbeat::Clock::time_point end, Phase phase,
                  std::optional<std::uint64_t> beat) {
  Looked looked;
  for (auto now = from; now <= end; now += Heartbeat::next_look(phase, kTimeout)) {
    const Heartbeat::Verdict verdict = heartbeat.look(now, phase, beat, true, kTimeout);
    if (verdict.ping) looked.ping = verdict.ping;
    if (verdict.hang.empty()) continue;
    looked.hang = verdict.hang;
    looked.after = now - from;
    break;
  }
  return looked;
}

TEST(Heartbeat, ABusyOneLivesAsLongAsItsStepsAreCounted) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  for (std::uint64_t step = 0; step < 10; ++step) {
    const auto now = kStart + step * 900ms;
    EXPECT_EQ(look_until(heartbeat, now, now + 900ms, Phase::kBusy, step).hang, "");
  }
  // If there is a step counter, answers to pings prove nothing.
  const auto last = kStart + 8100ms;
  heartbeat.answered(0, last + 900ms);
  const Looked looked = look_until(heartbeat, last + 900ms, last + 2s, Phase::kBusy, 9);
  EXPECT_EQ(looked.hang, "hang: no progress for 1000 ms");
  EXPECT_LE(looked.after, 150ms);
}

TEST(Heartbeat, WithoutACounterAnAnswerIsASignOfLife) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  const Looked first = look_until(heartbeat, kStart, kStart + 600ms, Phase::kBusy, std::nullopt);
  ASSERT_TRUE(first.ping.has_value());
  EXPECT_EQ(first.hang, "");
  heartbeat.answered(*first.ping, kStart + 600ms);
  EXPECT_EQ(look_until(heartbeat, kStart + 600ms, kStart + 1500ms, Phase::kBusy, std::nullopt).hang,
            "");
  EXPECT_NE(look_until(heartbeat, kStart + 1500ms, kStart + 2s, Phase::kBusy, std::nullopt).hang,
            "");
}

TEST(Heartbeat, AnIdleOneIsAskedAndHasToAnswer) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  const Looked asked = look_until(heartbeat, kStart, kStart + 1s, Phase::kIdle, 5);
  ASSERT_TRUE(asked.ping.has_value());
  EXPECT_FALSE(heartbeat.waits_for_answer(kStart + 400ms));
  EXPECT_TRUE(heartbeat.waits_for_answer(kStart + 1100ms));
  heartbeat.answered(*asked.ping, kStart + 1100ms);
  EXPECT_FALSE(heartbeat.waits_for_answer(kStart + 1h));
  const Looked again = look_until(heartbeat, kStart + 2s, kStart + 10s, Phase::kIdle, 5);
  EXPECT_EQ(again.hang, "hang: idle, and no answer for 1000 ms");
  EXPECT_LE(again.after, 3s);
}

TEST(Heartbeat, ALoadingOneHasTenTimesThePatience) {
  Heartbeat heartbeat;
  heartbeat.begin(kStart);
  const Looked looked = look_until(heartbeat, kStart, kStart + 20s, Phase::kLoading, std::nullopt);
  EXPECT_EQ(looked.hang, "hang: no progress for 10000 ms while loading");
  EXPECT_GT(looked.after, 10s);
}

TEST(Heartbeat, WaitsLongerOnRequestButNotForEver) {
  Heartbeat heartbeat;
  auto now = kStart;
  heartbeat.begin(now);
  for (const bool sign : {true, false}) {
    for (int i = 0; i < Heartbeat::kMostWaits; ++i) {
      const Looked looked = look_until(heartbeat, now, now + 10s, Phase::kBusy, std::nullopt);
      EXPECT_NE(looked.hang, "");
      EXPECT_GE(looked.after, kTimeout);
      now += looked.after;
      EXPECT_TRUE(heartbeat.wait_longer(now));
    }
    if (sign) heartbeat.sign_of_life(now);
  }
  EXPECT_FALSE(heartbeat.wait_longer(now));
  EXPECT_NE(look_until(heartbeat, now, now + 2s, Phase::kBusy, std::nullopt).hang, "");
}

TEST(Activity, OfAProcessThatGetsNoCpuIsNoHang) {
  const Activity before{.state = 'R', .computed = 10ms, .starved = 3000ms, .at = kStart};
  const auto after = [&](std::chrono::milliseconds starved) {
    return Activity{.state = 'S', .computed = 20ms, .starved = 3000ms + starved, .at = kStart + 1s};
  };
  EXPECT_FALSE(Activity::was_starved(before, after(0ms)));
  EXPECT_FALSE(Activity::was_starved(before, after(400ms)));
  EXPECT_TRUE(Activity::was_starved(before, after(500ms)));
  EXPECT_TRUE(Activity::was_starved(before, after(4000ms)));  // of several threads
}

TEST(Heartbeat, TheDaemonsOwnAbsenceIsNobodysHang) {
  for (const Phase phase : {Phase::kBusy, Phase::kIdle, Phase::kLoading}) {
    Heartbeat heartbeat;
    heartbeat.begin(kStart);
    EXPECT_EQ(heartbeat.look(kStart + 25ms, phase, std::nullopt, true, kTimeout).hang, "");
    EXPECT_EQ(heartbeat.look(kStart + 1h, phase, std::nullopt, true, kTimeout).hang, "");
    // But a worker that is silent after it is hung.
    EXPECT_NE(look_until(heartbeat, kStart + 1h, kStart + 2h, phase, std::nullopt).hang, "");
  }
}

Death of_signal(int signal) {
  return {.cause = DeathCause::kSignal, .words = "killed", .signal = signal};
}

TEST(Blame, FirstDeathIsNoneAndEachFurtherOfTheSameKindIsAStrike) {
  Blame blame;
  EXPECT_FALSE(blame.suspect());
  EXPECT_EQ(blame.strikes(), 0U);
  for (std::uint32_t strikes = 0; strikes < 4; ++strikes) {
    blame.died(of_signal(SIGSEGV));
    EXPECT_TRUE(blame.suspect());
    EXPECT_EQ(blame.strikes(), strikes);
    EXPECT_EQ(blame.deaths(), strikes + 1);
  }
  blame.progressed();
  EXPECT_FALSE(blame.suspect());
  EXPECT_EQ(blame.strikes() + blame.deaths(), 0U);
}

TEST(Blame, DeathsOfManyKindsAreABadHourAndNoRequestsDoing) {
  Blame blame;
  for (int round = 0; round < 2; ++round) {
    for (const DeathCause cause : {DeathCause::kExit, DeathCause::kDeviceLost, DeathCause::kHang,
                                   DeathCause::kProtocolViolation, DeathCause::kOutOfMemory})
      blame.died({.cause = cause, .words = "?"});
    blame.died(of_signal(SIGSEGV));
    blame.died(of_signal(SIGABRT));
    EXPECT_EQ(blame.strikes(), static_cast<std::uint32_t>(round));
  }
  EXPECT_EQ(blame.deaths(), 14U);
}

TEST(Blame, OfDeathsFromOutsideFourCountAsOne) {
  Blame blame;
  Death killed = of_signal(SIGKILL);
  killed.from_outside = true;
  Death stopped{.cause = DeathCause::kHang, .words = "hang", .from_outside = true};
  for (int i = 0; i < 7; ++i)
    blame.died(i % 2 == 0 ? killed : stopped);
  EXPECT_FALSE(blame.suspect());
  EXPECT_EQ(blame.strikes(), 0U);
  blame.died(killed);
  EXPECT_EQ(blame.strikes(), 1U);
  EXPECT_EQ(blame.deaths(), 8U);
}

TEST(RestartPolicy, WaitsLongerAndLongerUntilAToken) {
  RestartPolicy policy;
  std::vector<std::int64_t> delays;
  for (int death = 0; death < 10; ++death) {
    policy.died(of_signal(SIGSEGV), true, 0s);
    delays.push_back(policy.delay().count());
  }
  EXPECT_EQ(delays,
            (std::vector<std::int64_t>{0, 250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000}));
  policy.reset();
  policy.died(of_signal(SIGSEGV), true, 0s);
  EXPECT_EQ(policy.delay(), 0ms);
}

Death from_outside(int signal) {
  if (signal == SIGSTOP) return {.cause = DeathCause::kHang, .words = "hang", .from_outside = true};
  Death death = of_signal(signal);
  death.from_outside = true;
  return death;
}

std::vector<std::int64_t> delays_of(const std::vector<Death>& deaths) {
  RestartPolicy policy;
  std::vector<std::int64_t> delays;
  for (const Death& death : deaths) {
    policy.died(death, false, 0s);
    delays.push_back(policy.delay().count());
  }
  return delays;
}

TEST(RestartPolicy, KillsFromOutsideHardlyKeepAnybodyWaiting) {
  std::vector<Death> kills;
  for (int i = 0; i < 16; ++i)
    kills.push_back(from_outside(i % 3 == 0 ? SIGSTOP : SIGKILL));
  EXPECT_EQ(delays_of(kills), (std::vector<std::int64_t>{0, 0, 0, 0, 0, 0, 0, 250, 250, 250, 250,
                                                         500, 500, 500, 500, 1000}));
}

TEST(RestartPolicy, KillsFromOutsideHideNoDeathLoopOfItsOwn) {
  std::vector<Death> deaths;
  for (int i = 0; i < 10; ++i)
    deaths.push_back(i % 2 == 0 ? of_signal(SIGSEGV) : from_outside(SIGKILL));
  EXPECT_EQ(delays_of(deaths),
            (std::vector<std::int64_t>{0, 0, 250, 250, 500, 500, 1000, 1000, 2000, 2000}));
}

// The worker dies by its own fault, each time in another way; that is a loop, too.
TEST(RestartPolicy, DeathsOfManyKindsThatComeSoonKeepNoMachineBusy) {
  std::vector<Death> deaths;
  for (int signal = 1; signal <= 12; ++signal)
    deaths.push_back(of_signal(signal));
  EXPECT_EQ(delays_of(deaths), (std::vector<std::int64_t>{0, 0, 0, 250, 500, 1000, 2000, 2000, 2000,
                                                          2000, 2000, 2000}));
}

// Kills of all kinds, and from outside, each before a token: the waits are shorter than those for a loop of one kind.
TEST(RestartPolicy, ABadHourCostsTwoSecondsAtATimeAndNoWorker) {
  RestartPolicy policy;
  for (int i = 0; i < 7; ++i) {
    for (const Death& death : {of_signal(SIGSEGV), from_outside(SIGKILL), of_signal(SIGABRT),
                               from_outside(SIGSTOP), Death{DeathCause::kDeviceLost, "?"}}) {
      policy.died(death, false, 100ms);
      if (i < 5) {
        EXPECT_LE(policy.delay(), 2s);
      }
    }
    EXPECT_FALSE(policy.spent(8));
  }
}

TEST(RestartPolicy, OneThatHeldOutForAWhileIsInNoLoop) {
  RestartPolicy policy;
  for (int signal = 1; signal <= 12; ++signal) {
    policy.died(of_signal(signal), false, RestartPolicy::kSoon);
    EXPECT_EQ(policy.delay(), 0ms) << signal;
  }
  policy.reset();
  for (int signal = 1; signal <= 12; ++signal) {
    policy.died(of_signal(signal), false, 0s);
    policy.reset();  // a token
  }
  policy.died(of_signal(SIGSEGV), false, 0s);
  EXPECT_EQ(policy.delay(), 0ms);
}

TEST(RestartPolicy, DeathsOfManyKindsAreNoReasonToGiveUp) {
  RestartPolicy policy;
  const Death killed = from_outside(SIGKILL);
  for (int round = 0; round < 2; ++round) {
    for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGILL})
      policy.died(of_signal(signal), false, 0s);
    policy.died({.cause = DeathCause::kFailedStart, .words = "?"}, false, 0s);
    for (int i = 0; i < 4; ++i)
      policy.died(killed, false, 0s);
    EXPECT_FALSE(policy.spent(3));
  }
  policy.died(of_signal(SIGSEGV), false, 0s);
  EXPECT_TRUE(policy.spent(3));
}

TEST(RestartPolicy, OnlyDeathsThatNoRequestExplainsCountAgainstTheBudget) {
  RestartPolicy policy;
  for (int death = 0; death < 100; ++death)
    policy.died(of_signal(SIGSEGV), true, 0s);
  EXPECT_FALSE(policy.spent(3));
  policy.died(of_signal(SIGSEGV), false, 0s);
  policy.died(of_signal(SIGSEGV), false, 1s);
  EXPECT_FALSE(policy.spent(3));
  policy.died(of_signal(SIGSEGV), false, 1s);
  EXPECT_TRUE(policy.spent(3));
  policy.reset();
  EXPECT_FALSE(policy.spent(3));
}

TEST(RestartPolicy, AMinuteOfServingIsANewBeginning) {
  RestartPolicy policy;
  for (int day = 0; day < 100; ++day)
    policy.died(of_signal(SIGSEGV), false, 24h);
  EXPECT_FALSE(policy.spent(2));
  EXPECT_EQ(policy.delay(), 0ms);
}

// ---- descriptors that take for ever to close ----

std::atomic<bool> stuck = true;

void close_when_allowed(UniqueFd fd) {
  stuck.wait(true);
  fd.reset();
}

struct NoEvents : ProcessEvents {
  void process_changed(WorkerProcess&) override {}
  Status process_tokens(const ipc::SequenceTokensView&) override { return {}; }
  Status process_answer(ipc::FromWorker&&) override { return {}; }
  void process_offered(WorkerProcess&) override {}
  void process_dying(WorkerProcess&) override {}
  void process_lost(WorkerProcess&, const Death&) override {}
  void process_stopped(WorkerProcess&) override {}
  void process_stuck(WorkerProcess&, const Death&) override {}
  void process_ended(WorkerProcess&, const Death&) override {}
};

// All workers share the daemon's descriptor table. If a worker's processes have left too many descriptors in it, the
// worker gets no further process that could leave more.
TEST(Successor, WaitsUntilWhatItsPredecessorsSentIsClosed) {
  const auto closer = ipc::PeerCloser::make(close_when_allowed);
  Vault vault(closer);
  EventLoop loop;
  NoEvents events;
  WorkerOptions options;
  options.program = "/bin/true";
  for (std::size_t i = 0; i < ipc::PeerCloser::kMostWaiting; ++i)
    closer->close(UniqueFd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)));
  if (!closer->full()) {
    stuck = false;
    stuck.notify_all();
    GTEST_SKIP() << "this process may not have as many descriptors open";
  }
  CacheFolder cache("", "w0");
  WorkerProcess refused(loop, options, vault, cache, "w0", false, events);
  const Status status = refused.start({});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(status.error().message().find("1024 descriptors"), std::string::npos)
      << status.error().message();

  stuck = false;
  stuck.notify_all();
  for (int i = 0; i < 10000 && closer->full(); ++i)
    ::usleep(1000);
  EXPECT_FALSE(closer->full());
}

// ---- receivers that throw, because there is no memory ----

// Runs the loop until stop_soon(), but not for ever.
struct Running {
  EventLoop loop;
  Timer keep{loop};
  bool over = false;

  void stop_soon() {
    over = true;
    loop.post([this] { loop.stop(); });
  }
  bool run() {
    keep.start(60s, [this] { loop.stop(); });
    loop.run();
    keep.cancel();
    return over;
  }
};

WorkerOptions that_ends_at_once() {
  WorkerOptions options;
  options.name = "w0";
  options.program = "/bin/true";
  return options;
}

// Gives the worker's first process a request, and throws when that process has died.
struct ThrowingReceiver : WorkerEvents {
  explicit ThrowingReceiver(Running& the_running) : running(the_running) {}
  void worker_changed(Worker& worker) override {
    if (worker.state() != WorkerState::kStarting || std::exchange(submitted, true)) return;
    EXPECT_TRUE(worker.submit(RequestId{7}, ipc::Cancel{RequestId{7}}).ok());
  }
  Status worker_tokens(Worker&, const ipc::SequenceTokensView&) override { return {}; }
  Status worker_answer(Worker&, ipc::FromWorker&&) override { return {}; }
  void worker_died(Worker&, const Death&, std::vector<Orphan>) override {
    if (++deaths == 1) throw std::bad_alloc();
  }
  void worker_lost(Worker&, const Death&, std::vector<Orphan> orphans) override {
    for (const Orphan& orphan : orphans)
      given_back.push_back(orphan.request);
  }
  void standby_died(const Spare&) override {}
  void worker_failed(Worker&, const std::string&) override { running.stop_soon(); }
  Retry worker_may_retry(Worker&) override { return Retry::kNotNow; }

  Running& running;
  bool submitted = false;
  int deaths = 0;
  std::vector<RequestId> given_back;
};

TEST(Successor, ComesAndTheRequestsGoBackWhateverTheReceiverThrows) {
  Running running;
  ThrowingReceiver receiver(running);
  Worker worker(running.loop, that_ends_at_once(), receiver);
  running.loop.post([&] { worker.start(); });
  EXPECT_TRUE(running.run());
  EXPECT_EQ(receiver.deaths, 3);  // of a worker that was never ready: it is given up then
  EXPECT_EQ(receiver.given_back, std::vector{RequestId{7}});
}

TEST(Successor, OfASpareComesWhateverTheReceiverThrows) {
  for (const bool at_the_start : {true, false}) {
    Running running;
    Vault vault;
    CacheFolder cache("", "w0");
    const WorkerOptions options = that_ends_at_once();
    int starts = 0, ends = 0;
    Spare* spare = nullptr;
    const Spare::Hooks hooks{
        .changed =
            [&] {
              if (spare->state() != Spare::State::kStarting || spare->process() == nullptr) return;
              if (++starts == 1 && at_the_start) throw std::bad_alloc();
            },
        .ended =
            [&](const Spare&, const Death&) {
              if (++ends == 1 && !at_the_start) throw std::bad_alloc();
              if (ends == 2) running.stop_soon();
            },
        .left_in_kernel = [](std::unique_ptr<WorkerProcess>) {},
        .may_start = [] { return true; }};
    Spare made(running.loop, options, vault, cache, "w0.standby-0", hooks);
    spare = &made;
    running.loop.post([&] { spare->start_in(0ms); });
    EXPECT_TRUE(running.run()) << at_the_start;
    EXPECT_EQ(starts, 2) << at_the_start;
    EXPECT_EQ(ends, 2) << at_the_start;
  }
}

}  // namespace
}  // namespace bulkhead::orchestrator
