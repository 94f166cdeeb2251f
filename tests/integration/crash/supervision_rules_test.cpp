// The rules by which a worker's deaths are named and counted, with a scripted worker: which request gets a strike,
// how a poisonous request ends, how a death is described, and how soon a hang is noticed.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/integration/serving.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

json stream_of(const std::string& prompt, int tokens) {
  return {{"prompt", prompt}, {"max_tokens", tokens}, {"seed", 9}, {"stream", true}};
}

void expect_whole(const std::string& body, int tokens) {
  const Events events = events_of(body);
  EXPECT_TRUE(events.done);
  std::string text;
  for (const json& chunk : events.chunks) {
    ASSERT_TRUE(chunk.contains("choices")) << chunk;
    text += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, expected_text(9, tokens));
}

std::string rest_of(HttpClient& client) {
  std::string body;
  while (auto piece = client.receive_chunk()) {
    if (piece->empty()) break;
    body += *piece;
  }
  return body;
}

pid_t ready_worker(const Serving& serving, std::size_t index = 0) {
  pid_t pid = -1;
  EXPECT_TRUE(Serving::eventually([&] {
    const json worker = serving.worker(index);
    if (worker["state"] != "ready") return false;
    pid = worker["pid"].get<pid_t>();
    return true;
  }));
  return pid;
}

TEST(Strikes, TheNumberOfTriesIsOneMoreThanTheyAre) {
  for (const int strikes : {1, 3}) {
    const Serving serving = serve({"isolation.max_strikes=" + std::to_string(strikes)});
    const HttpReply reply = serving.complete({{"prompt", "poison"}});
    EXPECT_EQ(reply.status, 500);
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], "worker_crashed");
    EXPECT_NE(error["message"].get<std::string>().find(std::to_string(strikes + 1) + " tries"),
              std::string::npos)
        << error;
    EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == strikes + 1; }));
  }
}

TEST(Strikes, AStreamThatGoesOnBetweenDeathsGetsNone) {
  const Serving serving = serve({"isolation.max_strikes=1"});
  std::string prompt;
  for (int i = 1; i < 20; ++i)
    prompt += "kill@" + std::to_string(i) + " ";
  expect_whole(serving.complete(stream_of(prompt, 30)).body, 30);
  EXPECT_EQ(serving.worker()["restarts"], 19);
}

TEST(Strikes, OneDeathBeforeTheFirstTokenIsNone) {
  const Serving serving = serve({"isolation.max_strikes=1"});
  // Each dies before its neighbours have their first tokens.
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send("POST", "/v1/completions", stream_of("never", 10).dump());
  }
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 8; }));
  send_signal(ready_worker(serving), SIGSEGV);
  // The others still wait and none has failed: the successor has only the first of them.
  ASSERT_TRUE(Serving::eventually([&] {
    return serving.worker()["restarts"] == 1 && serving.worker()["outstanding_requests"] == 1;
  }));
  EXPECT_EQ(serving.metric("bulkhead_requests_outstanding"), 8);
  EXPECT_EQ(serving.metric("bulkhead_requests_waiting"), 7);
}

// A SIGKILL, SIGTERM or SIGSTOP from somebody says nothing about the request that was in progress.
TEST(Strikes, DeathsFromOutsideAreHardlyHeldAgainstARequest) {
  const Serving serving = serve({"isolation.max_strikes=1", "isolation.heartbeat_timeout_ms=300"});
  HttpClient waiting(serving.port);
  waiting.send("POST", "/v1/completions", stream_of("never", 10).dump());
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_of("slow", 1000).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  int deaths = 0;
  const auto strike = [&](int signal) {
    ASSERT_TRUE(
        Serving::eventually([&] { return serving.metric("bulkhead_requests_waiting") == 0; }));
    send_signal(ready_worker(serving), signal);
    ++deaths;
    ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == deaths; }));
  };
  for (const int signal : {SIGKILL, SIGSTOP, SIGTERM, SIGTERM, SIGSTOP, SIGTERM, SIGKILL})
    strike(signal);
  // There is no suspect either, so no request waits for another one.
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 2; }));
  expect_whole(rest_of(client), 1000);
  // But there is a limit: the eighth death makes two that count.
  strike(SIGKILL);
  const Events events = events_of(waiting.receive().body);
  EXPECT_FALSE(events.done);
  ASSERT_FALSE(events.chunks.empty());
  const json& error = events.chunks.back()["error"];
  EXPECT_EQ(error["code"], "worker_crashed");
  EXPECT_NE(error["message"].get<std::string>().find("8 tries"), std::string::npos) << error;
}

