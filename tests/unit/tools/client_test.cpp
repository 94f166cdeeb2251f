#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "config/base/unique_fd.hpp"
#include "tools/cli/api.hpp"

namespace bulkhead::cli {
namespace {

using testing::HasSubstr;

// A server with one prepared answer for each connection, in order. It remembers the requests.
class CannedServer {
 public:
  explicit CannedServer(std::vector<std::vector<std::string>> answers)
      : answers_(std::move(answers)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~CannedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Connection connection() const { return {"http://127.0.0.1:" + std::to_string(port_), "a key"}; }
  const std::string& request(std::size_t i) const { return requests_.at(i); }

 private:
  void serve() {
    for (const std::vector<std::string>& pieces : answers_) {
      const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      std::string request;
      char chunk[4096];
      const auto whole = [&] {
        const std::size_t head = request.find("\r\n\r\n");
        if (head == std::string::npos) return false;
        const std::size_t length = request.find("Content-Length: ");
        const std::size_t body =
            length == std::string::npos ? 0 : std::stoul(request.substr(length + 16));
        return request.size() >= head + 4 + body;
      };
      while (!whole()) {
        const ssize_t got = ::read(client.get(), chunk, sizeof chunk);
        if (got <= 0) break;
        request.append(chunk, static_cast<std::size_t>(got));
      }
      requests_.push_back(request);
      for (const std::string& piece : pieces) {
        if (::send(client.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
        std::this_thread::sleep_for(
            std::chrono::milliseconds(5));  // so that the pieces arrive separately
      }
    }
  }

  std::vector<std::vector<std::string>> answers_;
  std::vector<std::string> requests_;
  UniqueFd listener_;
  int port_ = 0;
  std::thread thread_;
};

std::string chunked(const std::string& text) {
  char size[16];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  return size + text + "\r\n";
}

const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string whole_answer(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

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
  for (const char* bad :
       {"https://x", "http://", "http://x:", "http://x:port", "http://x:70000", "http://[::1"}) {
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
  }
}

TEST(Client, NobodyListensSaysHowToStart) {
  HttpClient client = *make_client({"http://127.0.0.1:1", ""});
  const auto response = client.get("/health");
  ASSERT_FALSE(response.ok());
  EXPECT_THAT(response.error().message(),
              HasSubstr("nothing listens on http://127.0.0.1:1; start it with `bulkheadd`"));
}

TEST(Client, GetWithKeyAndWholeBody) {
  CannedServer server({{whole_answer("200 OK", "[1,2]")}});
  HttpClient client = *make_client(server.connection());
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
  HttpClient client = *make_client(server.connection());
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
  HttpClient client = *make_client(server.connection());
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
  HttpClient client = *make_client(server.connection());
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
  HttpClient client = *make_client(server.connection());
  const auto answer =
      stream_answer(client, "/v1/completions", {{"prompt", "x"}}, [](std::string_view) {});
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().message(), "the worker died too often");
}

TEST(Stream, ABrokenOffStreamIsAnErrorAndNotAnEnd) {
  CannedServer server(
      {{kStreamHead, chunked("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")},
       {kStreamHead, chunked("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"), "0\r\n\r\n"}});
  HttpClient client = *make_client(server.connection());
  for (int i = 0; i < 2; ++i) {
    const auto answer =
        stream_answer(client, "/v1/completions", {{"prompt", "x"}}, [](std::string_view) {});
    ASSERT_FALSE(answer.ok());
    EXPECT_THAT(answer.error().message(), HasSubstr("broke off"));
  }
}

void expect_ready(CannedServer& server, const std::string& model = "") {
  HttpClient client = *make_client(server.connection());
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
  HttpClient client = *make_client(server.connection());
  const Status ready = wait_until_ready(client, "");
  ASSERT_FALSE(ready.ok());
  EXPECT_THAT(ready.error().message(), HasSubstr("takes no requests"));
}

}  // namespace
}  // namespace bulkhead::cli
