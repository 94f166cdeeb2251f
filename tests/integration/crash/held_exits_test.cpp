// Processes of the scripted worker that are dead, or will be soon, and that the kernel has not released. No request
// waits for them if another worker is there; the daemon counts them, and reaps them when they end after all.
// vault_exits_test.cpp tests what they mean for memory that outlives a worker.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/integration/watching.hpp"
#include "tests/support/held_process.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::milliseconds;

constexpr const char* kNobodyWaitsSoLong = "isolation.exit_timeout_ms=600000";
const std::map<std::string, std::string> kTwoThreads = {{"FAKE_THREAD", "1"}};

std::string log_of(const Serving& serving) {
  return serving.daemon->log();
}
bool reaped(pid_t pid) {
  return Serving::eventually([&] { return send_signal(pid, 0) != 0; });
}

// ---- two workers of one model ----

class HeldPeer : public testing::TestWithParam<const char*> {
 protected:
  void start(std::vector<std::string> settings = {}) {
    settings.insert(settings.end(),
                    {"models.0.path=builtin", "models.0.workers=2", kNobodyWaitsSoLong,
                     std::string("ipc.transport=") + GetParam()});
    serving_ = serve(std::move(settings), kTwoThreads);
    first_ = pid_in(serving_, "builtin-0", "ready");
    second_ = pid_in(serving_, "builtin-1", "ready");
    held_ = std::make_unique<HeldProcess>(first_);
  }
  // Begins `count` streams, half of them with each worker, and waits until all have begun.
  void begin(int count, const std::string& prompt = "slow") {
    for (int i = 0; i < count; ++i) {
      clients_.push_back(std::make_unique<HttpClient>(serving_.port));
      clients_.back()->send("POST", "/v1/completions", stream_of(prompt, 200).dump());
    }
    for (auto& client : clients_)
      ASSERT_EQ(client->receive_head().status, 200);
    for (const char* worker : {"builtin-0", "builtin-1"})
      ASSERT_EQ(find(serving_, worker)["outstanding_requests"], count / 2);
  }
  void all_end() {
    for (auto& client : clients_)
      expect_whole(rest_of(*client), 200);
    clients_.clear();
  }
  void new_ones_are_answered() {
    for (int i = 0; i < 4; ++i)
      expect_whole(serving_.complete(stream_of("x", 5)).body, 5);
  }
  // Expects that the first worker's process, which the test holds, is still there.
  void still_there() {
    EXPECT_EQ(send_signal(first_, 0), 0);
    const json worker = find(serving_, "builtin-0");
    EXPECT_EQ(worker["state"], "restarting");
    EXPECT_EQ(worker["pid"], first_);
    EXPECT_EQ(worker["restarts"], 0);
    EXPECT_EQ(worker["outstanding_requests"], 0);
    EXPECT_EQ(serving_.get("/health").status, 200);
  }
  void comes_back(const std::string& words) {
    held_->release();
    EXPECT_NE(pid_in(serving_, "builtin-0", "ready"), first_);
    const json worker = find(serving_, "builtin-0");
    EXPECT_EQ(worker["restarts"], 1);
    EXPECT_EQ(worker["last_death"], words);
    EXPECT_EQ(find(serving_, "builtin-1")["restarts"], 0);
  }

