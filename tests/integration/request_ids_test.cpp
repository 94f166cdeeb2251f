// The id of every answer: X-Request-Id has it, and so has the line in the log. Clients of the Messages API
// find it under that API's own names, too.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/resumable.hpp"

namespace bulkhead::test {
namespace {

// Waits for a line of the log with this id and status, and expects that no other line has the id.
void expect_one_line(const Serving& serving, const std::string& id, int status) {
  const std::string begin = "request id=" + id + " endpoint=";
  const std::string told = " status=" + std::to_string(status) + " ";
  std::string log;
  ASSERT_TRUE(Serving::eventually([&] {
    log = serving.daemon->log();
    return log.find(begin) != std::string::npos && log.ends_with('\n');
  })) << id
      << '\n'
      << log;
  const std::size_t at = log.find(begin);
  EXPECT_LT(log.find(told, at), log.find('\n', at)) << id << '\n' << log;
  EXPECT_EQ(log.find(begin, at + 1), std::string::npos) << id;
}

// Expects that the answer has an id of its own, and that its line in the log has the same one.
void expect_named(const Serving& serving, const HttpReply& reply, int status,
                  const std::string& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(reply.status, status) << reply.body;
  const auto field = reply.headers.find("x-request-id");
  ASSERT_NE(field, reply.headers.end());
  EXPECT_TRUE(field->second.starts_with("req_") && field->second.size() == 20) << field->second;
  expect_one_line(serving, field->second, status);
}

HttpReply sent_raw(const Serving& serving, const std::string& bytes) {
  HttpClient client(serving.port);
  client.send_raw(bytes);
  return client.receive();
}

const std::string kPostHead = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
constexpr const char* kMessage = R"({"max_tokens":2,"messages":[{"role":"user","content":"x"}]})";

TEST(RequestIds, EveryAnswerThatGeneratesNothingHasOne) {
  const Serving serving = serve();
  const std::pair<const char*, const char*> posted[] = {
      {"/v1/embeddings", R"({"input":"x"})"},
      {"/api/embed", R"({"input":"x"})"},
      {"/api/embeddings", R"({"prompt":"x"})"},
      {"/v1/rerank", R"({"query":"a","documents":["a"]})"},
      {"/tokenize", R"({"content":"x"})"},
      {"/detokenize", R"({"tokens":[97]})"},
      {"/check-constraint", R"({"regex":"a"})"},
      {"/v1/messages/count_tokens", kMessage},
      {"/v1/responses/input_tokens", R"({"input":"x"})"},
      {"/api/show", R"({"model":"fake-model"})"},
  };
  std::set<std::string> ids;
  for (const auto& [path, body] : posted) {
    HttpReply reply = serving.post(path, body);
    expect_named(serving, reply, 200, path);
    EXPECT_TRUE(ids.insert(reply.headers["x-request-id"]).second) << "two requests have this id";
  }
  for (const char* path : {"/", "/health", "/livez", "/readyz", "/metrics", "/v1/models",
                           "/v1/workers", "/v1/requests", "/api/tags", "/props"}) {
    expect_named(serving, serving.get(path), 200, path);
  }
  expect_named(serving, HttpClient(serving.port).request("OPTIONS", "/v1/models"), 204, "OPTIONS");
}

TEST(RequestIds, EveryRefusalHasOne) {
  const Serving serving = serve({"server.max_queue=1", "server.max_body_mb=1"});
  // The head's and the body's errors, which the connection itself finds.
  expect_named(serving, sent_raw(serving, "NONSENSE\r\n\r\n"), 400, "no HTTP");
  expect_named(serving, sent_raw(serving, "GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400,
               "a broken escape");
  expect_named(serving, sent_raw(serving, "GET /health HTTP/1.1\r\n\r\n"), 400, "no Host");
  expect_named(serving, sent_raw(serving, kPostHead + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
               400, "a broken chunk");
  expect_named(serving, sent_raw(serving, kPostHead + "Content-Length: 9999999\r\n\r\n"), 413,
               "a large body");
  expect_named(serving,
               sent_raw(serving, kPostHead + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n"),
               415, "a compressed body");
  expect_named(serving, sent_raw(serving, kPostHead + "Expect: magic\r\nContent-Length: 2\r\n\r\n"),
               417, "an expectation");
  expect_named(serving, sent_raw(serving, kPostHead + std::string(20000, 'x')), 431, "a long head");
  // The router's and the parsers' errors.
  expect_named(serving, serving.get("/nowhere"), 404, "no endpoint");
  expect_named(serving, serving.get("/v1/models/nothing"), 404, "no model");
  expect_named(serving, serving.get("/v1/requests/cmpl-1/events"), 404, "no stream");
  expect_named(serving, serving.get("/v1/completions"), 405, "GET instead of POST");
  expect_named(serving, serving.post("/api/pull", "{}"), 501, "Ollama's pull");
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/messages",
                           "/v1/messages/count_tokens", "/v1/responses", "/v1/embeddings",
                           "/api/embed", "/api/chat", "/v1/rerank", "/tokenize", "/infill"}) {
    expect_named(serving, serving.post(path, "{"), 400, path);
  }
  expect_named(serving, serving.post("/v1/completions", std::string(100'000, '[')), 400,
               "a body that a thread parses");
  // The worker's errors.
  expect_named(serving, serving.post("/tokenize", R"({"content":"too large"})"), 413, "tokens");
  expect_named(serving, serving.post("/v1/embeddings", R"({"input":"refused"})"), 400, "an input");
  HttpClient waiting(serving.port);
  waiting.send("POST", "/v1/completions", R"({"prompt":"never"})");
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 1; }));
  expect_named(serving, serving.complete({{"prompt", "x"}}), 429, "a full queue");
  expect_named(serving, serving.post("/v1/embeddings", R"({"input":"x"})"), 429, "a full queue");
}

TEST(RequestIds, RefusalsForKeysLimitsAndLackOfWorkersHaveOne) {
  const Serving serving =
      serve({"server.api_key=secret", "server.keys=alice a-secret requests_per_minute=1"});
  const std::string body = R"({"content":"x"})";
  const std::vector<std::string> operators = {"Authorization: Bearer secret"};
  const std::vector<std::string> client = {"Authorization: Bearer a-secret"};
  expect_named(serving, serving.post("/tokenize", body), 401, "no key");
  expect_named(serving, HttpClient(serving.port).request("GET", "/v1/workers", "", client), 403,
               "a client's key");
  expect_named(serving, serving.post("/tokenize", body, client), 200, "the first request");
  expect_named(serving, serving.post("/tokenize", body, client), 429, "the second request");
  expect_named(serving, serving.post("/v1/workers/builtin-0/drain", "", operators), 202, "drain");
  ASSERT_TRUE(Serving::eventually(
      [&] { return serving.post("/tokenize", body, operators).status == 503; }));
  expect_named(serving, serving.post("/tokenize", body, operators), 503, "no worker");
}

// A server behind others would otherwise log what any client wrote.
TEST(RequestIds, AClientCanNotChooseOne) {
  const Serving serving = serve();
  HttpReply reply = serving.post("/tokenize", R"({"content":"x"})", {"X-Request-Id: mine"});
  expect_named(serving, reply, 200, "tokenize");
  EXPECT_NE(reply.headers["x-request-id"], "mine");
}

TEST(RequestIds, AndFieldsOfARequestAreNotThoseOfTheNextOne) {
  const Serving serving = serve();
  HttpClient kept(serving.port);
  const std::string trace = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  HttpReply first = kept.request("POST", "/v1/messages/count_tokens", kMessage, {trace});
  expect_named(serving, first, 200, "the first");
  EXPECT_EQ(first.headers.count("traceparent"), 1U);
  HttpReply second = kept.request("POST", "/tokenize", R"({"content":"x"})");
  expect_named(serving, second, 200, "the second");
  EXPECT_NE(second.headers["x-request-id"], first.headers["x-request-id"]);
  EXPECT_EQ(second.headers.count("request-id"), 0U);
  first = kept.request("POST", "/v1/messages/count_tokens", kMessage, {trace});
  kept.send_raw("NONSENSE\r\n\r\n");
  second = kept.receive();
  expect_named(serving, second, 400, "no HTTP");
  EXPECT_EQ(second.headers.count("traceparent"), 0U) << "the request before had it";
  EXPECT_EQ(second.headers.count("request-id"), 0U) << "the request before had it";
}

// Anthropic's clients read the field `request-id`, and the member `request_id` of an error.
TEST(RequestIds, OfTheMessagesApiHaveItsOwnNames) {
  const Serving serving = serve({"server.max_body_mb=1"});
  const json question = json::parse(kMessage);
  json streamed = question;
  streamed["stream"] = true;
  for (HttpReply reply : {serving.post("/v1/messages", question.dump()),
                          serving.post("/v1/messages", streamed.dump()),
                          serving.post("/v1/messages/count_tokens", kMessage)}) {
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_FALSE(reply.headers["request-id"].empty());
    EXPECT_EQ(reply.headers["request-id"], reply.headers["x-request-id"]);
  }
  json refused = question;
  refused["messages"][0]["content"] = "refused";
  for (HttpReply reply :
       {serving.post("/v1/messages", "{"), serving.post("/v1/messages/count_tokens", "{"),
        serving.post("/v1/messages", refused.dump()), serving.get("/v1/messages"),
        serving.get("/v1/messages/batches"),
        sent_raw(serving,
                 "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
                 "Content-Length: 9999999\r\n\r\n")}) {
    EXPECT_GE(reply.status, 400);
    const std::string id = reply.headers["x-request-id"];
    EXPECT_FALSE(id.empty()) << reply.body;
    EXPECT_EQ(reply.headers["request-id"], id);
    EXPECT_EQ(json::parse(reply.body).value("request_id", ""), id) << reply.body;
  }
  HttpReply other = serving.post("/v1/chat/completions", "{");
  EXPECT_EQ(other.headers.count("request-id"), 0U);
  EXPECT_FALSE(json::parse(other.body).contains("request_id"));
}

// Such a stream has its id in the log from its beginning on; the refusal has the same one.
TEST(RequestIds, OfAResumableStreamThatIsRefusedIsTheOneOfItsLine) {
  const Serving serving = serve();
  json body = stream_with_ids("toolong", 2);
  body["resumable"] = true;
  HttpReply refused = serving.complete(body);
  ASSERT_EQ(refused.status, 400) << refused.body;
  const std::string id = refused.headers["x-request-id"];
  ASSERT_TRUE(id.starts_with("cmpl-")) << id;
  expect_one_line(serving, id, 400);
  EXPECT_EQ(serving.get("/v1/requests/" + id + "/events").status, 404);
}

// Operators see the ids of all requests in progress, and of those that a worker had when it died.
TEST(RequestIds, AreInTheListsOfRequestsAndOfDeaths) {
  const std::string hold = "/tmp/bulkhead-id-hold-" + std::to_string(::getpid());
  std::ofstream(hold) << "";
  const Serving serving = serve({}, {{"FAKE_HOLD", hold}});
  HttpClient client(serving.port);
  client.send("POST", "/v1/embeddings", R"({"input":"hold"})");
  json list;
  EXPECT_TRUE(Serving::eventually([&] {
    list = json::parse(serving.get("/v1/requests").body);
    return list.size() == 1;
  }));
  const std::string id = list[0].value("id", "");
  ::kill(serving.worker()["pid"].get<pid_t>(), SIGKILL);
  EXPECT_TRUE(Serving::eventually([&] {
    list = json::parse(serving.get("/v1/crashes").body);
    return list.size() == 1;
  }));
  EXPECT_EQ(list[0]["requests"], json::array({id}));
  std::filesystem::remove(hold);
  const HttpReply reply = client.receive();
  expect_named(serving, reply, 200, "embeddings");
  EXPECT_EQ(reply.headers.at("x-request-id"), id) << list;
}

}  // namespace
}  // namespace bulkhead::test
