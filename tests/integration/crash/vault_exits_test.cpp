// Spares, and dead processes whose exit is not over: what a spare takes over before the exit ends, and what happens
// to a worker whose process never exits.
#include <thread>

#include "tests/integration/crash/vault_harness.hpp"
#include "tests/support/held_process.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

TEST_P(VaultTransports, ASpareSharesTheMemoryAndTakesThePagesOver) {
  start("", {"isolation.standby=1"});
  for (int i = 1; i <= 2; ++i) {
    spare_with("imported");
    kill_in_stream();
    EXPECT_EQ(way(), "standby");
    EXPECT_EQ(vault()["state"], "imported") << vault();
    EXPECT_GT(vault()["pages_adopted"], 1) << vault();
    EXPECT_EQ(vault()["drops_total"], 0) << vault();
    std::printf("%s: pause %lld ms with a spare\n", transport(), pause_ms_);
  }
  EXPECT_EQ(serving_.metric("bulkhead_worker_draws_below_accepted_total"), 0);
}

// ---- a process whose exit takes long ----

TEST_P(VaultTransports, ASpareTakesOverWhileTheKernelStillTakesTheDeadOneBack) {
  start("", {"isolation.standby=1"});
  for (int i = 1; i <= 2; ++i) {
    const json spare = spare_with("imported");
    const pid_t victim = serving_worker(serving_);
    HeldProcess held(victim);
    if (!held.held()) GTEST_SKIP() << kNoTracing;
    signal_in_stream(victim, SIGKILL);
    json worker = serving_.worker();
    EXPECT_EQ(worker["pid"], spare["pid"]) << serving_.daemon->log();
    EXPECT_EQ(worker["last_death"], "killed by signal 9 (SIGKILL)");
    EXPECT_EQ(worker["last_death_cause"], "signal");
    EXPECT_TRUE(worker["last_recovery"]["gone_ms"].is_null()) << worker["last_recovery"];
    EXPECT_GT(vault()["pages_adopted"], 1) << vault();
    EXPECT_GT(vault()["pages_withheld"], 0) << vault();
    // The spare serves with the pages that are left, and with all pages afterwards.
    EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
    held.release();
    EXPECT_TRUE(Serving::eventually(
        [&] { return serving_.worker()["last_recovery"]["gone_ms"].is_number(); }));
    EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
    EXPECT_EQ(serving_.worker()["takeovers"], i);
    EXPECT_EQ(vault()["drops_total"], 0) << vault();
  }
  EXPECT_EQ(serving_.metric("bulkhead_worker_draws_below_accepted_total"), 0);
}

// A second process dies meanwhile, and there is no spare: the successor starts when no dead process
// can write any more.
TEST_F(Vault, ADeathWhileTheOneBeforeIsTakenBackWaitsForIt) {
  start("", {"isolation.standby=1"});
  spare_with("imported");
  const pid_t first = serving_worker(serving_);
  HeldProcess held(first);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  const Timed killed = stream(serving_.port, request_, kTokens / 2, [&] {
    ASSERT_NO_FATAL_FAILURE(kill_until_a_spare_serves(first));
    const pid_t second = serving_.worker()["pid"].get<pid_t>();
    send_signal(second, SIGKILL);
    EXPECT_TRUE(Serving::eventually([&] { return serving_.worker()["pid"].is_null(); }));
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(serving_.worker()["pid"].is_null()) << serving_.worker();
      std::this_thread::sleep_for(milliseconds(20));
    }
    held.release();
  });
  EXPECT_EQ(killed.heard, undisturbed_.heard) << serving_.daemon->log();
  EXPECT_EQ(serving_.worker()["restarts"], 2);
}

// After a crash of its own, a process's last work on the device is in doubt, so a successor waits
// until that work is over.
TEST_P(VaultTransports, NobodyTakesOverFromACrashBeforeItsExit) {
  start("", {"isolation.standby=1"});
  const json spare = spare_with("imported");
  const pid_t victim = serving_worker(serving_);
  HeldProcess held(victim);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  const Timed killed = stream(serving_.port, request_, kTokens / 2, [&] {
    // A traced thread would stop at the signal; the kernel gives it to the main thread, which is
    // not traced.
    send_signal(victim, SIGSEGV);
    for (int i = 0; i < 25; ++i) {
      EXPECT_NE(serving_.worker()["pid"], spare["pid"]);
      std::this_thread::sleep_for(milliseconds(20));
    }
    held.release();
  });
  EXPECT_EQ(killed.heard, undisturbed_.heard) << serving_.daemon->log();
  EXPECT_EQ(serving_.worker()["pid"], spare["pid"]);
  EXPECT_EQ(serving_.worker()["last_death"], "killed by signal 11 (SIGSEGV)");
  EXPECT_EQ(vault()["pages_withheld"], 0) << vault();
  EXPECT_GT(vault()["pages_adopted"], 0) << vault();
}

