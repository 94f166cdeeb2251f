// One line in the log for every request, in both formats, and the trace that a request belongs to.
#include <algorithm>
#include <sstream>

#include "tests/integration/resumable.hpp"

namespace bulkhead::test {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";
const std::string kField = "traceparent: 00-" + kTrace + "-" + kParent + "-01";

// Returns the lines of requests in a log that is written as JSON.
std::vector<json> request_lines(const Serving& serving) {
  std::vector<json> lines;
  std::istringstream log(serving.daemon->log());
  for (std::string line; std::getline(log, line);) {
    const json parsed = json::parse(line, nullptr, false);
    if (parsed.is_object() && parsed.value("message", "") == "request") lines.push_back(parsed);
  }
  return lines;
}

std::vector<json> lines_of(const Serving& serving, const std::string& endpoint) {
  std::vector<json> lines = request_lines(serving);
  std::erase_if(lines, [&](const json& line) { return line["endpoint"] != endpoint; });
  return lines;
}

TEST(RequestLines, EveryRequestHasOneWithItsFieldsAsMembers) {
  const Serving serving = serve({"log.format=json"});
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_EQ(serving.get("/v1/models").status, 200);
  EXPECT_EQ(serving.get("/nowhere").status, 404);
  EXPECT_EQ(serving.post("/tokenize", R"({"content": "ab"})").status, 200);
  EXPECT_EQ(serving.post("/v1/chat/completions", "{").status, 400);
  HttpClient(serving.port).send_raw("NONSENSE\r\n\r\n");
  const HttpReply whole = serving.complete({{"prompt", "x"}, {"max_tokens", 2}});
  EXPECT_EQ(whole.status, 200);
  ASSERT_TRUE(Serving::eventually([&] { return request_lines(serving).size() >= 7; }))
      << serving.daemon->log();

  const std::vector<json> lines = request_lines(serving);
  EXPECT_EQ(lines.size(), 7U) << json(lines).dump(1);
  for (const json& line : lines) {
    EXPECT_TRUE(line["id"].is_string()) << line;
    EXPECT_TRUE(line["status"].is_number()) << line;
    EXPECT_TRUE(line["total_ms"].is_number()) << line;
    EXPECT_FALSE(line.contains("trace_id")) << line;
  }
  EXPECT_EQ(lines_of(serving, "/health").at(0)["method"], "GET");
  EXPECT_EQ(lines_of(serving, "/tokenize").at(0)["status"], 200);
  EXPECT_EQ(lines_of(serving, "/v1/chat/completions").at(0)["status"], 400);
  EXPECT_EQ(lines_of(serving, "unknown").size(), 2U) << "no such path, and no HTTP at all";
  const json answer = lines_of(serving, "/v1/completions").at(0);
  EXPECT_EQ(answer["id"], json::parse(whole.body)["id"]);
  EXPECT_EQ(answer["model"], "fake-model");
  EXPECT_EQ(answer["stream"], false);
  EXPECT_EQ(answer["end"], "length");
  EXPECT_EQ(answer["completion_tokens"], 2);
  EXPECT_TRUE(answer["ttft_ms"].is_number());
}

// An operator who looks for the reason of a 413 needs the endpoint.
TEST(RequestLines, OfARefusedBodyHaveTheEndpointAndTheTrace) {
  const Serving serving = serve({"log.format=json", "server.max_body_mb=1"});
  const std::string head = "POST /v1/models/load HTTP/1.1\r\nHost: localhost\r\n";
  HttpClient(serving.port).send_raw(head + kField + "\r\nContent-Length: 9999999\r\n\r\n");
  HttpClient client(serving.port);
  EXPECT_EQ(client.request("POST", "/tokenize", R"({"content": "ab"})").status, 200);
  client.send_raw("NONSENSE\r\n\r\n");
  EXPECT_EQ(client.receive().status, 400);
  ASSERT_TRUE(Serving::eventually([&] { return request_lines(serving).size() >= 3; }))
      << serving.daemon->log();
  const json refused = lines_of(serving, "/v1/models/load").at(0);
  EXPECT_EQ(refused["status"], 413);
  EXPECT_EQ(refused["method"], "POST");
  EXPECT_EQ(refused["trace_id"], kTrace);
  const json nonsense = lines_of(serving, "unknown").at(0);
  EXPECT_EQ(nonsense["status"], 400);
  EXPECT_FALSE(nonsense.contains("method")) << "that is the method of the request before";
}

TEST(RequestLines, NameTheClientsKeyWhateverTheAnswerIs) {
  const Serving serving = serve({"log.format=json", "server.api_key=operator",
                                 "server.keys=alice a-secret requests_per_minute=1"});
  const std::string key = "Authorization: Bearer a-secret";
  const std::string ask = R"({"prompt": "x", "max_tokens": 1})";
  const auto get = [&](const std::string& path, const std::string& field) {
    return HttpClient(serving.port).request("GET", path, "", {field}).status;
  };
  EXPECT_EQ(serving.post("/v1/completions", ask, {key}).status, 200);
  EXPECT_EQ(serving.post("/v1/completions", ask, {key}).status, 429);
  EXPECT_EQ(serving.post("/v1/completions", ask, {key, "Content-Encoding: gzip"}).status, 415);
  EXPECT_EQ(get("/v1/models", key), 200);
  EXPECT_EQ(get("/v1/workers", key), 403);
  EXPECT_EQ(get("/nowhere", key), 404);
  EXPECT_EQ(get("/v1/models", "Authorization: Bearer operator"), 200);
  ASSERT_TRUE(Serving::eventually([&] { return request_lines(serving).size() >= 7; }))
      << serving.daemon->log();
  const std::vector<json> lines = request_lines(serving);
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_EQ(lines[i].value("key", ""), "alice") << lines[i];
  EXPECT_FALSE(lines[6].contains("key")) << lines[6];
}

// The line has the reason that the client was told. The model itself broke the second call: OpenAI's protocols tell
// that as if a limit had cut the answer, the others end as after a whole call.
TEST(RequestLines, SayHowTheClientWasToldThatTheAnswerEnded) {
  const Serving serving = serve({"log.format=json"});
  const std::string whole = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  const std::string broken = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": Oslo";
  const json function = {{"name", "f"}, {"parameters", {{"type", "object"}}}};
  const json tools = {{{"type", "function"}, {"function", function}}};
  const json tool = {{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}};
  const json question = {{{"role", "user"}, {"content", "x"}}};
  const json anthropic = {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}};
  struct Row {
    const char* endpoint;
    json body;
    const char* after_broken;
  };
  const Row rows[] = {
      {"/v1/chat/completions", {{"messages", question}, {"tools", tools}}, "length"},
      {"/v1/responses", {{"input", question}, {"tools", {tool}}}, "length"},
      {"/v1/messages",
       {{"messages", question}, {"tools", anthropic}, {"max_tokens", 99}},
       "tool_calls"},
      {"/api/chat", {{"messages", question}, {"tools", tools}, {"stream", false}}, "tool_calls"},
  };
  for (const Row& row : rows) {
    for (const bool breaks : {false, true}) {
      json body = row.body;
      body["chat_template_kwargs"] = {{"raw", breaks ? broken : whole}};
      const HttpReply reply = serving.post(row.endpoint, body.dump());
      ASSERT_EQ(reply.status, 200) << reply.body;
      const std::size_t number = breaks ? 1 : 0;
      const auto lines = [&] { return lines_of(serving, row.endpoint); };
      ASSERT_TRUE(Serving::eventually([&] { return lines().size() > number; }));
      EXPECT_EQ(lines()[number]["end"], breaks ? row.after_broken : "tool_calls")
          << row.endpoint << ' ' << reply.body;
    }
  }
}

