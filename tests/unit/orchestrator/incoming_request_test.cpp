// Tests of what a connection makes of heads and bodies, and of the heads that it writes.
#include "orchestrator/http/incoming_request.hpp"

#include <gtest/gtest.h>

#include "orchestrator/http/response_head.hpp"

namespace bulkhead::orchestrator {
namespace {

using std::chrono::seconds;

RequestHead head_of(const std::string& target, const std::string& fields = "") {
  auto head = parse_head("POST " + target + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n");
  EXPECT_TRUE(head.ok());
  return head.ok() ? *std::move(head) : RequestHead{};
}

std::string path_of(const std::string& target) {
  const auto request = request_of(head_of(target));
  return request ? request->path : "refused";
}

TEST(IncomingRequest, DecodesThePathOfATarget) {
  EXPECT_EQ(path_of("/v1/models/a%20b%2Fc?x=%2"), "/v1/models/a b/c");
  EXPECT_EQ(path_of("http://host:1/health?deep"), "/health");
  EXPECT_EQ(path_of("https://host"), "/");
  EXPECT_EQ(path_of("/a%2"), "refused");
  EXPECT_EQ(path_of("/a%zz"), "refused");
}

TEST(IncomingRequest, TakesAKeyWhereAnthropicsClientsSendIt) {
  EXPECT_EQ(request_of(head_of("/", "X-Api-Key: k\r\n"))->authorization, "Bearer k");
  EXPECT_EQ(request_of(head_of("/", "X-Api-Key: k\r\nAuthorization: Bearer l\r\n"))->authorization,
            "Bearer l");
}

TEST(IncomingBody, EndsWhereItsHeadSays) {
  std::string text;
  IncomingBody sized(head_of("/", "Content-Length: 5\r\n"), {});
  EXPECT_EQ(*sized.take("abc", text, 100), 3U);
  EXPECT_FALSE(sized.done());
  EXPECT_EQ(*sized.take("deNEXT", text, 100), 2U);
  EXPECT_TRUE(sized.done());
  EXPECT_EQ(text, "abcde");

  text.clear();
  IncomingBody chunked(head_of("/", "Transfer-Encoding: chunked\r\n"), {});
  const std::string bytes = "3\r\nabc\r\n0\r\n\r\n";
  EXPECT_EQ(*chunked.take(bytes + "NEXT", text, 100), bytes.size());
  EXPECT_TRUE(chunked.done());
  EXPECT_EQ(text, "abc");
  EXPECT_TRUE(IncomingBody().done());
}

TEST(IncomingBody, IsGivenUpWhenItIsTooSlow) {
  const IncomingBody::Clock::time_point begin{seconds(1000)};
  IncomingBody body(head_of("/", "Content-Length: 1000000\r\n"), begin);
  body.received(8 * 1024);
  EXPECT_TRUE(body.next_window(begin + seconds(10)));
  body.received(8 * 1024 - 1);
  EXPECT_FALSE(body.next_window(begin + seconds(20)));
  body.received(1 << 20);
  EXPECT_FALSE(body.next_window(begin + seconds(60)));
}

TEST(ResponseHead, HasNoBodyWhereTheStatusHasNone) {
  HttpResponse response{.status = 304, .body = "x", .headers = {{"ETag", "t"}}};
  EXPECT_EQ(response_head(response, {{"Vary", "Origin"}}, "Connection: close\r\n"),
            "HTTP/1.1 304 Not Modified\r\nETag: t\r\nVary: Origin\r\nConnection: close\r\n\r\n");
  response.status = 200;
  EXPECT_EQ(response_head(response, {}, ""),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\nETag: t\r\n"
            "\r\n");
}

TEST(ResponseHead, OfAStreamNamesItsCoding) {
  EXPECT_EQ(stream_head("text/event-stream", {}, true, "X-Request-Id: id\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
            "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\nX-Request-Id: id\r\n\r\n");
}

}  // namespace
}  // namespace bulkhead::orchestrator