  Serving serving_;
  pid_t first_ = -1, second_ = -1;
  std::unique_ptr<HeldProcess> held_;
  std::vector<std::unique_ptr<HttpClient>> clients_;
};
INSTANTIATE_TEST_SUITE_P(Transport, HeldPeer, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(HeldPeer, StreamsOfAKilledOneGoOnAtThePeer) {
  start();
  if (!held_->held()) GTEST_SKIP() << kNoTracing;
  begin(6);
  send_signal(first_, SIGKILL);
  all_end();
  new_ones_are_answered();
  still_there();
  EXPECT_EQ(find(serving_, "builtin-1")["recovered_requests"], 3);
  comes_back("killed by signal 9 (SIGKILL)");
}

TEST_P(HeldPeer, StreamsOfACrashedOneGoOnAtThePeer) {
  start();
  if (!held_->held()) GTEST_SKIP() << kNoTracing;
  begin(6);
  send_signal(first_, SIGSEGV);
  all_end();
  new_ones_are_answered();
  still_there();
  comes_back("killed by signal 11 (SIGSEGV)");
}

TEST_P(HeldPeer, StreamsOfAHungOneGoOnAtThePeer) {
  start({"isolation.heartbeat_timeout_ms=500"});
  if (!held_->held()) GTEST_SKIP() << kNoTracing;
  begin(6);
  send_signal(first_, SIGSTOP);
  all_end();
  new_ones_are_answered();
  still_there();
  comes_back("hang: no progress for 500 ms");
}

// Requests without a token go to the peer, too, each in its turn. Only the request that is to blame
// fails.
TEST_P(HeldPeer, RequestsThatHaveNotBegunGoToThePeerToo) {
  start({"isolation.heartbeat_timeout_ms=500"});
  if (!held_->held()) GTEST_SKIP() << kNoTracing;
  send_signal(first_, SIGSTOP);
  for (int i = 0; i < 6; ++i) {
    clients_.push_back(std::make_unique<HttpClient>(serving_.port));
    clients_.back()->send("POST", "/v1/completions", stream_of("slow", 200).dump());
  }
  for (auto& client : clients_)
    ASSERT_EQ(client->receive_head().status, 200);
  all_end();
  new_ones_are_answered();
  still_there();
  held_->release();
  pid_in(serving_, "builtin-0", "ready");
}

TEST_P(HeldPeer, OfAOneThatBrokeARuleNothingMoreIsHeardAndItsStreamsGoOn) {
  start();
  if (!held_->held()) GTEST_SKIP() << kNoTracing;
  HttpClient liar(serving_.port);  // this goes to the first worker
  liar.send("POST", "/v1/completions", stream_of("slow gap@50", 200).dump());
  ASSERT_EQ(liar.receive_head().status, 200);
  ASSERT_EQ(find(serving_, "builtin-0")["outstanding_requests"], 1);
  expect_whole(rest_of(liar), 200);
  new_ones_are_answered();
  still_there();
  held_->release();
  pid_in(serving_, "builtin-0", "ready");
  EXPECT_EQ(find(serving_, "builtin-0")["last_death_cause"], "protocol_violation");
}

// If the model has no other worker, the requests of a dead worker wait for its successor. A death adds one strike to
// each of these requests.
TEST_P(HeldPeer, WithoutAPeerTheyWait) {
  start();
  if (!held_->held()) GTEST_SKIP() << kNoTracing;
  ASSERT_EQ(serving_.post("/v1/workers/builtin-1/drain", "").status, 202);
  HttpClient client(serving_.port), waits(serving_.port);
  client.send("POST", "/v1/completions", stream_of("slow", 200).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  send_signal(first_, SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return serving_.get("/health").status == 503; }));
  waits.send("POST", "/v1/completions", stream_of("x", 5).dump());
  ASSERT_TRUE(
      Serving::eventually([&] { return serving_.metric("bulkhead_requests_waiting") == 2; }));
  EXPECT_EQ(serving_.metric("bulkhead_requests_outstanding"), 2);
  held_->release();
  expect_whole(rest_of(client), 200);
  expect_whole(waits.receive().body, 5);
  EXPECT_EQ(find(serving_, "builtin-0")["restarts"], 1);
}

// The router does not prefer a worker that was stopped while idle, although it has the least to do.
TEST_P(HeldPeer, AnIdleOneThatDoesNotAnswerGetsNothingWhileThePeerDoes) {
  start({"isolation.heartbeat_timeout_ms=12000"});
  send_signal(first_, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(4500));  // the daemon pings it every 3 s
  new_ones_are_answered();
  send_signal(first_, SIGCONT);
  EXPECT_EQ(find(serving_, "builtin-0")["restarts"], 0) << log_of(serving_);
  EXPECT_EQ(find(serving_, "builtin-1")["restarts"], 0) << log_of(serving_);
}

// ---- spares ----

class HeldSpare : public testing::Test {
 protected:
  void start(const char* exit_timeout = "isolation.exit_timeout_ms=1000") {
    serving_ = serve({"isolation.standby=1", exit_timeout}, kTwoThreads);
  }
  pid_t spare() const {
    pid_t pid = -1;
    EXPECT_TRUE(Serving::eventually([&] {
      for (const json& each : workers(serving_)) {
        if (!each.contains("standby_of") || each["state"] != "standby") continue;
        pid = each["pid"].get<pid_t>();
      }
      return pid > 0;
    })) << workers(serving_)
        << log_of(serving_);
    return pid;
  }
  void given_up(pid_t pid) const {
    ASSERT_TRUE(Serving::eventually([&] {
      return log_of(serving_).find("process " + std::to_string(pid) +
                                   " was killed, but the kernel") != std::string::npos ||
             log_of(serving_).find("process " + std::to_string(pid) +
                                   " has ended, but the kernel") != std::string::npos;
    })) << log_of(serving_);
  }

  Serving serving_;
};

// The new settings have no spare. The daemon forgets the spare, but still reaps its process.
TEST_F(HeldSpare, IsReapedWhenItEndsAfterAll) {
  start();
  const pid_t stuck = spare();
  HeldProcess held(stuck);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  send_signal(stuck, SIGKILL);
  EXPECT_EQ(serving_.post("/v1/workers/builtin-0/restart", "").status, 202);
  given_up(stuck);
  EXPECT_NE(spare(), stuck);
  EXPECT_EQ(send_signal(stuck, 0), 0);
  held.release();
  EXPECT_TRUE(reaped(stuck)) << log_of(serving_);
  EXPECT_TRUE(Serving::eventually([&] {
    return log_of(serving_).find("process " + std::to_string(stuck) +
                                 ", for which the daemon no longer waited, has ended") !=
           std::string::npos;
  })) << log_of(serving_);
}

