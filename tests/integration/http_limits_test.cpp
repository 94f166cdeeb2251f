// Bad input, limits, the key, and clients that stall or leave.
#include <fstream>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

void expect_error_shape(const HttpReply& reply, const std::string& what) {
  json body = json::parse(reply.body, nullptr, false);
  ASSERT_FALSE(body.is_discarded()) << what << ": " << reply.body;
  ASSERT_TRUE(body.contains("error")) << what;
  EXPECT_TRUE(body["error"]["message"].is_string()) << what;
  EXPECT_TRUE(body["error"]["type"].is_string()) << what;
  EXPECT_TRUE(body["error"].contains("param")) << what;
  EXPECT_TRUE(body["error"].contains("code")) << what;
}

struct Malformed {
  std::string bytes;
  int status;
};
const std::string kHostLine = "Host: 127.0.0.1\r\n";

std::string posted(const std::string& body, const std::string& path = "/v1/completions") {
  return "POST " + path + " HTTP/1.1\r\n" + kHostLine +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::vector<Malformed> malformed_http() {
  return {
      {"GARBAGE\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\n\r\n", 400},
      {"GET /health HTTP/9.9\r\n" + kHostLine + "\r\n", 400},
      {"GET  /health  HTTP/1.1\r\n" + kHostLine + "\r\n", 400},
      {"GET /health HTTP/1.1\r\n" + kHostLine + kHostLine + "\r\n", 400},
      {"GET /health HTTP/1.1\r\n" + kHostLine + "no colon here\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\n" + kHostLine + "Bad Name: x\r\n\r\n", 400},
      {std::string("GET /health HTTP/1.1\r\n") + kHostLine + "X: a\0b\r\n\r\n"s, 400},
      {"GET /%zz HTTP/1.1\r\n" + kHostLine + "\r\n", 400},
      {"GET /nothing HTTP/1.1\r\n" + kHostLine + "\r\n", 404},
      {"POST /health HTTP/1.1\r\n" + kHostLine + "Content-Length: 0\r\n\r\n", 405},
      {"GET /v1/completions HTTP/1.1\r\n" + kHostLine + "\r\n", 405},
      {"DELETE /v1/models HTTP/1.1\r\n" + kHostLine + "\r\n", 405},
      {"PROPFIND /v1/models HTTP/1.1\r\n" + kHostLine + "\r\n", 405},
      {"POST /v1/completions HTTP/1.1\r\n" + kHostLine + "Content-Length: -5\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + kHostLine + "Content-Length: many\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + kHostLine +
           "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
       400},
      {"POST /v1/completions HTTP/1.1\r\n" + kHostLine + "Content-Length: 99999999999\r\n\r\n{}",
       413},
      {"POST /v1/completions HTTP/1.1\r\n" + kHostLine + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
       400},
      {"POST /v1/completions HTTP/1.1\r\n" + kHostLine +
           "Expect: magic\r\nContent-Length: 2\r\n\r\n",
       417},
      {"GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n" + kHostLine + "\r\n", 431},
      {"GET /health HTTP/1.1\r\n" + kHostLine + "X: " + std::string(20000, 'a') + "\r\n\r\n", 431},
  };
}

std::vector<Malformed> malformed_json() {
  return {
      {posted(""), 400},
      {posted("{"), 400},
      {posted("nonsense"), 400},
      {posted("[]"), 400},
      {posted("{\"prompt\":\"x\"} trailing"), 400},
      {posted("{\"prompt\":\"\xff\xfe\"}"), 400},
      {posted(R"({"prompt":"\ud800"})"), 400},
      {posted(R"({"prompt":"x","temperature":1e999})"), 400},
      {posted(std::string(100000, '[')), 400},
      {posted("{\"a\":" + std::string(5000, '{')), 400},
  };
}

std::vector<Malformed> malformed_fields() {
  return {
      {posted("{}"), 400},
      {posted(R"({"prompt":5})"), 400},
      {posted(R"({"prompt":[]})"), 400},
      {posted(R"({"prompt":[1,"a"]})"), 400},
      {posted(R"({"prompt":[-1]})"), 400},
      {posted(R"({"prompt":"x","max_tokens":0})"), 400},
      {posted(R"({"prompt":"x","max_tokens":"many"})"), 400},
      {posted(R"({"prompt":"x","temperature":-1})"), 400},
      {posted(R"({"prompt":"x","top_p":2})"), 400},
      {posted(R"({"prompt":"x","n":129})"), 400},
      {posted(R"({"prompt":"x","stop":[""]})"), 400},
      {posted(R"({"prompt":"x","stream":"yes"})"), 400},
      {posted(R"({"prompt":"x","logit_bias":{"a":1}})"), 400},
      {posted(R"({"messages":[]})", "/v1/chat/completions"), 400},
      {posted(R"({"messages":[{"role":"wizard","content":"x"}]})", "/v1/chat/completions"), 400},
      {posted(R"({"messages":[{"role":"user"}]})", "/v1/chat/completions"), 400},
      {posted(R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]})",
              "/v1/chat/completions"),
       400},
      {posted(R"({"tokens":"x"})", "/detokenize"), 400},
      {posted(R"({"prompt":"x","model":"other"})"), 404},
      {posted("{}", "/v1/workers/nobody/restart"), 404},
  };
}

