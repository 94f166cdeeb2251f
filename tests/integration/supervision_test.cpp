// Workers that die, hang, lie or never start, and what the clients notice.
#include "tests/integration/serving.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

TEST(KilledWorker, StreamContinuesWithSameTokens) {
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    Serving serving = serve({transport});
    HttpClient client(serving.port);
    client.send("POST", "/v1/completions", stream_with_ids("slow", 200).dump());
    ASSERT_EQ(client.receive_head().status, 200);
    std::string body;
    for (int i = 0; i < 20; ++i)
      body += *client.receive_chunk();
    int pid = serving.worker()["pid"];
    send_signal(pid, SIGKILL);
    while (auto chunk = client.receive_chunk()) {
      if (chunk->empty()) break;
      body += *chunk;
    }
    expect_whole_with_ids(body, 200);
    json worker = serving.worker();
    EXPECT_NE(worker["pid"], pid);
    EXPECT_EQ(worker["state"], "ready");
    EXPECT_EQ(worker["restarts"], 1);
    EXPECT_EQ(worker["recovered_requests"], 1);
    EXPECT_EQ(worker["last_death"], "killed by signal 9 (SIGKILL)");
  }
}

TEST(KilledWorker, NonStreamingAnswerIsWholeToo) {
  Serving serving = serve();
  json body = json::parse(serving
                              .complete({{"prompt", "kill@5 kill@9"},
                                         {"max_tokens", 30},
                                         {"seed", 9},
                                         {"return_token_ids", true},
                                         {"logprobs", 0}})
                              .body);
  EXPECT_EQ(body["choices"][0]["text"], expected_text(9, 30));
  EXPECT_EQ(body["choices"][0]["token_ids"], json(expected_ids(30)));
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 30U);
  EXPECT_EQ(serving.worker()["restarts"], 2);
}

TEST(KilledWorker, IdleOneIsReplacedForTheNextRequest) {
  Serving serving = serve();
  pid_t daemon = serving.daemon->pid();
  for (int i = 0; i < 3; ++i) {
    send_signal(serving.worker()["pid"].get<int>(), SIGKILL);
    HttpReply reply = serving.complete({{"prompt", "x"}, {"max_tokens", 2}, {"seed", 1}});
    // The daemon may not have noticed the kill yet. Then the request went to the dying worker, and later to its
    // successor.
    ASSERT_EQ(reply.status, 200) << reply.body;
  }
  EXPECT_EQ(send_signal(daemon, 0), 0);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 3; }));
}

TEST(KilledWorker, ManyStreamsGoOn) {
  Serving serving = serve();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send("POST", "/v1/completions",
                         stream_with_ids(i == 7 ? "slow kill@30 kill@60" : "slow", 100).dump());
  }
  for (auto& client : clients)
    expect_whole_with_ids(client->receive().body, 100);
  EXPECT_EQ(serving.worker()["restarts"], 2);
}

TEST(DyingWorker, CausesAreDescribedInWords) {
  struct Case {
    const char* order;
    const char* cause;
  };
  for (const Case& each :
       {Case{"exit@3", "exited with code 3"},
        Case{"gap@3", "protocol violation: tokens of request"},
        Case{"garbage@3", "protocol violation"}, Case{"cached@900", "protocol violation"},
        Case{"hang@3", "hang: no progress for 300 ms"}}) {
    Serving serving = serve({"isolation.heartbeat_timeout_ms=300"});
    HttpReply reply = serving.complete(stream_with_ids(each.order, 10));
    ASSERT_EQ(reply.status, 200) << each.order;
    expect_whole_with_ids(reply.body, 10);
    std::string cause = serving.worker()["last_death"];
    EXPECT_TRUE(cause.starts_with(each.cause)) << cause;
  }
}

TEST(DyingWorker, SilenceOverStdioIsAHangToo) {
  Serving serving = serve({"isolation.heartbeat_timeout_ms=300", "ipc.transport=stdio"});
  expect_whole_with_ids(serving.complete(stream_with_ids("hang@3", 10)).body, 10);
  EXPECT_TRUE(serving.worker()["last_death"].get<std::string>().starts_with("hang"));
}