// A request's time begins when its head has come, however long its body takes.
TEST(RequestLines, CountARequestsTimeFromItsArrival) {
  const Serving serving = serve({"log.format=json", "server.request_timeout_s=1"});
  const json question = {{"prompt", "slow"}, {"max_tokens", 20}};
  for (const int wait_ms : {300, 1100}) {
    const std::string body = question.dump();
    HttpClient client(serving.port);
    client.send_raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                    std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, 5));
    EXPECT_EQ(serving.get("/livez").status, 200);  // the head has been read, too
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    client.send_raw(body.substr(5));
    const HttpReply reply = client.receive();
    if (wait_ms > 1000) {
      EXPECT_EQ(reply.status, 504) << reply.body;
    }
    const auto line = [&] { return lines_of(serving, "/v1/completions"); };
    const std::size_t number = wait_ms > 1000 ? 1 : 0;
    ASSERT_TRUE(Serving::eventually([&] { return line().size() > number; }));
    EXPECT_GE(line()[number]["total_ms"].get<double>(), wait_ms);
  }
}

TEST(RequestLines, AreWordsInALogOfText) {
  const Serving serving = serve();
  HttpReply reply = serving.get("/health");
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.daemon->log().find("info: request id=" + reply.headers["x-request-id"] +
                                      " endpoint=/health method=GET status=200 total_ms=") !=
           std::string::npos;
  })) << serving.daemon->log();
}