TEST(BadInput, EveryMalformedRequestIsA4xxInTheErrorsShape) {
  Serving serving = serve({"server.any_model_name=off"});
  for (const auto& cases : {malformed_http(), malformed_json(), malformed_fields()}) {
    EXPECT_GE(cases.size(), 10U);
    for (const Malformed& each : cases) {
      HttpClient client(serving.port);
      client.send_raw(each.bytes);
      HttpReply reply = client.receive();
      std::string what = each.bytes.substr(0, 150);
      EXPECT_EQ(reply.status, each.status) << what << "\n" << reply.body;
      expect_error_shape(reply, what);
    }
  }
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_EQ(serving.worker()["restarts"], 0);
}

TEST(Limits, BodyOverTheLimitIs413) {
  Serving serving = serve({"server.max_body_mb=1"});
  std::string body = R"({"prompt":")" + std::string(1100 * 1024, 'x') + "\"}";
  HttpReply reply = serving.post("/v1/completions", body);
  EXPECT_EQ(reply.status, 413);
  expect_error_shape(reply, "body");
  // Sent in chunks, so there is no length by which to refuse it at once.
  HttpClient client(serving.port);
  client.send_raw(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
  for (int i = 0; i < 20; ++i)
    client.send_raw(chunk);
  EXPECT_EQ(client.receive().status, 413);
}

