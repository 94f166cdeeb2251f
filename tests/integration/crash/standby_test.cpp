// Spare processes that take over from a dead worker, and workers that can't be started again.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <set>

#include "tests/integration/model_serving.hpp"
#include "tests/integration/watching.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class Standby : public testing::TestWithParam<const char*> {
 protected:
  static Serving serve_with(std::vector<std::string> settings,
                            std::map<std::string, std::string> environment = {}) {
    settings.push_back(std::string("ipc.transport=") + GetParam());
    return serve(std::move(settings), std::move(environment));
  }
};
INSTANTIATE_TEST_SUITE_P(Transport, Standby, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Standby, TakesOverWithoutLoadingAndIsReplaced) {
  const Serving serving = serve_with({"isolation.standby=1"}, {{"FAKE_LOAD_MS", "1500"}});
  const pid_t first = pid_in(serving, "builtin-0", "ready");
  const pid_t spare = pid_in(serving, "builtin-0.standby-0", "standby");
  EXPECT_NE(first, spare);
  EXPECT_EQ(find(serving, "builtin-0.standby-0")["standby_of"], "builtin-0");
  EXPECT_EQ(
      serving.metric("bulkhead_worker_state{worker=\"builtin-0.standby-0\",state=\"standby\"}"), 1);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send("POST", "/v1/completions", stream_of("slow", 150).dump());
  }
  for (auto& client : clients)
    ASSERT_EQ(client->receive_head().status, 200);
  const auto killed = steady_clock::now();
  send_signal(first, SIGKILL);
  for (auto& client : clients)
    expect_whole(rest_of(*client), 150);
  std::printf(
      "%s: 8 streams of 150 tokens over a takeover, %lld ms after the kill\n", GetParam(),
      static_cast<long long>(duration_cast<milliseconds>(steady_clock::now() - killed).count()));
  const json worker = find(serving, "builtin-0");
  EXPECT_EQ(worker["pid"], spare);
  EXPECT_EQ(worker["takeovers"], 1);
  EXPECT_EQ(worker["restarts"], 1);
  EXPECT_EQ(worker["recovered_requests"], 8);
  EXPECT_EQ(worker["last_death"], "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(worker["last_recovery"]["way"], "standby");
  EXPECT_EQ(serving.metric("bulkhead_worker_takeovers_total{worker=\"builtin-0\"}"), 1);
  // The spare gets a successor of its own, and so on.
  for (int i = 2; i < 4; ++i) {
    spare_stands_by(serving, "builtin-0");
    send_signal(pid_in(serving, "builtin-0", "ready"), SIGKILL);
    expect_whole(serving.complete(stream_of("x", 5)).body, 5);
    EXPECT_EQ(find(serving, "builtin-0")["takeovers"], i);
  }
}

