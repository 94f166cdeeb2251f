// Spans in OTLP's JSON, and the queue of those that wait for a collector. tests/integration/traces_test.cpp has a real
// collector.
#include "orchestrator/tracing/span_export.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

GenerationSpan span() {
  GenerationSpan made;
  made.trace_id = std::string(32, 'a');
  made.span_id = std::string(16, 'b');
  made.name = "POST /v1/completions";
  made.began = GenerationSpan::Time(std::chrono::seconds(1'700'000'000));
  made.ended = made.began + std::chrono::seconds(3);
  made.status = 200;
  return made;
}

TEST(OtlpBody, QuotesWhateverAClientOrAModelIsCalled) {
  GenerationSpan odd = span();
  odd.model = "a \"b\"\n\\\x01 \xff";
  const json body = json::parse(otlp_body({odd}, "1.0"));
  const json& sent = body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(sent["attributes"][1]["key"], "gen_ai.request.model");
  EXPECT_NE(sent["attributes"][1]["value"]["stringValue"].get<std::string>().find("a \"b\"\n"),
            std::string::npos);
}

TEST(OtlpBody, HasTheTimesAsNanosecondsAndOnlyKnownParts) {
  GenerationSpan failed = span();
  failed.status = 500;
  GenerationSpan read = span();
  read.first_token = read.began + std::chrono::seconds(2);
  const json body = json::parse(otlp_body({failed, read}, "1.0"));
  const json& sent = body["resourceSpans"][0]["scopeSpans"][0]["spans"];
  ASSERT_EQ(sent.size(), 3U) << "nothing is known of the queue";
  EXPECT_EQ(sent[0]["startTimeUnixNano"], "1700000000000000000");
  EXPECT_EQ(sent[0]["endTimeUnixNano"], "1700000003000000000");
  EXPECT_EQ(sent[0]["status"]["code"], 2);
  EXPECT_FALSE(sent[1].contains("status"));
  EXPECT_EQ(sent[2]["name"], "generation");
  EXPECT_EQ(sent[2]["startTimeUnixNano"], "1700000002000000000");
  EXPECT_EQ(sent[2]["parentSpanId"], sent[1]["spanId"]);
  EXPECT_NE(sent[2]["spanId"], sent[1]["spanId"]);
}

// The kernel accepts the connection and the data, but no program ever answers.
TEST(SpanExport, DropsAndCountsWhatACollectorThatHangsDoesNotTake) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  SpanExport spans({.collector = *config::parse_http_address(
                        "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port))),
                    .version = "1.0",
                    .most_waiting = 3,
                    .most_at_once = 2,
                    .patience = std::chrono::milliseconds(200),
                    .pause = std::chrono::milliseconds(50)});
  for (int i = 0; i < 100; ++i)
    spans.add(span());
  const auto dropped = [&](const std::string& reason) {
    for (const DaemonFigure& each : spans.figures()) {
      if (each.label_value == reason) return each.value;
    }
    return -1.0;
  };
  EXPECT_GE(dropped("no_room"), 100 - 3 - 2 * 20);
  for (int i = 0; i < 600 && dropped("no_room") + dropped("collector") < 100; ++i)
    ::usleep(50'000);
  EXPECT_EQ(dropped("no_room") + dropped("collector"), 100);
  EXPECT_EQ(spans.figures()[0].value, 0);
}

}  // namespace
}  // namespace bulkhead::orchestrator
