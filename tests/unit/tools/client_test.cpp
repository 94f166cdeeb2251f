#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/canned_server.hpp"
#include "tools/cli/api.hpp"

namespace bulkhead::cli {
namespace {

using test::CannedServer;
using test::whole_answer;
using testing::HasSubstr;

Connection connection_to(const CannedServer& server) {
  return {server.url(), "a key"};
}

std::string chunked(const std::string& text) {
  char size[16];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  return size + text + "\r\n";
}

const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(Url, PartsAndMistakes) {
  const Url plain = *parse_url("http://127.0.0.1:8484");
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, "8484");
  EXPECT_EQ(plain.prefix, "");
  const Url six = *parse_url("http://[::1]:90/proxy/v1/");
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.port, "90");
  EXPECT_EQ(six.prefix, "/proxy");
  EXPECT_EQ(parse_url("localhost")->port, "80");
  for (const char* bad : {"https://x", "http://", "http://x:", "http://x:port", "http://x:70000",
                          "http://[::1", "ftp://x", "http://user:word@x"}) {
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
  }
  EXPECT_THAT(parse_url("ftp://x").error().message(), HasSubstr("begin with http://"));
  EXPECT_THAT(parse_url("http://user:word@x").error().message(), HasSubstr("--api-key"));
}

TEST(Client, NobodyListensSaysHowToStart) {
  HttpClient client = *make_client({"http://127.0.0.1:1", ""});
  const auto response = client.get("/health");
  ASSERT_FALSE(response.ok());
  EXPECT_THAT(response.error().message(),
              HasSubstr("nothing listens on http://127.0.0.1:1; start it with `bulkheadd`"));
}

TEST(Client, MayBoundTheTimeOfAnAnswer) {
  const std::vector<std::vector<std::string>> no_answers;
  const CannedServer server(no_answers);
  HttpClient client = *make_client(connection_to(server));
  client.answer_within(std::chrono::milliseconds(1));
  for (const Result<HttpResponse>& none : {client.get("/"), client.post("/", "{}")}) {
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(none.error().message(), server.url() + " does not answer within 0.001 s");
  }
}

// A model may take long for its first token, and longer for its last.
TEST(Client, TheTimeOfAStreamHasNoBound) {
  const std::vector<std::string> pieces(20, chunked("data: {\"choices\":[]}\n\n"));
  std::vector<std::string> answer = {kStreamHead};
  answer.insert(answer.end(), pieces.begin(), pieces.end());
  answer.push_back(chunked("data: [DONE]\n\n") + "0\r\n\r\n");
  const CannedServer server({answer});
  HttpClient client = *make_client(connection_to(server));
  client.answer_within(std::chrono::milliseconds(1));
  EXPECT_TRUE(
      stream_answer(client, "/v1/completions", {{"prompt", "x"}}, [](std::string_view) {}).ok());
}

// Who leaves out the port means HTTP's own, and seldom knows it.
TEST(Client, AnErrorNamesThePortThatTheAddressLeavesOut) {
  for (const char* text : {"127.0.0.1", "http://127.0.0.1", "http://127.0.0.1/v1"})
    EXPECT_EQ(with_port(text, *parse_url(text)), std::string(text) + ", port 80");
  EXPECT_EQ(with_port("localhost:81", *parse_url("localhost:81")), "localhost:81");
}

TEST(Client, GetWithKeyAndWholeBody) {
  CannedServer server({{whole_answer("200 OK", "[1,2]")}});
  HttpClient client = *make_client(connection_to(server));
  const auto response = client.get("/v1/workers");
  ASSERT_TRUE(response.ok()) << response.error().message();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "[1,2]");
  EXPECT_THAT(server.request(0), HasSubstr("GET /v1/workers HTTP/1.1\r\n"));
  EXPECT_THAT(server.request(0), HasSubstr("Authorization: Bearer a key\r\n"));
}

TEST(Stream, PiecesArriveInOrderWithTheirEnd) {
  CannedServer server(
      {{kStreamHead, chunked("data: {\"choices\":[{\"text\":\"Once \"}]}\n\nda"),
        chunked(
            "ta: {\"choices\":[{\"delta\":{\"content\":\"upon\"},\"finish_reason\":null}]}\n\n"),
        chunked("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"),
        chunked("data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n"), "0\r\n\r\n"}});
  HttpClient client = *make_client(connection_to(server));
  std::vector<std::string> pieces;
  const auto answer = stream_answer(client, "/v1/completions", {{"prompt", "x"}},
                                    [&](std::string_view text) { pieces.emplace_back(text); });
  ASSERT_TRUE(answer.ok()) << answer.error().message();
  EXPECT_THAT(pieces, testing::ElementsAre("Once ", "upon"));
  EXPECT_EQ(answer->text, "Once upon");
  EXPECT_EQ(answer->finish_reason, "length");
  EXPECT_THAT(server.request(0), HasSubstr("\"stream\":true"));
}