TEST(PoisonedRequest, FailsAloneAfterThreeTries) {
  Serving serving = serve();
  HttpClient neighbour(serving.port);
  neighbour.send("POST", "/v1/completions", stream_with_ids("slow", 300).dump());
  ASSERT_EQ(neighbour.receive_head().status, 200);
  // Other requests still wait for their first token when the poisonous one kills the worker.
  std::vector<std::unique_ptr<HttpClient>> others;
  HttpClient poisoned(serving.port);
  poisoned.send("POST", "/v1/completions", json({{"prompt", "poison"}}).dump());
  for (int i = 0; i < 8; ++i) {
    others.push_back(std::make_unique<HttpClient>(serving.port));
    others.back()->send("POST", "/v1/completions", stream_with_ids("slow", 20).dump());
  }
  HttpReply reply = poisoned.receive();
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "worker_crashed");
  EXPECT_NE(reply.body.find("3 tries"), std::string::npos) << reply.body;
  for (auto& other : others)
    expect_whole_with_ids(other->receive().body, 20);
  std::string body;
  while (auto chunk = neighbour.receive_chunk()) {
    if (chunk->empty()) break;
    body += *chunk;
  }
  expect_whole_with_ids(body, 300);
  EXPECT_EQ(serving.worker()["restarts"], 3);
}

TEST(Successor, WithOtherNumericsDoesNotGoOnSilently) {
  Serving serving = serve({}, {{"FAKE_NUMERICS_BY_PID", "1"}});
  HttpReply reply = serving.complete(stream_with_ids("kill@5", 10));
  Events events = events_of(reply.body);
  EXPECT_FALSE(events.done);
  EXPECT_EQ(events.chunks.back()["error"]["code"], "worker_crashed");
}

TEST(Loading, FatalErrorEndsTheDaemonWithItsReason) {
  Daemon daemon(
      BULKHEADD,
      {{}, {{"BULKHEAD_WORKER", FAKE_WORKER}, {"FAKE_FATAL", "model.gguf: truncated at byte 12"}}});
  EXPECT_EQ(daemon.wait_for_exit(), 1);
  EXPECT_TRUE(daemon.says("model.gguf: truncated at byte 12")) << daemon.log();
  EXPECT_EQ(daemon.output(), "");
}

TEST(Loading, MissingWorkerProgramAndWrongProtocolAreReported) {
  Daemon missing(BULKHEADD, {{}, {{"BULKHEAD_WORKER", "/nowhere/bulkhead-worker"}}});
  EXPECT_EQ(missing.wait_for_exit(), 1);
  EXPECT_NE(missing.log().find("/nowhere/bulkhead-worker"), std::string::npos) << missing.log();
  Daemon wrong(BULKHEADD, {{}, {{"BULKHEAD_WORKER", FAKE_WORKER}, {"FAKE_PROTOCOL", "1"}}});
  EXPECT_EQ(wrong.wait_for_exit(), 1);
  EXPECT_NE(wrong.log().find("protocol 99"), std::string::npos) << wrong.log();
}