TEST_P(Standby, DeathOfASpareCostsNobodyAnything) {
  const Serving serving = serve_with({"isolation.standby=2"});
  const pid_t first = pid_in(serving, "builtin-0", "ready");
  pid_in(serving, "builtin-0.standby-1", "standby");
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_of("slow", 300).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  send_signal(pid_in(serving, "builtin-0.standby-0", "standby"), SIGKILL);
  ASSERT_TRUE(
      Serving::eventually([&] { return find(serving, "builtin-0.standby-0")["restarts"] == 1; }));
  pid_in(serving, "builtin-0.standby-0", "standby");
  expect_whole(rest_of(client), 300);
  EXPECT_EQ(find(serving, "builtin-0.standby-0")["last_death"], "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(find(serving, "builtin-0")["pid"], first);
  EXPECT_EQ(find(serving, "builtin-0")["restarts"], 0);
  EXPECT_EQ(serving.metric("bulkhead_worker_deaths_total{cause=\"signal\",worker=\"builtin-0."
                           "standby-0\"}"),
            1);
}

TEST_P(Standby, AHungSpareIsReplacedBeforeItIsNeeded) {
  const Serving serving = serve_with({"isolation.standby=1", "isolation.heartbeat_timeout_ms=500"});
  const pid_t spare = pid_in(serving, "builtin-0.standby-0", "standby");
  send_signal(spare, SIGSTOP);
  ASSERT_TRUE(
      Serving::eventually([&] { return find(serving, "builtin-0.standby-0")["restarts"] == 1; }));
  EXPECT_EQ(find(serving, "builtin-0.standby-0")["last_death"],
            "hang: idle, and no answer for 500 ms");
  EXPECT_NE(pid_in(serving, "builtin-0.standby-0", "standby"), spare);
  expect_whole(serving.complete(stream_of("x", 5)).body, 5);
}

TEST_P(Standby, DeathBeforeASpareIsLoadedIsAnOrdinaryRestart) {
  const Serving serving = serve_with({"isolation.standby=1"}, {{"FAKE_LOAD_MS", "700"}});
  const pid_t first = pid_in(serving, "builtin-0", "ready");
  send_signal(first, SIGKILL);  // the spare is still loading
  expect_whole(serving.complete(stream_of("x", 5)).body, 5);
  EXPECT_EQ(find(serving, "builtin-0")["restarts"], 1);
}

TEST(StandbyActions, OnlyTheSparesThatAreWantedStandBy) {
  const Serving serving = serve({"isolation.standby=1"});
  const pid_t spare = pid_in(serving, "builtin-0.standby-0", "standby");
  EXPECT_EQ(serving.post("/v1/workers/builtin-0.standby-0/drain", "").status, 409);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0.standby-0/restart", "").status, 202);
  ASSERT_TRUE(Serving::eventually([&] {
    const json now = find(serving, "builtin-0.standby-0");
    return now["state"] == "standby" && now["pid"] != spare;
  }));
  // A restart by request asks for a fresh start, so no spare takes over, and the spare is replaced, too.
  const pid_t second = pid_in(serving, "builtin-0.standby-0", "standby");
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", "").status, 202);
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "builtin-0")["restarts"] == 1; }));
  EXPECT_EQ(find(serving, "builtin-0")["takeovers"], 0);
  EXPECT_NE(pid_in(serving, "builtin-0", "ready"), second);
  ASSERT_TRUE(Serving::eventually([&] {
    std::set<std::string> spares;
    pid_t now = second;
    for (const json& each : workers(serving)) {
      if (!each.contains("standby_of") || each["state"] != "standby") continue;
      spares.insert(each["name"]);
      now = each["pid"].get<pid_t>();
    }
    return spares.size() == 1 && now != second;
  }));
  // The spares end with the daemon.
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

// ---- workers that can't be started again ----