// Such a death is also no reason to delay the next start.
TEST(BackOff, HardlyGrowsWhenALoadingWorkerIsKilledFromOutside) {
  const Serving serving = serve({}, {{"FAKE_LOAD_MS", "200"}});
  pid_t last = ready_worker(serving);
  send_signal(last, SIGKILL);
  for (int deaths = 1; deaths < 7; ++deaths) {
    ASSERT_TRUE(Serving::eventually([&] {
      const json worker = serving.worker();
      if (!worker["pid"].is_number() || worker["pid"] == last) return false;
      last = worker["pid"].get<pid_t>();
      return true;
    }));
    send_signal(last, SIGKILL);
  }
  expect_whole(serving.complete(stream_of("x", 5)).body, 5);
  EXPECT_EQ(serving.worker()["restarts"], 7);
  EXPECT_EQ(serving.daemon->log().find("next start in"), std::string::npos)
      << serving.daemon->log();
}

TEST(BackOff, GrowsWhenAWorkerEndsItself) {
  char counter[] = "/tmp/bulkhead-count-XXXXXX";
  UniqueFd file(::mkstemp(counter));
  // The first start succeeds, no other one does.
  const Serving serving = serve({"isolation.crash_budget=8"},
                                {{"FAKE_COUNTER_FILE", counter}, {"FAKE_DIE_AFTER", "1"}});
  send_signal(ready_worker(serving), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] {
    return serving.daemon->log().find("next start in 500 ms") != std::string::npos;
  })) << serving.daemon->log();
  ::unlink(counter);
}

TEST(BackOff, GrowsWhateverSignalItSendsItself) {
  char counter[] = "/tmp/bulkhead-count-XXXXXX";
  UniqueFd file(::mkstemp(counter));
  const Serving serving = serve(
      {}, {{"FAKE_COUNTER_FILE", counter}, {"FAKE_DIE_AFTER", "1"}, {"FAKE_DIE_BY_SIGNALS", "1"}});
  send_signal(ready_worker(serving), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] {
    return serving.daemon->log().find("next start in 2000 ms") != std::string::npos;
  })) << serving.daemon->log();
  // No kind of death came twice.
  EXPECT_EQ(serving.worker()["state"], "restarting");
  ::unlink(counter);
}

TEST(Strikes, PoisonAmongManyFailsAndTheyFinish) {
  const Serving serving = serve({"models.0.path=builtin", "models.0.workers=2"});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    const bool poison = i % 4 == 1;
    clients.back()->send("POST", "/v1/completions",
                         stream_of(poison ? "poison" : "slow", 100).dump());
  }
  for (std::size_t i = 0; i < clients.size(); ++i) {
    SCOPED_TRACE(i);
    const HttpReply reply = clients[i]->receive();
    if (i % 4 == 1) {
      EXPECT_EQ(reply.status, 500);
      EXPECT_EQ(json::parse(reply.body)["error"]["code"], "worker_crashed");
    } else {
      expect_whole(reply.body, 100);
    }
  }
}

TEST(Causes, AreCountedByKindAndDescribedInWords) {
  struct Case {
    const char* order;
    const char* cause;
  };
  for (const Case& each :
       {Case{"exit@3", "exit"}, Case{"kill@3", "signal"}, Case{"gap@3", "protocol_violation"},
        Case{"garbage@3", "protocol_violation"}, Case{"lie@3", "protocol_violation"},
        Case{"hang@3", "hang"}, Case{"device@3", "device_lost"}}) {
    SCOPED_TRACE(each.order);
    const Serving serving = serve({"isolation.heartbeat_timeout_ms=300"});
    expect_whole(serving.complete(stream_of(each.order, 10)).body, 10);
    EXPECT_EQ(serving.worker()["last_death_cause"], each.cause);
    EXPECT_EQ(serving.metric("bulkhead_worker_deaths_total{cause=\"" + std::string(each.cause) +
                             "\",worker=\"builtin-0\"}"),
              1);
    EXPECT_NE(
        serving.daemon->log().find("died: " + serving.worker()["last_death"].get<std::string>()),
        std::string::npos)
        << serving.daemon->log();
  }
}

