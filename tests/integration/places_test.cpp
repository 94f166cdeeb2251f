// More connections than the daemon has places for.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "tests/integration/clients.hpp"
#include "tests/integration/daemon_script.hpp"
#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

TEST(Places, IdleConnectionsMakePlaceForOthers) {
  const Serving serving = serve();
  Clients idle;
  for (int i = 0; i < 2100; ++i)
    idle.push_back(std::make_unique<HttpClient>(serving.port));
  EXPECT_TRUE(Serving::eventually([&] { return small(serving).status == 200; }));
  // A connection that asks for the metrics needs a place, too.
  EXPECT_TRUE(
      Serving::eventually([&] { return serving.metric("bulkhead_http_idle_closed_total") > 0; }));
}

TEST(Places, WhenAllAreTakenTheOperatorsEndpointsStillAnswer) {
  const Serving serving = serve();
  Clients busy;
  for (int i = 0; i < 2039; ++i) {
    busy.push_back(std::make_unique<HttpClient>(serving.port));
    // A head without its body: the connection is not idle, but has no request yet.
    busy.back()->send_raw(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n");
  }
  ASSERT_TRUE(Serving::eventually([&] { return serving.metric("bulkhead_connections") >= 2034; }));
  const HttpReply refused = small(serving);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("x-request-id"), 1U);
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_EQ(serving.get("/v1/workers").status, 200);
}

TEST(Places, ClientsThatNeverEndTheirHeadsMakePlaceToo) {
  const Serving serving = serve();
  const auto began = std::chrono::steady_clock::now();
  Clients slow;
  for (int i = 0; i < 2200; ++i) {
    slow.push_back(std::make_unique<HttpClient>(serving.port));
    slow.back()->send_raw("POST /v1/completions HTTP/1.1\r\n");
  }
  // Which connections get the places of others depends on when the daemon accepts them, so this asks again if it was
  // refused.
  EXPECT_TRUE(Serving::eventually([&] { return small(serving).status == 200; }));
  EXPECT_EQ(serving.get("/livez").status, 200);
  EXPECT_GT(serving.metric("bulkhead_http_idle_closed_total"), 0);
  const double ended_late = serving.metric("bulkhead_http_slow_senders_total");
  // On a busy machine the first heads' time may be over by now.
  if (std::chrono::steady_clock::now() - began < std::chrono::seconds(15)) {
    EXPECT_EQ(ended_late, 0) << "the heads' own time, 15 s, has not made the places";
  }
}

// Without this limit, clients that hold all their connections would leave no descriptor for a worker's
// successor.
TEST(Places, ALowLimitOnOpenFilesLeavesRoomForWorkers) {
  const DaemonScript script("ulimit -n 160\nexec " BULKHEADD " \"$@\"\n");
  Serving serving;
  serving.daemon = std::make_unique<Daemon>(
      script.path(),
      Daemon::Options{.arguments = {}, .environment = {{"BULKHEAD_WORKER", FAKE_WORKER}}});
  serving.port = serving.daemon->wait_until_listening();
  ASSERT_NE(serving.port, 0) << serving.daemon->log();
  const json before = serving.worker();
  Clients busy;
  for (int i = 0; i < 200; ++i) {
    busy.push_back(std::make_unique<HttpClient>(serving.port));
    busy.back()->send_raw("POST /v1/completions HTTP/1.1\r\n");
  }
  std::this_thread::sleep_for(
      std::chrono::milliseconds(300));  // the daemon takes what it has room for
  ::kill(before["pid"].get<pid_t>(), SIGKILL);
  const auto ready_twice = [&] {
    const std::string log = serving.daemon->log();
    const std::size_t first = log.find(": ready: ");
    return first != std::string::npos && log.find(": ready: ", first + 1) != std::string::npos;
  };
  // The busy clients are sent away after 15 s.
  EXPECT_TRUE(Serving::eventually(ready_twice, std::chrono::seconds(8))) << serving.daemon->log();
}

}  // namespace
}  // namespace bulkhead::test