TEST(Loading, AWorkerThatCrashesForMatrixUnitsServesWithout) {
  const Serving serving = serve({"isolation.standby=1"}, {{"FAKE_CRASH_WITH_UNITS", "1"}});
  EXPECT_TRUE(serving.daemon->says("engine.matrix_units=off")) << serving.daemon->log();
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 5}}).status, 200);
  // The same holds for its spare and its successor.
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.get("/v1/workers").body.find("\"state\":\"standby\"") != std::string::npos;
  })) << serving.get("/v1/workers").body;
  send_signal(serving.worker()["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 5}}).status, 200);
}

TEST(Loading, ACrashForMatrixUnitsEndsTheDaemonWithoutFallback) {
  Daemon daemon(BULKHEADD, {{"--set", "gpu_optimizations.graceful_fallback=false"},
                            {{"BULKHEAD_WORKER", FAKE_WORKER}, {"FAKE_CRASH_WITH_UNITS", "1"}}});
  EXPECT_EQ(daemon.wait_for_exit(), 1);
  EXPECT_TRUE(daemon.says("can't serve model")) << daemon.log();
}

TEST(Loading, OneCrashIsTriedAgainAndThreeEndTheDaemon) {
  char counter[] = "/tmp/bulkhead-count-XXXXXX";
  UniqueFd file(::mkstemp(counter));
  Serving serving = serve({}, {{"FAKE_COUNTER_FILE", counter}, {"FAKE_DIE_FIRST", "2"}});
  EXPECT_EQ(serving.worker()["last_death"], "failed start: exited with code 7");
  EXPECT_EQ(serving.worker()["restarts"], 2);
  Daemon daemon(BULKHEADD, {{},
                            {{"BULKHEAD_WORKER", FAKE_WORKER},
                             {"FAKE_COUNTER_FILE", counter},
                             {"FAKE_DIE_FIRST", "99"}}});
  EXPECT_EQ(daemon.wait_for_exit(), 1);
  ::unlink(counter);
}

TEST(Loading, HealthShowsProgressAndRequestsGet503) {
  // The line with the port comes only when the model is loaded.
  const std::uint16_t port = free_port();
  Daemon daemon(BULKHEADD, {{"--set", "server.port=" + std::to_string(port)},
                            {{"BULKHEAD_WORKER", FAKE_WORKER}, {"FAKE_LOAD_MS", "2000"}}});
  ASSERT_TRUE(Serving::eventually([&] { return HttpClient(port).connected(); }));
  ASSERT_TRUE(Serving::eventually([&] {
    HttpReply reply = HttpClient(port).request("GET", "/health");
    return reply.status == 503 && reply.body.find("reading weights") != std::string::npos;
  }));
  HttpReply reply = HttpClient(port).request("POST", "/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(reply.status, 503);
  EXPECT_FALSE(reply.headers["retry-after"].empty());
  EXPECT_EQ(daemon.wait_until_listening(), port);
  EXPECT_EQ(HttpClient(port).request("GET", "/health").status, 200);
  EXPECT_TRUE(daemon.says("reading weights"));
}

TEST(WorkerActions, RestartLosesNothing) {
  Serving serving = serve();
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_with_ids("slow", 100).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  int pid = serving.worker()["pid"];
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", "").status, 202);
  EXPECT_EQ(serving.worker()["state"], "draining");
  // A request that comes while the worker drains is served by the successor.
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 2}}).status, 200);
  std::string body;
  while (auto chunk = client.receive_chunk()) {
    if (chunk->empty()) break;
    body += *chunk;
  }
  expect_whole_with_ids(body, 100);
  json worker = serving.worker();
  EXPECT_NE(worker["pid"], pid);
  EXPECT_EQ(worker["restarts"], 1);
  EXPECT_TRUE(worker["last_death"].is_null()) << worker["last_death"];
}

TEST(WorkerActions, DrainedWorkerTakesNothingUntilRestarted) {
  Serving serving = serve();
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  EXPECT_EQ(serving.worker()["state"], "drained");
  const HttpReply health = serving.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json::parse(health.body)["status"], "drained") << health.body;
  EXPECT_EQ(serving.complete({{"prompt", "x"}}).status, 503);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", "").status, 202);
  // From here on requests wait for the successor.
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  EXPECT_EQ(serving.worker()["state"], "ready");
  // The worker ended because it was told to, so this is not a death.
  for (const char* cause : {"signal", "exit", "hang", "failed_start"})
    EXPECT_EQ(serving.metric("bulkhead_worker_deaths_total{cause=\"" + std::string(cause) +
                             "\",worker=\"builtin-0\"}"),
              0)
        << cause;
  EXPECT_EQ(serving.post("/v1/workers/nobody/restart", "").status, 404);
}

