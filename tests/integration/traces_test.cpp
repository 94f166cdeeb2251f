// Spans of generations reach a collector, a Python program; one that hangs, refuses or is absent costs nothing but
// spans.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "tests/integration/serving.hpp"
#include "tests/support/free_port.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";

class Traces : public testing::Test {
 protected:
  Traces() {
    std::filesystem::create_directories(folder_);
    behave("well");
    pipe_ = ::popen(
        ("exec " OTLP_COLLECTOR " " + folder_ + "/bodies " + folder_ + "/behaviour").c_str(), "re");
    EXPECT_EQ(std::fscanf(pipe_, "%d %d", &port_, &pid_), 2);
  }
  ~Traces() override {
    ::kill(pid_, SIGKILL);
    ::pclose(pipe_);
    std::filesystem::remove_all(folder_);
  }

  void behave(const std::string& how) const {
    std::ofstream(folder_ + "/new") << how;
    std::filesystem::rename(folder_ + "/new", folder_ + "/behaviour");
  }
  static Serving serve_for(int port) {
    return serve({"server.otlp_endpoint=http://127.0.0.1:" + std::to_string(port)});
  }
  static HttpReply generate(const Serving& serving, const std::string& flags) {
    return serving.post("/v1/completions", R"({"prompt": "a \"b\" c", "max_tokens": 3, "seed": 4})",
                        {"traceparent: 00-" + kTrace + "-" + kParent + "-" + flags});
  }
  std::vector<json> spans() const {
    std::vector<json> all;
    std::ifstream file(folder_ + "/bodies");
    for (std::string line; std::getline(file, line) && !file.eof();) {  // the last line may be half
      const json body = json::parse(line);
      EXPECT_EQ(body["resourceSpans"][0]["resource"]["attributes"][0]["value"]["stringValue"],
                "bulkhead");
      for (const json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"])
        all.push_back(span);
    }
    return all;
  }
  bool get_spans(std::size_t count) const {
    return Serving::eventually([&] { return spans().size() >= count; });
  }
  static json attribute(const json& span, const std::string& key) {
    for (const json& each : span["attributes"]) {
      if (each["key"] == key) return *each["value"].begin();
    }
    return nullptr;
  }
  static std::int64_t time(const json& span, const char* which) {
    return std::stoll(span[which].get<std::string>());
  }
  static double dropped(const Serving& serving, const char* reason) {
    return serving.metric("bulkhead_trace_dropped_generations_total{reason=\"" +
                          std::string(reason) + "\"}");
  }

  const std::string folder_ = testing::TempDir() + "traces-" + std::to_string(::getpid());
  std::FILE* pipe_ = nullptr;
  int port_ = 0, pid_ = 0;
};

TEST_F(Traces, HoldASpanOfTheRequestAndOneOfEachPartOfIt) {
  const Serving serving = serve_for(port_);
  HttpReply reply = generate(serving, "01");
  ASSERT_EQ(reply.status, 200) << reply.body;
  ASSERT_TRUE(get_spans(4)) << serving.daemon->log();
  const std::vector<json> all = spans();
  const json& root = all[0];
  EXPECT_EQ(root["traceId"], kTrace);
  EXPECT_EQ(root["parentSpanId"], kParent);
  EXPECT_EQ(root["spanId"], reply.headers["traceparent"].substr(36, 16));
  EXPECT_EQ(root["name"], "POST /v1/completions");
  EXPECT_EQ(root["kind"], 2);
  EXPECT_EQ(attribute(root, "http.response.status_code"), "200");
  EXPECT_EQ(attribute(root, "gen_ai.request.model"), "fake-model");
  EXPECT_EQ(attribute(root, "gen_ai.usage.output_tokens"), "3");
  EXPECT_EQ(attribute(root, "bulkhead.request_id"), reply.headers["x-request-id"]);
  EXPECT_EQ(attribute(root, "bulkhead.end"), "length");
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  EXPECT_LE(time(root, "endTimeUnixNano"), now);
  EXPECT_GT(time(root, "endTimeUnixNano"), now - 600'000'000'000);
  std::int64_t at = time(root, "startTimeUnixNano");
  for (const char* const name : {"queue", "prompt", "generation"}) {
    const auto part = std::ranges::find(all, name, [](const json& span) { return span["name"]; });
    ASSERT_NE(part, all.end()) << name;
    EXPECT_EQ((*part)["traceId"], kTrace);
    EXPECT_EQ((*part)["parentSpanId"], root["spanId"]);
    EXPECT_EQ(time(*part, "startTimeUnixNano"), at) << name;
    at = time(*part, "endTimeUnixNano");
  }
  EXPECT_EQ(at, time(root, "endTimeUnixNano"));
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving.metric("bulkhead_trace_exported_generations_total") == 1; }));

  std::ifstream file(folder_ + "/bodies");
  const std::string bodies{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(bodies.find("a \\\"b"), std::string::npos) << "no span holds a prompt";
}

TEST_F(Traces, FollowTheClientsWishAndBeginWithoutOne) {
  const Serving serving = serve_for(port_);
  EXPECT_EQ(generate(serving, "00").status, 200);  // the client does not record this trace
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 2}}).status, 200);
  EXPECT_EQ(serving.get("/v1/models").status, 200);
  ASSERT_TRUE(get_spans(4));
  for (const json& span : spans())
    EXPECT_NE(span["traceId"], kTrace);
  EXPECT_EQ(spans()[0]["parentSpanId"], "");
  EXPECT_EQ(spans()[0]["traceId"].get<std::string>().size(), 32U);
  EXPECT_EQ(spans().size(), 4U);
}

TEST_F(Traces, AreDroppedWhileTheCollectorHangsOrRefusesAndComeAgain) {
  for (const char* const how : {"hang", "refuse", "babble"}) {
    behave(how);
    const Serving serving = serve_for(port_);
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(generate(serving, "01").status, 200);
    EXPECT_TRUE(Serving::eventually([&] { return dropped(serving, "collector") > 0; })) << how;
    EXPECT_THAT(serving.daemon->log(), HasSubstr("spans are dropped: the collector at 127.0.0.1:"));
    behave("well");
    const std::size_t before = spans().size();
    EXPECT_TRUE(Serving::eventually([&] {
      return generate(serving, "01").status == 200 && spans().size() > before;
    })) << how;
    serving.daemon->signal(SIGTERM);
    EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
  }
}

TEST_F(Traces, OfAnAbsentCollectorFillABoundedQueueAndHoldUpNoEnd) {
  const Serving serving = serve_for(free_port());
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(generate(serving, "01").status, 200);
  EXPECT_TRUE(Serving::eventually([&] { return dropped(serving, "collector") > 0; }));
  EXPECT_EQ(dropped(serving, "no_room"), 0);
  EXPECT_EQ(serving.metric("bulkhead_trace_exported_generations_total"), 0);
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

}  // namespace
}  // namespace bulkhead::test