TEST(Stream, IsStoppedThoughTheServerIsAlwaysFaster) {
  const std::string piece = chunked("data: {\"choices\":[{\"text\":\"fast \"}]}\n\n");
  std::string flood;
  for (int i = 0; i < 200'000; ++i)
    flood += piece;
  CannedServer server({{kStreamHead + flood + chunked("data: [DONE]\n\n"), "0\r\n\r\n"}});
  HttpClient client = *make_client(connection_to(server));
  std::size_t pieces = 0;
  const auto answer = stream_answer(client, "/v1/completions", {{"prompt", "x"}},
                                    [&](std::string_view) { interrupted = ++pieces >= 3; });
  interrupted = false;
  ASSERT_TRUE(answer.ok()) << answer.error().message();
  EXPECT_TRUE(answer->interrupted);
  EXPECT_LT(pieces, 100'000U);
}

TEST(Stream, AnErrorStatusGivesTheServersMessage) {
  CannedServer server(
      {{whole_answer("400 Bad Request", R"({"error":{"message":"the prompt is too long"}})")}});
  HttpClient client = *make_client(connection_to(server));
  const auto answer =
      stream_answer(client, "/v1/completions", {{"prompt", "x"}}, [](std::string_view) {});
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().message(), "the prompt is too long");
}

TEST(Stream, AnErrorEventEndsIt) {
  CannedServer server(
      {{kStreamHead, chunked("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"),
        chunked("data: {\"error\":{\"message\":\"the worker died too often\"}}\n\n"),
        "0\r\n\r\n"}});
  HttpClient client = *make_client(connection_to(server));
  const auto answer =
      stream_answer(client, "/v1/completions", {{"prompt", "x"}}, [](std::string_view) {});
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().message(), "the worker died too often");
}

TEST(Stream, ABrokenOffStreamIsAnErrorAndNotAnEnd) {
  CannedServer server(
      {{kStreamHead, chunked("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")},
       {kStreamHead, chunked("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"), "0\r\n\r\n"}});
  HttpClient client = *make_client(connection_to(server));
  for (int i = 0; i < 2; ++i) {
    const auto answer =
        stream_answer(client, "/v1/completions", {{"prompt", "x"}}, [](std::string_view) {});
    ASSERT_FALSE(answer.ok());
    EXPECT_THAT(answer.error().message(), HasSubstr("broke off"));
  }
}

void expect_ready(CannedServer& server, const std::string& model = "") {
  HttpClient client = *make_client(connection_to(server));
  const Status ready = wait_until_ready(client, model);
  EXPECT_TRUE(ready.ok()) << ready.error().message();
}

TEST(Ready, WaitsWhileTheModelLoads) {
  CannedServer server(
      {{whole_answer(
           "503 Service Unavailable",
           R"({"status":"loading","workers":[{"name":"w","stage":"weights","done":1,"total":2}]})")},
       {whole_answer("200 OK", R"({"status":"ok"})")}});
  expect_ready(server);
}

TEST(Ready, ADrainedWorkerIsNotWaitedFor) {
  CannedServer server({{whole_answer(
      "503 Service Unavailable",
      R"({"status":"loading","workers":[{"name":"a","state":"ready"},{"name":"b","state":"drained"}]})")}});
  expect_ready(server);
}

// If one of several models can't be loaded, the others serve.
TEST(Ready, AFailedWorkerIsNotWaitedForAndNoEndOfTheServer) {
  CannedServer server({{whole_answer(
      "503 Service Unavailable",
      R"({"status":"failed","reason":"r","workers":[{"name":"a","state":"ready"},{"name":"b","state":"failed"}]})")}});
  expect_ready(server);
}

TEST(Ready, OnlyTheModelsOwnWorkersAreWaitedFor) {
  CannedServer server({{whole_answer(
      "503 Service Unavailable",
      R"({"status":"loading","workers":[{"name":"a","model":"A","state":"ready"},{"name":"b","model":"B","state":"loading"}]})")}});
  expect_ready(server, "A");
}

TEST(Ready, ADrainingServerIsAnErrorAndNotAWait) {
  CannedServer server({{whole_answer("503 Service Unavailable", R"({"status":"draining"})")}});
  HttpClient client = *make_client(connection_to(server));
  const Status ready = wait_until_ready(client, "");
  ASSERT_FALSE(ready.ok());
  EXPECT_THAT(ready.error().message(), HasSubstr("takes no requests"));
}

}  // namespace
}  // namespace bulkhead::cli