TEST(WorkerActions, ADrainedWorkerStaysDrainedWhenItsProcessDies) {
  Serving serving = serve();
  const auto state = [&] { return serving.worker()["state"]; };
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  ASSERT_TRUE(Serving::eventually([&] { return state() == "drained"; }));
  send_signal(serving.worker()["pid"].get<int>(), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["last_death"].is_string(); }));
  EXPECT_EQ(state(), "drained");
  EXPECT_TRUE(serving.worker()["last_recovery"].is_null()) << serving.worker()["last_recovery"];
  EXPECT_EQ(serving.complete({{"prompt", "x"}}).status, 503);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", "").status, 202);
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  EXPECT_EQ(state(), "ready");
  EXPECT_TRUE(serving.worker()["last_recovery"].is_null()) << serving.worker()["last_recovery"];
  // Its next death is recovered from, and the times are those of this death.
  send_signal(serving.worker()["pid"].get<int>(), SIGKILL);
  ASSERT_TRUE(Serving::eventually(
      [&] { return serving.worker()["last_recovery"].is_object() && state() == "ready"; }));
  EXPECT_EQ(serving.worker()["last_recovery"]["way"], "loaded");
}

TEST(WorkerActions, ARestartWhileAModelIsUnloadedIsNotLost) {
  Serving serving = serve();
  const int pid = serving.worker()["pid"].get<int>();
  send_signal(pid, SIGSTOP);  // so that it ends only after the restart was asked for
  EXPECT_EQ(serving.post("/v1/models/unload", R"({"model": "builtin"})").status, 202);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", "").status, 202);
  send_signal(pid, SIGCONT);
  EXPECT_TRUE(Serving::eventually([&] {
    const json worker = serving.worker();
    return worker["state"] == "ready" && worker["pid"] != pid;
  }));
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
}

TEST(WorkerActions, AWorkerThatDiesWhileItDrainsFinishesItsStreamsAndStaysDrained) {
  Serving serving = serve();
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_with_ids("slow kill@60", 100).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  EXPECT_EQ(serving.worker()["state"], "draining");
  std::string body;
  while (auto chunk = client.receive_chunk()) {
    if (chunk->empty()) break;
    body += *chunk;
  }
  expect_whole_with_ids(body, 100);
  EXPECT_EQ(serving.worker()["recovered_requests"], 1);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["state"] == "drained"; }));
  EXPECT_EQ(serving.complete({{"prompt", "x"}}).status, 503);
}

// A new process serves the stream that the worker had, and nothing else.
TEST(WorkerActions, AWorkerThatDiesWhileItDrainsTakesNoOtherRequests) {
  const std::string gate = testing::TempDir() + "drains-" + std::to_string(::getpid());
  std::ofstream(gate) << "closed";
  Serving serving = serve({}, {{"FAKE_LOAD_MS", "300"}, {"FAKE_HOLD", gate}});
  HttpClient stream(serving.port);
  stream.send("POST", "/v1/completions", stream_with_ids("hold@5", 20).dump());
  ASSERT_EQ(stream.receive_head().status, 200);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  send_signal(serving.worker()["pid"].get<int>(), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 1; }));
  const HttpReply refused = serving.complete({{"prompt", "x"}, {"max_tokens", 1}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("are drained; restart one"), std::string::npos) << refused.body;
  ::unlink(gate.c_str());
  std::string body;
  while (auto chunk = stream.receive_chunk()) {
    if (chunk->empty()) break;
    body += *chunk;
  }
  expect_whole_with_ids(body, 20);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["state"] == "drained"; }));
}

TEST(WorkerActions, OnlyAReadyWorkerIsDrained) {
  Serving serving = serve({}, {{"FAKE_LOAD_MS", "1500"}});
  send_signal(serving.worker()["pid"].get<int>(), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["state"] == "loading"; }));
  const HttpReply refused = serving.post("/v1/workers/builtin-0/drain", "");
  EXPECT_EQ(refused.status, 409);
  EXPECT_NE(refused.body.find("is loading; only a ready one can be drained"), std::string::npos)
      << refused.body;
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["state"] == "ready"; }));
  // A second request for something that is under way or already done is accepted, too.
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["state"] == "drained"; }));
}

