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

// The router holds answers back that take turns. A client must not take the silence for a dead server.
TEST_F(FairKeys, AStreamOfAnswersThatWaitForTheirTurnBegins) {
  const json prompts = std::vector<std::string>(6, "hold@0");
  const std::pair<const char*, json> requests[] = {
      {"/v1/completions", {{"prompt", "hold@0"}, {"n", 6}, {"max_tokens", 2}}},
      {"/v1/completions", {{"prompt", prompts}, {"max_tokens", 2}}},
      {"/completion", {{"prompt", prompts}, {"n_predict", 2}}},
  };
  for (auto [path, request] : requests) {
    SCOPED_TRACE(path + request.dump());
    const Serving serving =
        serve_closed({"server.keys=alice alice-secret", "server.stream_keep_alive_s=1"});
    request["stream"] = true;
    HttpClient client(serving.port);
    client.send("POST", path, request.dump(), {"Authorization: Bearer alice-secret"});
    ASSERT_EQ(client.receive_head().status, 200);
    const auto comment = client.receive_chunk();
    ASSERT_TRUE(comment.has_value());
    EXPECT_TRUE(comment->starts_with(":")) << *comment;
    open();
    std::string body;
    bool whole = false;
    while (auto chunk = client.receive_chunk()) {
      if (whole = chunk->empty(); whole) break;
      body += *chunk;
    }
    EXPECT_TRUE(whole);
    for (int i = 0; i < 6; ++i)
      EXPECT_NE(body.find("\"index\":" + std::to_string(i)), std::string::npos) << body;
  }
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

// The choices of a large prompt start in several turns of the daemon's loop. Those that have yet to start have their
// places already.
class ChoicesToStart : public FairKeys {
 protected:
  // A request that the daemon has read except for its last byte.
  struct Half {
    HttpClient client;
    std::string last;
  };
  static std::unique_ptr<Half> half_of(const Serving& serving, const std::string& key,
                                       std::size_t prompt_bytes, int n) {
    std::string prompt = "hold@0 ";
    prompt.resize(prompt_bytes, 'x');
    const std::string body = json{{"prompt", prompt}, {"n", n}, {"max_tokens", 2}}.dump();
    auto half =
        std::make_unique<Half>(Half{HttpClient(serving.port), body.substr(body.size() - 1)});
    half->client.send_raw(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + key +
        "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
        body.substr(0, body.size() - 1));
    // The daemon has read these bytes once it answers a later request.
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(serving.get("/livez").status, 200);
    return half;
  }
  // Sends the last bytes of all requests so that they come in the same turn of the daemon's loop,
  // in this order.
  static void end_together(const Serving& serving, const std::vector<Half*>& halves) {
    serving.daemon->signal(SIGSTOP);
    for (Half* const half : halves)
      half->client.send_raw(half->last);
    serving.daemon->signal(SIGCONT);
  }
  static constexpr std::size_t kLarge = 90'000;  // the daemon copies some 1 MiB in a turn
};

TEST_F(ChoicesToStart, HavePlacesInTheQueue) {
  const Serving serving = serve_closed({"server.max_queue=140"}, "0");
  const auto large = half_of(serving, "operator", kLarge, 128);
  const auto too_many = half_of(serving, "operator", 10, 13);
  const auto few = half_of(serving, "operator", 10, 12);
  end_together(serving, {large.get(), too_many.get(), few.get()});
  const HttpReply refused = too_many->client.receive();
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.body.find("128 requests are unfinished"), std::string::npos) << refused.body;
  open();
  EXPECT_EQ(json::parse(large->client.receive().body)["choices"].size(), 128U);
  EXPECT_EQ(json::parse(few->client.receive().body)["choices"].size(), 12U);
  // Places of choices that never start are free again.
  const auto lost = half_of(serving, "operator", kLarge, 128);
  end_together(serving, {lost.get()});
  lost->client.hang_up();
  EXPECT_TRUE(Serving::eventually([&] { return unfinished(serving) == 0; }));
  const auto again = half_of(serving, "operator", kLarge, 128);
  end_together(serving, {again.get()});
  EXPECT_EQ(json::parse(again->client.receive().body)["choices"].size(), 128U);
}

TEST_F(ChoicesToStart, CountTowardsTheShareOfTheirKeyAlone) {
  const Serving serving =
      serve_closed({"server.keys=alice alice-secret,bob bob-secret", "server.max_queue=150"}, "0");
  const auto large = half_of(serving, "alice-secret", kLarge, 128);
  const auto alices = half_of(serving, "alice-secret", 10, 23);
  const auto bobs = half_of(serving, "bob-secret", 10, 50);  // all of his share
  const auto bobs_next = half_of(serving, "bob-secret", 10, 1);
  end_together(serving, {large.get(), alices.get(), bobs.get(), bobs_next.get()});
  EXPECT_EQ(alices->client.receive().status, 429);
  EXPECT_EQ(bobs_next->client.receive().status, 429);
  open();
  EXPECT_EQ(bobs->client.receive().status, 200);
  EXPECT_EQ(large->client.receive().status, 200);
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