TEST(RequestLines, HaveTheTraceThatTheAnswerHasToo) {
  const Serving serving = serve({"log.format=json"});
  const json body = {{"prompt", "x"}, {"max_tokens", 1}};
  json streamed = body;
  streamed["stream"] = true;
  for (HttpReply reply : {HttpClient(serving.port).request("GET", "/health", "", {kField}),
                          serving.post("/tokenize", R"({"content": "ab"})", {kField}),
                          serving.post("/v1/completions", body.dump(), {kField}),
                          serving.post("/v1/completions", streamed.dump(), {kField}),
                          serving.post("/v1/completions", "{", {kField})}) {
    const std::string field = reply.headers["traceparent"];
    ASSERT_EQ(field.size(), 55U) << field;
    EXPECT_EQ(field.substr(0, 36), "00-" + kTrace + "-");
    EXPECT_NE(field.substr(36, 16), kParent) << "the request is a span of its own";
    EXPECT_EQ(field.substr(52), "-01");
    EXPECT_TRUE(Serving::eventually([&] {
      return std::ranges::any_of(request_lines(serving), [&](const json& line) {
        return line.value("trace_id", "") == kTrace && line.value("parent_id", "") == kParent &&
               line.value("span_id", "") == field.substr(36, 16);
      });
    })) << field
        << serving.daemon->log();
  }
  HttpReply without =
      HttpClient(serving.port).request("GET", "/health", "", {"traceparent: 00-ab"});
  EXPECT_EQ(without.headers.count("traceparent"), 0U);
}

TEST(RequestLines, AStreamThatGoesOnStaysInItsTrace) {
  const std::string journal = "/tmp/bulkhead-trace-journal-" + std::to_string(::getpid());
  std::filesystem::remove_all(journal);
  const std::vector<std::string> settings = {"log.format=json",
                                             "isolation.journal_path=" + journal};
  Serving serving = serve(settings);
  ResumableClient client;
  std::string field;
  {
    HttpClient first(serving.port);
    json request = stream_with_ids("slow", 300);
    request["resumable"] = true;
    ASSERT_TRUE(first.send("POST", "/v1/completions", request.dump(), {kField}));
    HttpReply head = first.receive_head();
    ASSERT_EQ(head.status, 200);
    client.id = head.headers["x-request-id"];
    field = head.headers["traceparent"];
    client.read_events(first, 20);
    serving.daemon->signal(SIGKILL);
    EXPECT_EQ(serving.daemon->wait_for_exit(), -SIGKILL);
  }
  serving = serve(settings);
  HttpClient second(serving.port);
  ASSERT_TRUE(second.send("GET", "/v1/requests/" + client.id + "/events", "", {}));
  HttpReply head = second.receive_head();
  EXPECT_EQ(head.headers["traceparent"], field) << "the reader sent none";
  client.data.clear();
  client.rest.clear();
  client.read_to_end(second);
  EXPECT_TRUE(Serving::eventually([&] {
    return std::ranges::any_of(lines_of(serving, "/v1/completions"), [&](const json& line) {
      return line.value("recovered", false) && line.value("trace_id", "") == kTrace &&
             line.value("span_id", "") == field.substr(36, 16) &&
             line.value("method", "") == "POST";
    });
  })) << serving.daemon->log();
  EXPECT_EQ(serving.metric("bulkhead_time_to_first_token_seconds_count"), 0)
      << "the first daemon has counted it";
  std::filesystem::remove_all(journal);
}

}  // namespace
}  // namespace bulkhead::test