TEST(WorkerActions, ProfileBringsAStepsKernelTimes) {
  Serving serving = serve();
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/profile", "").status, 202);
  ASSERT_TRUE(Serving::eventually(
      [&] { return serving.worker()["gpu"]["kernels"]["norm_microseconds"] == 12; }));
  EXPECT_EQ(serving.worker()["gpu"]["memory_pool"]["hits"], 3);
  EXPECT_FALSE(serving.worker()["gpu"].contains("steps_ahead_total"));
  const std::string metrics = serving.get("/metrics").body;
  EXPECT_NE(metrics.find("bulkhead_worker_kernel_norm_seconds{worker=\"builtin-0\"} 1.2"),
            std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find(
                "bulkhead_worker_optimization_active{worker=\"builtin-0\",part=\"memory_pool\"} 1"),
            std::string::npos)
      << metrics;
  EXPECT_EQ(serving.post("/v1/workers/nobody/profile", "").status, 404);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/profile", "").status, 409);
}

TEST(WorkerActions, RollingRestartOfTwoWorkersNeverRefuses) {
  Serving serving = serve({"models.0.path=builtin", "models.0.workers=2"});
  ASSERT_TRUE(Serving::eventually([&] {
    return serving.worker(0)["state"] == "ready" && serving.worker(1)["state"] == "ready";
  }));
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send("POST", "/v1/completions", stream_with_ids("slow", 60).dump());
  }
  ASSERT_TRUE(Serving::eventually([&] {
    return serving.worker(0)["outstanding_requests"] == 4 &&
           serving.worker(1)["outstanding_requests"] == 4;
  }));
  for (const char* name : {"builtin-0", "builtin-1"}) {
    EXPECT_EQ(serving.post(std::string("/v1/workers/") + name + "/restart", "").status, 202);
    EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 2}}).status, 200);
  }
  for (auto& client : clients)
    expect_whole_with_ids(client->receive().body, 60);
}

TEST(Termination, RunningStreamsAreFinishedAndNewOnesRefused) {
  Serving serving = serve();
  int worker = serving.worker()["pid"];
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_with_ids("slow", 200).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  serving.daemon->signal(SIGTERM);
  ASSERT_TRUE(Serving::eventually([&] { return serving.get("/health").status == 503; }));
  HttpReply refused = serving.complete({{"prompt", "x"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_FALSE(refused.headers["retry-after"].empty());
  std::string body;
  while (auto chunk = client.receive_chunk()) {
    if (chunk->empty()) break;
    body += *chunk;
  }
  expect_whole_with_ids(body, 200);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
  EXPECT_NE(send_signal(worker, 0), 0);
}

TEST(Termination, SecondSignalEndsAtOnce) {
  Serving serving = serve();
  int worker = serving.worker()["pid"];
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_with_ids("never", 10).dump());
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 1; }));
  serving.daemon->signal(SIGTERM);
  ASSERT_TRUE(Serving::eventually([&] { return serving.get("/health").status == 503; }));
  serving.daemon->signal(SIGINT);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 130);
  EXPECT_TRUE(Serving::eventually([&] { return send_signal(worker, 0) != 0; }));
}

TEST(Termination, WorkersEndWithAKilledDaemon) {
  Serving serving = serve();
  int worker = serving.worker()["pid"];
  serving.daemon->signal(SIGKILL);
  EXPECT_EQ(serving.daemon->wait_for_exit(), -SIGKILL);
  EXPECT_TRUE(Serving::eventually([&] { return send_signal(worker, 0) != 0; }));
}

TEST(Descriptors, NoneAreLostOverDeathsOfWorkers) {
  Serving serving = serve();
  auto count = [&] {
    std::error_code error;
    int descriptors = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(
             "/proc/" + std::to_string(serving.daemon->pid()) + "/fd", error)) {
      ++descriptors;
    }
    return descriptors;
  };
  auto once = [&] {
    expect_whole_with_ids(serving.complete(stream_with_ids("kill@3", 10)).body, 10);
  };
  once();
  ASSERT_TRUE(Serving::eventually([&] { return serving.metric("bulkhead_connections") == 1; }));
  int before = count();
  for (int i = 0; i < 10; ++i)
    once();
  ASSERT_TRUE(Serving::eventually([&] { return serving.metric("bulkhead_connections") == 1; }));
  EXPECT_TRUE(Serving::eventually([&] { return count() <= before; }))
      << before << " before, " << count() << " now";
}

}  // namespace
}  // namespace bulkhead::test
