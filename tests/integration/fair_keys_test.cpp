// Clients' keys that ask for more than a model can do: each key gets its share.
#include <fstream>
#include <map>
#include <sstream>

#include "tests/integration/watching.hpp"

namespace bulkhead::test {
namespace {

// The scripted worker waits before its first token as long as the file `gate` exists. So all requests are there
// before the first one ends, and they end in the order in which the worker got them.
class FairKeys : public testing::Test {
 protected:
  ~FairKeys() override { ::unlink(gate_.c_str()); }

  Serving serve_closed(std::vector<std::string> settings, const std::string& max_batch = "1") {
    std::ofstream(gate_) << "closed";
    settings.insert(settings.end(), {"server.api_key=operator", "engine.max_batch=" + max_batch});
    return serve(settings, {{"FAKE_HOLD", gate_}});
  }
  void open() { ::unlink(gate_.c_str()); }

  static std::unique_ptr<HttpClient> ask(const Serving& serving, const std::string& key) {
    auto client = std::make_unique<HttpClient>(serving.port);
    client->send("POST", "/v1/completions", R"({"prompt":"hold@0","max_tokens":2})",
                 {"Authorization: Bearer " + key + "-secret"});
    return client;
  }
  static std::size_t unfinished(const Serving& serving) {
    return json::parse(HttpClient(serving.port)
                           .request("GET", "/v1/requests", "", {"Authorization: Bearer operator"})
                           .body)
        .size();
  }
  static json of_worker(const Serving& serving) {
    return json::parse(HttpClient(serving.port)
                           .request("GET", "/v1/workers", "", {"Authorization: Bearer operator"})
                           .body)[0];
  }
  // Returns the key of each request that was answered, in the order of the requests' ends.
  static std::vector<std::string> order(const Serving& serving) {
    std::vector<std::string> keys;
    std::istringstream log(serving.daemon->log());
    for (std::string line; std::getline(log, line);) {
      const std::size_t at = line.find(" key=");
      if (at == std::string::npos || line.find(" status=200 ") == std::string::npos) continue;
      keys.push_back(line.substr(at + 5, line.find(' ', at + 1) - at - 5));
    }
    return keys;
  }

  const std::string gate_ = testing::TempDir() + "gate-" + std::to_string(::getpid());
};

TEST_F(FairKeys, KeysOfDifferentLimitsGetEqualShares) {
  const Serving serving = serve_closed(
      {"server.keys=alice alice-secret streams=60,bob bob-secret streams=40,carol carol-secret "
       "streams=20 tokens_per_minute=100000"});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (const auto& [key, streams] :
       std::map<std::string, int>{{"alice", 60}, {"bob", 40}, {"carol", 20}}) {
    for (int i = 0; i < streams; ++i)
      clients.push_back(ask(serving, key));
    ASSERT_TRUE(Serving::eventually([&] { return unfinished(serving) == clients.size(); })) << key;
  }
  open();
  ASSERT_TRUE(Serving::eventually([&] { return order(serving).size() == clients.size(); }));
  // The worker had two of alice's requests before the others came. From then on each key has every third turn.
  std::map<std::string, int> ended;
  const std::vector<std::string> keys = order(serving);
  for (std::size_t i = 2; i < 2 + 3 * 18; ++i)
    ++ended[keys[i]];
  for (const char* key : {"alice", "bob", "carol"})
    EXPECT_NEAR(ended[key], 18, 1.8) << key;
  for (const auto& client : clients)
    EXPECT_EQ(client->receive_head().status, 200);
}

TEST_F(FairKeys, AKeyThatFillsTheQueueLeavesOthersTheirPlaces) {
  const Serving serving =
      serve_closed({"server.keys=alice alice-secret,bob bob-secret", "server.max_queue=9"});
  std::vector<std::unique_ptr<HttpClient>> alices, bobs;
  for (int i = 0; i < 9; ++i)
    alices.push_back(ask(serving, "alice"));
  ASSERT_TRUE(Serving::eventually([&] { return unfinished(serving) == 9; }));
  EXPECT_EQ(ask(serving, "alice")->receive_head().status, 429);
  for (int i = 0; i < 3; ++i)
    bobs.push_back(ask(serving, "bob"));
  ASSERT_TRUE(Serving::eventually([&] { return unfinished(serving) == 12; }));
  EXPECT_EQ(ask(serving, "bob")->receive_head().status, 429);
  open();
  ASSERT_TRUE(Serving::eventually([&] { return order(serving).size() == 12; }));
  const std::vector<std::string> keys = order(serving);
  const auto last_of_bob = std::ranges::find(keys.rbegin(), keys.rend(), "bob");
  EXPECT_LE(keys.rend() - last_of_bob, 9) << "alice's nine came before bob's three";
  for (const auto* clients : {&alices, &bobs}) {
    for (const auto& client : *clients)
      EXPECT_EQ(client->receive_head().status, 200);
  }
}

// By default the worker decides how many requests it computes at a time.
TEST_F(FairKeys, ByDefaultAWorkerGetsAllThatItComputesAtATime) {
  const Serving serving = serve_closed({"server.keys=alice alice-secret"}, "0");
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i)
    clients.push_back(ask(serving, "alice"));
  EXPECT_TRUE(Serving::eventually([&] { return of_worker(serving)["outstanding_requests"] == 8; }));
  open();
  for (const auto& client : clients)
    EXPECT_EQ(client->receive_head().status, 200);
}

TEST_F(FairKeys, WhatWaitsIsRefusedWhenItsWorkerIsDrained) {
  const Serving serving = serve_closed({"server.keys=alice alice-secret"});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(ask(serving, "alice"));
    ASSERT_TRUE(Serving::eventually([&] { return unfinished(serving) == clients.size(); }));
  }
  const std::string name = of_worker(serving)["name"];
  const HttpReply drained = HttpClient(serving.port)
                                .request("POST", "/v1/workers/" + name + "/drain", "",
                                         {"Authorization: Bearer operator"});
  EXPECT_EQ(drained.status / 100, 2) << drained.body;
  open();
  for (std::size_t i = 0; i < clients.size(); ++i)
    EXPECT_EQ(clients[i]->receive_head().status, i < 2 ? 200 : 503) << i;
}

// Requests that wait for their turn are served although the worker dies.
TEST_F(FairKeys, WhatWaitsOutlivesItsWorker) {
  const Serving serving = serve_closed({"server.keys=alice alice-secret,bob bob-secret"});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (const char* key : {"alice", "alice", "alice", "alice", "bob", "bob"})
    clients.push_back(ask(serving, key));
  ASSERT_TRUE(Serving::eventually([&] { return unfinished(serving) == clients.size(); }));
  const json worker = of_worker(serving);
  EXPECT_EQ(worker["outstanding_requests"], 2);  // one that it computes, and one to prepare
  send_signal(worker["pid"].get<pid_t>(), SIGKILL);
  open();
  for (const auto& client : clients)
    EXPECT_EQ(client->receive_head().status, 200);
}

}  // namespace
}  // namespace bulkhead::test