TEST(Limits, BodyWithinTheLimitArrives) {
  Serving serving = serve({"server.max_body_mb=4"});
  std::string prompt(3 * 1024 * 1024, 'x');
  HttpReply reply = serving.complete({{"prompt", "toolong" + prompt}});
  EXPECT_EQ(reply.status, 400) << reply.body;  // the worker saw it and refused it
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "context_length_exceeded");
  HttpClient client(serving.port);
  client.send_raw(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n1f\r\n{\"prompt\":\"x\",\"max_tokens\":1, }\r\n0\r\n\r\n");
  EXPECT_EQ(client.receive().status, 400);
  HttpClient good(serving.port);
  good.send_raw(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n10\r\n{\"prompt\":\"xyz\",\r\nf\r\n\"max_tokens\":1}\r\n0\r\n\r\n");
  EXPECT_EQ(good.receive().status, 200);
}

TEST(Limits, CompressedBodiesAreNoBrokenJson) {
  Serving serving = serve();
  const std::string body = R"({"prompt":"x","max_tokens":1})";
  const HttpReply reply = serving.post("/v1/completions", body, {"Content-Encoding: gzip"});
  EXPECT_EQ(reply.status, 415);
  expect_error_shape(reply, "Content-Encoding");
  EXPECT_EQ(serving.post("/v1/completions", body, {"Content-Encoding: identity"}).status, 200);
}

TEST(Limits, ContinueIsSentWhenExpected) {
  Serving serving = serve();
  HttpClient client(serving.port);
  std::string body = R"({"prompt":"x","max_tokens":1})";
  client.send_raw(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: "
      "100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.receive_head().status, 100);
  client.send_raw(body);
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Limits, FullQueueIs429AndEmptiesAgain) {
  Serving serving = serve({"server.max_queue=2"});
  HttpClient first(serving.port), second(serving.port);
  first.send("POST", "/v1/completions", R"({"prompt":"never"})");
  second.send("POST", "/v1/completions", R"({"prompt":"never"})");
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 2; }));
  HttpReply reply = serving.complete({{"prompt", "x"}});
  EXPECT_EQ(reply.status, 429);
  EXPECT_FALSE(reply.headers["retry-after"].empty());
  expect_error_shape(reply, "queue");
  EXPECT_NE(reply.body.find("server.max_queue allows 2"), std::string::npos) << reply.body;
  first.hang_up();
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 1; }));
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
}

TEST(Limits, MoreChoicesThanTheQueueEverTakesAreNotToBeTriedAgain) {
  Serving serving = serve({"server.max_queue=2"});
  const HttpReply reply = serving.complete({{"prompt", {"x", "y"}}, {"n", 2}, {"max_tokens", 1}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.headers.count("retry-after"), 0U);
  expect_error_shape(reply, "4 answers");
  const std::string message = json::parse(reply.body)["error"]["message"];
  EXPECT_NE(message.find("asks for 4 answers"), std::string::npos) << message;
  EXPECT_NE(message.find("server.max_queue allows 2"), std::string::npos) << message;
}

// Evaluation harnesses send their prompts in large batches.
TEST(Limits, ACompletionTakesAThousandPrompts) {
  const Serving serving = serve();
  json body = {{"prompt", std::vector<std::string>(1024, "x")}, {"max_tokens", 2}, {"seed", 4}};
  const HttpReply reply = serving.complete(body);
  ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 300);
  const json choices = json::parse(reply.body)["choices"];
  ASSERT_EQ(choices.size(), 1024U);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    EXPECT_EQ(choices[i]["text"], expected_text(4, 2));
  }
  body["stream"] = true;
  const Events events = events_of(serving.complete(body).body);
  EXPECT_TRUE(events.done);
  std::vector<std::string> texts(1024);
  for (const json& chunk : events.chunks) {
    const json& choice = chunk["choices"][0];
    texts.at(choice["index"].get<std::size_t>()) += choice["text"].get<std::string>();
  }
  EXPECT_EQ(texts, std::vector<std::string>(1024, expected_text(4, 2)));
  body["prompt"] = std::vector<std::string>(1025, "x");
  const HttpReply refused = serving.complete(body);
  EXPECT_EQ(refused.status, 400);
  const json error = json::parse(refused.body)["error"];
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_NE(error["message"].get<std::string>().find("more than 1024 prompts"), std::string::npos)
      << error;
}

TEST(Limits, OneRequestMayAskForALimitedNumberOfAnswers) {
  const Serving serving = serve({"server.max_choices=3"});
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"n", 3}, {"max_tokens", 2}}).status, 200);
  const HttpReply reply = serving.complete({{"prompt", {"x", "y"}}, {"n", 2}, {"max_tokens", 2}});
  EXPECT_EQ(reply.status, 400);
  expect_error_shape(reply, "server.max_choices");
}