TEST(Causes, ALostDeviceIsBelievedOnItsExitCodeAlone) {
  const Serving serving = serve();
  expect_whole(serving.complete(stream_of("device@3", 10)).body, 10);
  EXPECT_EQ(serving.worker()["last_death"],
            "device failure: exited with code 4, and gave no reason");
}

TEST(Causes, SignalsByName) {
  const Serving serving = serve();
  for (const auto& [signal, words] : {std::pair{SIGSEGV, "killed by signal 11 (SIGSEGV)"},
                                      std::pair{SIGABRT, "killed by signal 6 (SIGABRT)"},
                                      std::pair{SIGTERM, "killed by signal 15 (SIGTERM)"}}) {
    send_signal(ready_worker(serving), signal);
    ASSERT_TRUE(Serving::eventually([&, told = words] {
      return serving.worker()["last_death"] == told;
    })) << words;
  }
  EXPECT_EQ(serving.worker()["last_death_cause"], "signal");
}

TEST(Causes, AWorkerIsTheKernelsVictimBeforeTheDaemon) {
  const Serving serving = serve();
  const auto score = [](pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/oom_score_adj");
    int value = 0;
    file >> value;
    return value;
  };
  EXPECT_GT(score(ready_worker(serving)), score(serving.daemon->pid()));
}

// Prints how long it took. The test checks only that the hang is noticed and costs no token.
class Hang : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transport, Hang, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Hang, OfABusyWorkerIsNoticedSoon) {
  const Serving serving =
      serve({"isolation.heartbeat_timeout_ms=500", std::string("ipc.transport=") + GetParam()});
  for (int i = 0; i < 5; ++i) {
    const pid_t victim = ready_worker(serving);
    HttpClient client(serving.port);
    client.send("POST", "/v1/completions", stream_of("slow", 50).dump());
    ASSERT_EQ(client.receive_head().status, 200);
    std::string body;
    for (int piece = 0; piece < 5 + i; ++piece)
      body += client.receive_chunk().value_or("");
    const auto stopped = steady_clock::now();
    send_signal(victim, SIGSTOP);
    while (send_signal(victim, 0) == 0)  // until the daemon has reaped it
      std::this_thread::sleep_for(milliseconds(1));
    std::printf(
        "%s: noticed %lld ms after the stop; the timeout is 500 ms\n", GetParam(),
        static_cast<long long>(duration_cast<milliseconds>(steady_clock::now() - stopped).count()));
    expect_whole(body + rest_of(client), 50);
    EXPECT_EQ(serving.worker()["last_death"], "hang: no progress for 500 ms");
    EXPECT_TRUE(serving.daemon->says("process " + std::to_string(victim) +
                                     " is stopped, and has computed for 0 ms"))
        << serving.daemon->log();
  }
}

TEST_P(Hang, OfAnIdleWorkerIsNoticedBeforeTheNextRequest) {
  const Serving serving =
      serve({"isolation.heartbeat_timeout_ms=500", std::string("ipc.transport=") + GetParam()});
  const pid_t victim = ready_worker(serving);
  send_signal(victim, SIGSTOP);
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 1; }));
  EXPECT_EQ(serving.worker()["last_death"], "hang: idle, and no answer for 500 ms");
  EXPECT_NE(ready_worker(serving), victim);
  expect_whole(serving.complete(stream_of("x", 5)).body, 5);
}

TEST_P(Hang, OfAWorkerThatIsStoppedWhileItLoadsNeedsNoLongPatience) {
  const Serving serving =
      serve({"isolation.heartbeat_timeout_ms=1000", std::string("ipc.transport=") + GetParam()},
            {{"FAKE_LOAD_MS", "700"}});
  const pid_t first = ready_worker(serving);
  send_signal(first, SIGKILL);
  pid_t loading = -1;
  ASSERT_TRUE(Serving::eventually([&] {
    const json worker = serving.worker();
    if (worker["state"] != "loading" || !worker["pid"].is_number()) return false;
    loading = worker["pid"].get<pid_t>();
    return loading != first;
  }));
  send_signal(loading, SIGSTOP);
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 2; }));
  EXPECT_EQ(serving.worker()["last_death"], "hang: stopped for 1000 ms while loading");
  expect_whole(serving.complete(stream_of("x", 5)).body, 5);
}