TEST_F(HeldSpare, ThreeOfThemAreTheLastUntilOneGoes) {
  start();
  const pid_t serves = pid_in(serving_, "builtin-0", "ready");
  std::vector<std::unique_ptr<HeldProcess>> held;
  std::vector<pid_t> stuck;
  for (int i = 0; i < 3; ++i) {
    stuck.push_back(spare());
    held.push_back(std::make_unique<HeldProcess>(stuck.back()));
    if (!held.back()->held()) GTEST_SKIP() << kNoTracing;
    send_signal(stuck.back(), SIGKILL);
    given_up(stuck.back());
  }
  ASSERT_TRUE(Serving::eventually([&] {
    return find(serving_, "builtin-0.standby-0")["state"] == "failed";
  })) << workers(serving_);
  // The process that serves is not one of them.
  expect_whole(serving_.complete(stream_of("x", 5)).body, 5);
  EXPECT_EQ(find(serving_, "builtin-0")["pid"], serves);
  // An operator can't restart such a spare either, because each held process keeps its memory.
  EXPECT_EQ(serving_.post("/v1/workers/builtin-0.standby-0/restart", "").status, 202);
  ASSERT_TRUE(Serving::eventually(
      [&] { return find(serving_, "builtin-0.standby-0")["state"] == "failed"; }));
  held[1]->release();
  EXPECT_TRUE(reaped(stuck[1]));
  spare();
  held.clear();
  EXPECT_TRUE(reaped(stuck[0]));
  EXPECT_TRUE(reaped(stuck[2]));
}

// Held spares count together with held processes that served.
TEST_F(HeldSpare, CountsAgainstItsWorkersLimit) {
  start();
  std::vector<std::unique_ptr<HeldProcess>> held;
  for (int i = 0; i < 2; ++i) {
    const pid_t stuck = spare();
    held.push_back(std::make_unique<HeldProcess>(stuck));
    if (!held.back()->held()) GTEST_SKIP() << kNoTracing;
    send_signal(stuck, SIGKILL);
    given_up(stuck);
  }
  spare();
  const pid_t serves = pid_in(serving_, "builtin-0", "ready");
  held.push_back(std::make_unique<HeldProcess>(serves));
  send_signal(serves, SIGSEGV);
  // The last spare takes over; after it no process is left.
  given_up(serves);
  ASSERT_TRUE(Serving::eventually([&] { return find(serving_, "builtin-0")["takeovers"] == 1; }))
      << workers(serving_) << log_of(serving_);
  expect_whole(serving_.complete(stream_of("x", 5)).body, 5);
  send_signal(pid_in(serving_, "builtin-0", "ready"), SIGSEGV);
  ASSERT_TRUE(Serving::eventually([&] { return find(serving_, "builtin-0")["state"] == "failed"; }))
      << workers(serving_) << log_of(serving_);
  EXPECT_EQ(serving_.complete(stream_of("x", 5)).status, 503);
  held.clear();
  EXPECT_EQ(serving_.post("/v1/workers/builtin-0/restart", "").status, 202);
  expect_whole(serving_.complete(stream_of("x", 5)).body, 5);
}

// The next settings remove the process's worker, so nothing is left that refers to the process.
TEST(HeldWorker, ThatIsTakenOutIsReapedWhenItEndsAfterAll) {
  const TemporaryFolder temporary("held");
  const std::filesystem::path& folder = temporary.path();
  const auto write = [&](int count) {
    std::ofstream(folder / "config.yaml")
        << "models:\n  - {path: builtin, workers: " << count << "}\n";
  };
  write(2);
  Daemon::Options options;
  options.arguments = {"--config", (folder / "config.yaml").string(), "--set",
                       "isolation.exit_timeout_ms=1000"};
  options.environment = kTwoThreads;
  options.environment["BULKHEAD_WORKER"] = FAKE_WORKER;
  Serving serving;
  serving.daemon = std::make_unique<Daemon>(BULKHEADD, options);
  serving.port = serving.daemon->wait_until_listening();
  ASSERT_NE(serving.port, 0) << log_of(serving);
  const pid_t stuck = pid_in(serving, "builtin-1", "ready");
  HeldProcess held(stuck);
  if (!held.held()) GTEST_SKIP() << kNoTracing;
  send_signal(stuck, SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "builtin-1")["restarts"] == 1; }));
  write(1);
  serving.daemon->signal(SIGHUP);
  ASSERT_TRUE(Serving::eventually([&] { return workers(serving).size() == 1; })) << log_of(serving);
  EXPECT_EQ(send_signal(stuck, 0), 0);
  held.release();
  EXPECT_TRUE(reaped(stuck)) << log_of(serving);
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

}  // namespace
}  // namespace bulkhead::test