TEST(Limits, RequestTimeoutIs504OrAnEvent) {
  Serving serving = serve({"server.request_timeout_s=1"});
  HttpReply reply = serving.complete({{"prompt", "never"}});
  EXPECT_EQ(reply.status, 504);
  expect_error_shape(reply, "timeout");
  reply = serving.complete({{"prompt", "slow"}, {"max_tokens", 90000}, {"stream", true}});
  EXPECT_EQ(reply.status, 200);
  Events events = events_of(reply.body);
  EXPECT_FALSE(events.done);
  EXPECT_EQ(events.chunks.back()["error"]["code"], "timeout");
  EXPECT_EQ(serving.worker()["outstanding_requests"], 0);
}

TEST(Clients, HangUpCancelsTheSequence) {
  for (bool stream : {false, true}) {
    Serving serving = serve();
    HttpClient client(serving.port);
    client.send("POST", "/v1/completions",
                json({{"prompt", "slow"}, {"max_tokens", 90000}, {"stream", stream}}).dump());
    ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 1; }));
    client.hang_up();
    EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 0; }));
    EXPECT_EQ(serving.metric("bulkhead_clients_lost_total{reason=\"hung_up\"}"), 1);
    EXPECT_EQ(serving.worker()["restarts"], 0);
  }
}

TEST(Clients, SlowOneLosesItsStreamAndOthersGoOn) {
  Serving serving = serve();
  HttpClient slow(serving.port, 4096);
  slow.send("POST", "/v1/completions",
            json({{"prompt", "big"}, {"max_tokens", 90000}, {"stream", true}}).dump());
  json other =
      json::parse(serving.complete({{"prompt", "x"}, {"max_tokens", 500}, {"seed", 2}}).body);
  EXPECT_EQ(other["choices"][0]["text"], expected_text(2, 500));
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving.metric("bulkhead_clients_lost_total{reason=\"slow\"}") == 1; }));
  EXPECT_EQ(serving.worker()["outstanding_requests"], 0);
  EXPECT_TRUE(slow.closed_by_server());
}

TEST(Clients, SlowOnesFillNothingButTheirOwnBuffers) {
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    Serving serving = serve({transport});
    auto memory_kib = [&](const std::string& name) {
      std::ifstream status("/proc/" + std::to_string(serving.daemon->pid()) + "/status");
      for (std::string word; status >> word;) {
        if (word == name + ":") {
          status >> word;
          return std::stol(word);
        }
      }
      return -1L;
    };
    const long before = memory_kib("VmRSS");
    // Each would be sent 100 MB, but reads nothing.
    std::vector<std::unique_ptr<HttpClient>> slow;
    for (int i = 0; i < 8; ++i) {
      slow.push_back(std::make_unique<HttpClient>(serving.port, 4096));
      slow.back()->send("POST", "/v1/completions",
                        json({{"prompt", "big"}, {"max_tokens", 90000}, {"stream", true}}).dump());
    }
    for (int i = 0; i < 4; ++i) {
      json other =
          json::parse(serving.complete({{"prompt", "x"}, {"max_tokens", 500}, {"seed", 2}}).body);
      EXPECT_EQ(other["choices"][0]["text"], expected_text(2, 500));
    }
    EXPECT_TRUE(Serving::eventually(
        [&] { return serving.metric("bulkhead_clients_lost_total{reason=\"slow\"}") == 8; }));
    EXPECT_EQ(serving.worker()["outstanding_requests"], 0);
    // The daemon may hold 1 MiB of each stream, in a string that doubles as it grows, and what it keeps of the tokens
    // that went into the kernel's buffers. That is far from 100 MB.
    const long grown = memory_kib("VmHWM") - before;
    EXPECT_LT(grown, 8 * 10 * 1024);
    RecordProperty("grown_kib", static_cast<int>(grown));
    EXPECT_EQ(serving.worker()["restarts"], 0);
  }
}