TEST_P(Hang, OfTheDaemonItselfIsNoneOfItsWorkers) {
  const Serving serving =
      serve({"models.0.path=builtin", "models.0.workers=2", "isolation.heartbeat_timeout_ms=500",
             std::string("ipc.transport=") + GetParam()});
  ready_worker(serving, 0), ready_worker(serving, 1);  // one gets the stream, one is idle
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_of("slow", 600).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  std::string body = client.receive_chunk().value_or("");
  for (int i = 0; i < 2; ++i) {
    serving.daemon->signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(1500));
    serving.daemon->signal(SIGCONT);
    std::this_thread::sleep_for(milliseconds(200));
  }
  expect_whole(body + rest_of(client), 600);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(serving.worker(i)["restarts"], 0) << serving.worker(i)["last_death"];
}

// Prints the longest gap of a stream whose worker lives, while a neighbouring worker is killed and while it is not.
// The figure is only for the reader.
TEST(Neighbours, StreamsOfAnotherWorkerGoOn) {
  const Serving serving = serve({"models.0.path=builtin", "models.0.workers=2"});
  ready_worker(serving, 0), ready_worker(serving, 1);
  for (const bool kills : {false, true}) {
    HttpClient client(serving.port);
    client.send("POST", "/v1/completions", stream_of("slow", 400).dump());
    ASSERT_EQ(client.receive_head().status, 200);
    std::size_t own = 0;
    ASSERT_TRUE(Serving::eventually([&] {
      own = serving.worker(0)["outstanding_requests"] == 1 ? 0 : 1;
      return serving.worker(own)["outstanding_requests"] == 1;
    }));
    HttpClient other(serving.port);  // this goes to the neighbouring worker
    other.send("POST", "/v1/completions", stream_of("slow", 400).dump());
    ASSERT_EQ(other.receive_head().status, 200);
    const pid_t neighbour = ready_worker(serving, 1 - own);
    std::string body;
    auto last = steady_clock::now();
    milliseconds longest{0};
    for (int pieces = 0; auto piece = client.receive_chunk(); ++pieces) {
      const auto now = steady_clock::now();
      if (pieces > 0) longest = std::max(longest, duration_cast<milliseconds>(now - last));
      last = now;
      if (piece->empty()) break;
      body += *piece;
      if (kills && pieces == 100) send_signal(neighbour, SIGKILL);
    }
    expect_whole(body, 400);
    expect_whole(rest_of(other), 400);
    std::printf("%s: longest gap %lld ms\n", kills ? "with a kill next door" : "undisturbed",
                static_cast<long long>(longest.count()));
    EXPECT_EQ(serving.worker(own)["restarts"], 0);
    EXPECT_EQ(serving.worker(1 - own)["restarts"], kills ? 1 : 0);
  }
}

// An upgrade while a daemon runs: a worker that dies comes back as the program that it was.
TEST(WorkerProgram, ThatWasReplacedIsNoticedAndTheFirstOneGoesOn) {
  namespace fs = std::filesystem;
  const TemporaryFolder temporary("upgrade");
  const fs::path& folder = temporary.path();
  const fs::path program = folder / "worker";
  fs::copy_file(FAKE_WORKER, program);
  {
    const Serving serving = serve({}, {{"BULKHEAD_WORKER", program.string()}});
    std::ofstream(folder / "new") << "half of a program";
    fs::rename(folder / "new", program);
    send_signal(ready_worker(serving), SIGKILL);
    ASSERT_TRUE(Serving::eventually([&] {
      return serving.worker()["restarts"] == 1 && serving.worker()["state"] == "ready";
    })) << serving.daemon->log();
    EXPECT_TRUE(serving.daemon->says("has been replaced or changed since this daemon began"));
  }
}

}  // namespace
}  // namespace bulkhead::test