// SIGKILL does not end a process that hangs in a driver. No other process takes over its memory on the
// device, and the daemon does not wait for it.
TEST_F(Vault, OfAProcessThatNeverEndsIsNotTakenOverAndItsStreamGoesOnBesideIt) {
  start("", {"isolation.exit_timeout_ms=1000", "isolation.heartbeat_timeout_ms=5000"});
  const pid_t victim = serving_worker(serving_);
  HeldProcess held(victim);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  const Timed killed = signal_in_stream(victim, SIGKILL);
  std::printf("%s: pause %lld ms, of which 1000 waited for the exit\n", transport(),
              static_cast<long long>(killed.longest_pause.count()));
  EXPECT_EQ(
      serving_.worker()["last_death"],
      "killed by signal 9 (SIGKILL), and the kernel has not taken the process back for 1000 ms");
  EXPECT_EQ(serving_.worker()["last_death_cause"], "signal");
  EXPECT_EQ(way(), "loaded") << vault();
  EXPECT_EQ(vault()["last_drop"], "a process that has it does not end");
  // The process beside it serves and dies as any other does.
  kill_in_stream();
  EXPECT_EQ(way(), "imported") << vault();
  held.release();
  EXPECT_TRUE(Serving::eventually([&] {
    return serving_.daemon->log().find("process " + std::to_string(victim) +
                                       ", for which the daemon no longer waited, has ended") !=
           std::string::npos;
  })) << serving_.daemon->log();
  EXPECT_NE(send_signal(victim, 0), 0) << "it is reaped, too";
  kill_in_stream();
  EXPECT_EQ(serving_.worker()["restarts"], 3);
}

// The daemon ends a process that hangs. A spare that shares its memory ends, too.
TEST_F(Vault, SparesOfAProcessThatNeverEndsAreReplaced) {
  start("", {"isolation.exit_timeout_ms=1000", "isolation.heartbeat_timeout_ms=5000",
             "isolation.standby=1"});
  const json spare = spare_with("imported");
  const pid_t victim = serving_worker(serving_);
  HeldProcess held(victim);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  signal_in_stream(victim, SIGSTOP);
  EXPECT_THAT(serving_.worker()["last_death"].get<std::string>(),
              HasSubstr("hang: no progress for 5000 ms, and the kernel has not taken"));
  EXPECT_EQ(way(), "loaded") << vault();
  EXPECT_NE(spare_with("imported")["pid"], spare["pid"]);
}

// States that layers carry may still be written to until the exit, so a spare waits for it.
TEST_F(Vault, ASpareThatWaitsForAProcessThatNeverEndsIsReplaced) {
  const std::string model = copy_of("tiny-qwen35moe-Q8_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model, {"isolation.exit_timeout_ms=1000", "isolation.standby=1"});
  spare_with("imported");
  const pid_t victim = serving_worker(serving_);
  HeldProcess held(victim);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  signal_in_stream(victim, SIGKILL);
  EXPECT_EQ(way(), "loaded") << vault();
  EXPECT_EQ(vault()["last_drop"], "a process that has it does not end");
}

// After a spare has taken over early, a second death does not wait for ever for the first exit.
TEST_F(Vault, ASecondDeathDoesNotWaitForEverForAProcessThatNeverEnds) {
  start("", {"isolation.exit_timeout_ms=1000", "isolation.standby=1"});
  spare_with("imported");
  const pid_t first = serving_worker(serving_);
  HeldProcess held(first);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  const Timed killed = stream(serving_.port, request_, kTokens / 2, [&] {
    ASSERT_NO_FATAL_FAILURE(kill_until_a_spare_serves(first));
    send_signal(serving_.worker()["pid"].get<pid_t>(), SIGKILL);
  });
  EXPECT_EQ(killed.heard, undisturbed_.heard) << serving_.daemon->log();
  EXPECT_EQ(serving_.worker()["restarts"], 2);
}

TEST_F(Vault, TheDaemonEndsBesideAProcessThatDoesNot) {
  start("", {"isolation.exit_timeout_ms=1000"});
  const pid_t victim = serving_worker(serving_);
  HeldProcess held(victim);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  send_signal(victim, SIGKILL);
  serving_.daemon->signal(SIGTERM);
  EXPECT_EQ(serving_.daemon->wait_for_exit(), 0) << serving_.daemon->log();
}

// Each successor that does not end keeps its memory, so the daemon gives up after a few.
TEST_F(Vault, IsGivenUpWithItsWorkerWhenNoneOfItsProcessesEnds) {
  start("", {"isolation.exit_timeout_ms=1000"});
  std::vector<std::unique_ptr<HeldProcess>> held;
  for (int i = 0; i < 3; ++i) {
    const pid_t victim = serving_worker(serving_);
    held.push_back(std::make_unique<HeldProcess>(victim));
    if (!held.back()->held()) GTEST_SKIP() << kNoTracing;
    send_signal(victim, SIGKILL);
    if (i == 2) break;
    ASSERT_TRUE(Serving::eventually([&] { return serving_.worker()["restarts"] == i + 1; }));
  }
  ASSERT_TRUE(Serving::eventually([&] { return serving_.worker()["state"] == "failed"; }));
  const HttpReply health = serving_.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.body, HasSubstr("has not taken the process back"));
  const HttpReply reply = serving_.complete(request_);
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "worker_failed");
  held.clear();
  restart_failed();
  EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
}

}  // namespace
}  // namespace bulkhead::test