TEST(Clients, SlowOneWithinTheLimitGetsAllOfItsStreamAndNobodyWaitsForIt) {
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    Serving serving = serve({transport, "ipc.ring_kib=16"});
    constexpr int kTokens = 600;  // 0.7 MB of events: many rings and socket buffers
    HttpClient slow(serving.port, 4096);
    slow.send("POST", "/v1/completions",
              json({{"prompt", "big"},
                    {"max_tokens", kTokens},
                    {"stream", true},
                    {"return_token_ids", true}})
                  .dump());
    ASSERT_EQ(slow.receive_head().status, 200);
    ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 0; }))
        << "the worker waits for a client";
    for (int i = 0; i < 4; ++i) {
      HttpReply reply = serving.complete({{"prompt", "x"}, {"max_tokens", 500}, {"seed", 2}});
      EXPECT_EQ(json::parse(reply.body)["choices"][0]["text"], expected_text(2, 500));
    }
    // The client reads only now.
    std::string body;
    while (auto chunk = slow.receive_chunk()) {
      if (chunk->empty()) break;
      body += *chunk;
    }
    Events events = events_of(body);
    EXPECT_TRUE(events.done);
    std::vector<int> ids;
    for (const json& chunk : events.chunks) {
      for (int id : chunk["choices"][0]["token_ids"])
        ids.push_back(id);
    }
    EXPECT_EQ(ids, expected_ids(kTokens));
    EXPECT_EQ(serving.metric("bulkhead_clients_lost_total{reason=\"slow\"}"), 0);
  }
}

TEST(Clients, ConnectionsOfGoneClientsAreReleased) {
  Serving serving = serve();
  for (int i = 0; i < 100; ++i) {
    HttpClient silent(serving.port), impatient(serving.port), satisfied(serving.port);
    impatient.send("POST", "/v1/completions", R"({"prompt":"x","max_tokens":2})");
    satisfied.send("POST", "/v1/completions", R"({"prompt":"x","max_tokens":2,"stream":true})");
    satisfied.receive_head();
  }
  // The connection that asks counts, too.
  EXPECT_TRUE(Serving::eventually([&] { return serving.metric("bulkhead_connections") == 1; }));
  EXPECT_EQ(serving.worker()["outstanding_requests"], 0);
}

TEST(Clients, PipelinedRequestsAreAnsweredInOrder) {
  Serving serving = serve();
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions",
              json({{"prompt", "slow"}, {"max_tokens", 5}, {"seed", 1}}).dump());
  client.send("GET", "/health");
  EXPECT_EQ(json::parse(client.receive().body)["choices"][0]["text"], expected_text(1, 5));
  EXPECT_EQ(json::parse(client.receive().body)["status"], "ok");
}

TEST(Clients, OldHttpGetsAStreamThatEndsWithTheConnection) {
  Serving serving = serve();
  HttpClient client(serving.port);
  std::string body = R"({"prompt":"x","max_tokens":2,"seed":1,"stream":true})";
  client.send_raw("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + body);
  HttpReply reply = client.receive();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(events_of(reply.body).done);
}

TEST(ApiKey, IsAskedForEverywhereButHealth) {
  Serving serving = serve({}, {{"BULKHEAD_API_KEY", "secret"}});
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_EQ(serving.get("/v1/models").status, 401);
  EXPECT_EQ(serving.get("/metrics").status, 401);
  HttpReply reply = serving.post("/v1/completions", R"({"prompt":"x","max_tokens":1})");
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.headers["www-authenticate"], "Bearer");
  expect_error_shape(reply, "key");
  EXPECT_EQ(
      serving.post("/v1/completions", R"({"prompt":"x"})", {"Authorization: Bearer wrong"}).status,
      401);
  EXPECT_EQ(
      serving.post("/v1/completions", R"({"prompt":"x"})", {"Authorization: Bearer secretsecret"})
          .status,
      401);
  EXPECT_EQ(serving
                .post("/v1/completions", R"({"prompt":"x","max_tokens":1})",
                      {"Authorization: Bearer secret"})
                .status,
            200);
}

}  // namespace
}  // namespace bulkhead::test