TEST(CrashBudget, ABrokenModelFileEndsInFailedAndIsMendedByHand) {
  const TemporaryFolder temporary("broken");
  const std::filesystem::path& folder = temporary.path();
  const std::filesystem::path model = folder / "model.gguf";
  const std::filesystem::path original = std::filesystem::path(BUILTIN_MODEL);
  std::filesystem::copy_file(original, model);
  const Serving serving = serve_model(model.string(), {"isolation.crash_budget=3"});
  const json request = {{"prompt", "Once upon a time"}, {"max_tokens", 8}, {"temperature", 0}};
  const HttpReply before = serving.complete(request);
  ASSERT_EQ(before.status, 200) << before.body;

  // A stream runs, and other requests wait, when it becomes clear that no successor will come.
  HttpClient stream(serving.port);
  stream.send(
      "POST", "/v1/completions",
      json({{"prompt", "Once"}, {"max_tokens", 2000}, {"ignore_eos", true}, {"stream", true}})
          .dump());
  ASSERT_EQ(stream.receive_head().status, 200);
  stream.receive_chunk();
  const std::string name = serving.worker()["name"];
  std::filesystem::resize_file(model, 1000);
  send_signal(pid_in(serving, name, "ready"), SIGKILL);
  const HttpReply waited = serving.complete(request);
  EXPECT_EQ(waited.status, 503) << waited.body;
  const json error = json::parse(waited.body)["error"];
  EXPECT_EQ(error["code"], "worker_failed");
  EXPECT_NE(error["message"].get<std::string>().find(model.string()), std::string::npos) << error;
  EXPECT_FALSE(HttpReply(waited).headers["retry-after"].empty());
  const Events broken = events_of(rest_of(stream));
  EXPECT_FALSE(broken.done);
  ASSERT_FALSE(broken.chunks.empty());
  EXPECT_EQ(broken.chunks.back()["error"]["code"], "worker_failed");

  const json worker = serving.worker();
  EXPECT_EQ(worker["state"], "failed");
  EXPECT_EQ(worker["last_death_cause"], "failed_start");
  const HttpReply health = serving.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json::parse(health.body)["status"], "failed");
  EXPECT_NE(health.body.find(model.string()), std::string::npos) << health.body;
  EXPECT_EQ(serving.complete(request).status, 503);  // the request fails at once, and the daemon continues

  std::filesystem::copy_file(original, model, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(serving.post("/v1/workers/" + name + "/restart", "").status, 202);
  const HttpReply after = serving.complete(request);
  EXPECT_EQ(after.status, 200) << after.body;
  EXPECT_EQ(json::parse(after.body)["choices"], json::parse(before.body)["choices"]);
  EXPECT_EQ(serving.get("/health").status, 200);
}

TEST(CrashBudget, SparesAreGivenUpWithTheirWorker) {
  const Serving serving = serve({"isolation.standby=1", "isolation.crash_budget=3"});
  for (int death = 1; death <= 3; ++death) {
    spare_stands_by(serving, "builtin-0");
    send_signal(pid_in(serving, "builtin-0", "ready"), SIGSEGV);
    if (death == 3) break;
    ASSERT_TRUE(
        Serving::eventually([&] { return find(serving, "builtin-0")["takeovers"] == death; }));
  }
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "builtin-0")["state"] == "failed"; }));
  ASSERT_TRUE(Serving::eventually([&] { return workers(serving).size() == 1; }));
  EXPECT_EQ(find(serving, "builtin-0")["state"], "failed") << "a spare has revived it";
  EXPECT_EQ(find(serving, "builtin-0")["takeovers"], 2);
  EXPECT_EQ(serving.complete(stream_of("x", 5)).status, 503);
  // When an operator restarts the worker, it comes back, and so do its spares.
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", "").status, 202);
  pid_in(serving, "builtin-0", "ready");
  EXPECT_TRUE(Serving::eventually([&] {  // the new spare has another name while the last one is still ending
    return std::ranges::any_of(workers(serving),
                               [](const json& worker) { return worker["state"] == "standby"; });
  })) << workers(serving);
  expect_whole(serving.complete(stream_of("x", 5)).body, 5);
}

TEST(CrashBudget, APeerGoesOnServing) {
  char counter[] = "/tmp/bulkhead-count-XXXXXX";
  UniqueFd file(::mkstemp(counter));
  // Two starts succeed; all later processes die while they load.
  const Serving serving =
      serve({"models.0.path=builtin", "models.0.workers=2", "isolation.crash_budget=2"},
            {{"FAKE_COUNTER_FILE", counter}, {"FAKE_DIE_AFTER", "2"}});
  pid_in(serving, "builtin-1", "ready");
  send_signal(pid_in(serving, "builtin-0", "ready"), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "builtin-0")["state"] == "failed"; }));
  expect_whole(serving.complete(stream_of("x", 5)).body, 5);
  EXPECT_EQ(serving.get("/health").status, 200);
  send_signal(pid_in(serving, "builtin-1", "ready"), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "builtin-1")["state"] == "failed"; }));
  EXPECT_EQ(serving.complete({{"prompt", "x"}}).status, 503);
  ::unlink(counter);
}

}  // namespace
}  // namespace bulkhead::test
