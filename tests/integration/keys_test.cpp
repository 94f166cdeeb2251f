// Clients' keys: what each may ask for, and how much.
#include <chrono>

#include "tests/integration/watching.hpp"

namespace bulkhead::test {
namespace {

Serving serve_with_keys(const std::string& keys, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"server.api_key=operator", "server.keys=" + keys});
  return serve(more);
}

std::vector<std::string> with(const std::string& key) {
  return {"Authorization: Bearer " + key};
}

HttpReply complete(const Serving& serving, const std::string& key, const json& body) {
  return serving.post("/v1/completions", body.dump(), with(key));
}

int status_of_get(const Serving& serving, const std::string& path, const std::string& key) {
  return HttpClient(serving.port).request("GET", path, "", with(key)).status;
}

double metric(const Serving& serving, const std::string& name) {
  const std::string text =
      HttpClient(serving.port).request("GET", "/metrics", "", with("operator")).body;
  const std::size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

TEST(Keys, AskModelsAndNothingElse) {
  const Serving serving = serve_with_keys("alice a-secret,bob b-secret");
  const json ask = {{"prompt", "x"}, {"max_tokens", 2}};
  for (const char* key : {"a-secret", "b-secret", "operator"})
    EXPECT_EQ(complete(serving, key, ask).status, 200) << key;
  for (const char* key : {"c-secret", "a-secre", "alice", ""})
    EXPECT_EQ(complete(serving, key, ask).status, 401) << key;
  EXPECT_EQ(serving.complete(ask).status, 401);
  for (const char* path : {"/v1/models", "/api/tags"})
    EXPECT_EQ(status_of_get(serving, path, "a-secret"), 200) << path;
  for (const char* path :
       {"/v1/workers", "/v1/requests", "/metrics", "/v1/workers/builtin-0/log"}) {
    EXPECT_EQ(status_of_get(serving, path, "a-secret"), 403) << path;
    EXPECT_EQ(status_of_get(serving, path, "operator"), 200) << path;
  }
  const std::string model = json{{"model", "builtin"}}.dump();
  for (const char* path : {"/v1/models/unload", "/v1/models/load", "/v1/workers/builtin-0/restart"})
    EXPECT_EQ(serving.post(path, model, with("a-secret")).status, 403) << path;
  const std::string unload = R"({"model":"fake-model","keep_alive":0})";
  EXPECT_EQ(serving.post("/api/generate", unload, with("a-secret")).status, 403);
  EXPECT_EQ(complete(serving, "a-secret", ask).status, 200);
}

TEST(Keys, EachHasItsOwnLimits) {
  const Serving serving = serve_with_keys(
      "alice a-secret requests_per_minute=1,bob b-secret tokens_per_minute=10,carol c-secret");
  const json ask = {{"prompt", "hello"}, {"max_tokens", 20}};
  // Expects that the refused client has to wait for `whole_s`, less the time that the requests
  // took.
  const auto began = std::chrono::steady_clock::now();
  const auto expect_wait = [&](const HttpReply& reply, int whole_s) {
    const auto took = std::chrono::steady_clock::now() - began;
    const int wait_s = std::stoi(reply.headers.at("retry-after"));
    EXPECT_LE(wait_s, whole_s);
    EXPECT_GE(wait_s, whole_s - std::chrono::ceil<std::chrono::seconds>(took).count());
  };
  EXPECT_EQ(complete(serving, "a-secret", ask).status, 200);
  HttpReply refused = complete(serving, "a-secret", ask);
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "rate_limit_exceeded");
  expect_wait(refused, 60);
  // The error has the form of each protocol.
  refused = serving.post("/api/generate", R"({"prompt":"x"})", with("a-secret"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(json::parse(refused.body)["error"].is_string()) << refused.body;

  EXPECT_EQ(complete(serving, "b-secret", ask).status, 200);  // 25 tokens, more than were left
  refused = complete(serving, "b-secret", ask);
  EXPECT_EQ(refused.status, 429);
  expect_wait(refused, 96);  // 25 of 10 tokens are used: 15 and one more take 96 s
  EXPECT_EQ(status_of_get(serving, "/v1/models", "b-secret"), 200);  // this uses no model
  for (const char* key : {"c-secret", "operator"}) {
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(complete(serving, key, ask).status, 200) << key;
  }
  EXPECT_EQ(metric(serving, "bulkhead_key_requests_total{key=\"alice\"}"), 1);
  EXPECT_EQ(metric(serving, "bulkhead_key_refused_total{key=\"alice\"}"), 2);
  EXPECT_EQ(metric(serving, "bulkhead_key_tokens_total{key=\"bob\"}"), 25);
  EXPECT_TRUE(serving.daemon->says(" key=carol"));
}

TEST(Keys, InputsThatWereEmbeddedCountThoughALaterOneFails) {
  const Serving serving = serve_with_keys("alice a-secret");
  const json ask = {{"input", {"hello", "refused"}}};
  EXPECT_GE(serving.post("/v1/embeddings", ask.dump(), with("a-secret")).status, 400);
  EXPECT_EQ(metric(serving, "bulkhead_key_tokens_total{key=\"alice\"}"), 5);
}

TEST(Keys, DocumentsThatWereRankedCountThoughALaterOneFails) {
  const Serving serving = serve_with_keys("alice a-secret requests_per_minute=2");
  json ask = {{"query", "q"}, {"documents", {"hello", "refused"}}};
  EXPECT_EQ(serving.post("/v1/rerank", ask.dump(), with("a-secret")).status, 400);
  EXPECT_EQ(metric(serving, "bulkhead_key_tokens_total{key=\"alice\"}"), 6);
  ask["documents"] = {"hello"};
  EXPECT_EQ(serving.post("/v1/rerank", ask.dump(), with("a-secret")).status, 200);
  EXPECT_EQ(serving.post("/v1/rerank", ask.dump(), with("a-secret")).status, 429);
  EXPECT_EQ(serving.post("/v1/rerank", ask.dump()).status, 401);
}

// A thread parses large bodies; the key's request is in progress meanwhile and afterwards.
TEST(Keys, ALargeBodyHasTheRightsAndTheLimitsOfItsKey) {
  const Serving serving =
      serve_with_keys("alice a-secret tokens_per_minute=10,bob b-secret streams=1");
  const auto padded = [](json body) {
    body["padding"] = std::string(400000, 'x');
    return body;
  };
  const json unload = padded({{"model", "fake-model"}, {"keep_alive", 0}});
  EXPECT_EQ(serving.post("/api/generate", unload.dump(), with("b-secret")).status, 403);

  const json ask = padded({{"prompt", "hello"}, {"max_tokens", 20}});
  EXPECT_EQ(complete(serving, "a-secret", ask).status, 200);
  EXPECT_EQ(metric(serving, "bulkhead_key_tokens_total{key=\"alice\"}"), 25);
  EXPECT_EQ(complete(serving, "a-secret", ask).status, 429);
  EXPECT_TRUE(serving.daemon->says(" key=alice"));

  for (const bool resumable : {false, true}) {
    json stream = padded(stream_of("slow", 300));
    stream["resumable"] = resumable;
    HttpClient client(serving.port);
    client.send("POST", "/v1/completions", stream.dump(), with("b-secret"));
    EXPECT_EQ(client.receive_head().status, 200);
    EXPECT_EQ(complete(serving, "b-secret", ask).status, 429);
    const json listed = json::parse(
        HttpClient(serving.port).request("GET", "/v1/requests", "", with("operator")).body);
    EXPECT_EQ(listed[0]["key"], "bob");
    EXPECT_NE(rest_of(client).find("data: [DONE]"), std::string::npos);
    EXPECT_TRUE(Serving::eventually(
        [&] { return metric(serving, "bulkhead_key_requests_in_progress{key=\"bob\"}") == 0; }));
  }
}

// The daemon sees the client's end before the thread has parsed the body.
TEST(Keys, ALargeBodyWhoseClientHangsUpBeginsNothing) {
  const Serving serving = serve_with_keys("bob b-secret streams=1");
  const std::string body = json{{"prompt", "never"}, {"padding", std::string(400000, 'x')}}.dump();
  HttpClient client(serving.port);
  client.send_raw(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
      "b-secret\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, body.size() - 1));
  // The daemon has read these bytes once it answers a later request.
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(serving.get("/livez").status, 200);
  serving.daemon->signal(SIGSTOP);
  client.send_raw(body.substr(body.size() - 1));
  client.hang_up();
  serving.daemon->signal(SIGCONT);
  ASSERT_TRUE(serving.daemon->says(" status=499 "));
  const std::string log = serving.daemon->log();
  const std::size_t at = log.find(" status=499 "), begin = log.rfind('\n', at) + 1;
  const std::string line = log.substr(begin, log.find('\n', at) - begin);
  EXPECT_NE(line.find(" key=bob"), std::string::npos) << line;
  // An answer that had begun would have the id of a completion.
  EXPECT_NE(line.find(" id=req_"), std::string::npos) << line;
  EXPECT_EQ(metric(serving, "bulkhead_key_requests_in_progress{key=\"bob\"}"), 0);
  const json worker = json::parse(
      HttpClient(serving.port).request("GET", "/v1/workers", "", with("operator")).body)[0];
  EXPECT_EQ(worker["outstanding_requests"], 0);
  EXPECT_EQ(complete(serving, "b-secret", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
}

TEST(Keys, NoneIsTheKeyOfTheEnvironment) {
  Daemon daemon(BULKHEADD,
                {{"--set", "server.api_key=operator", "--set", "server.keys=alice a-secret"},
                 {{"BULKHEAD_WORKER", FAKE_WORKER}, {"BULKHEAD_API_KEY", "a-secret"}}});
  EXPECT_EQ(daemon.wait_until_listening(), 0);
  EXPECT_TRUE(daemon.says("server.keys gives alice the key"));
}

TEST(Keys, AStreamCountsUntilItsEndHoweverItEnds) {
  const Serving serving = serve_with_keys("alice a-secret streams=2");
  const auto begin = [&](const json& body) {
    auto client = std::make_unique<HttpClient>(serving.port);
    client->send("POST", "/v1/completions", body.dump(), with("a-secret"));
    return client;
  };
  const auto free_again = [&] {
    return Serving::eventually(
        [&] { return metric(serving, "bulkhead_key_requests_in_progress{key=\"alice\"}") == 0; });
  };
  const json ask = {{"prompt", "x"}, {"max_tokens", 2}};
  auto one = begin(stream_of("slow", 300));
  json resumable = stream_of("slow", 300);
  resumable["resumable"] = true;
  auto two = begin(resumable);
  EXPECT_EQ(one->receive_head().status, 200);
  EXPECT_EQ(two->receive_head().status, 200);
  ASSERT_EQ(complete(serving, "a-secret", ask).status, 429);
  const json listed = json::parse(
      HttpClient(serving.port).request("GET", "/v1/requests", "", with("operator")).body);
  EXPECT_EQ(listed[0]["key"], "alice");
  expect_whole(rest_of(*one), 300);
  EXPECT_NE(rest_of(*two).find("data: [DONE]"), std::string::npos);
  EXPECT_TRUE(free_again());

  auto hung_up = begin(stream_of("slow", 5000));
  EXPECT_EQ(hung_up->receive_head().status, 200);
  hung_up.reset();
  EXPECT_TRUE(free_again());
  HttpClient kept(
      serving.port);  // one connection for all requests, because a refused request is over
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(kept.request("POST", "/v1/completions", R"({"prompt":{}})", with("a-secret")).status,
              400);
  }
  EXPECT_EQ(kept.request("POST", "/v1/completions", ask.dump(), with("a-secret")).status, 200);
  EXPECT_TRUE(free_again());
}

}  // namespace
}  // namespace bulkhead::test
