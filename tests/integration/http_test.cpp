// The endpoints' behaviour over real sockets, in front of the scripted worker.
#include <unistd.h>

#include <filesystem>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

TEST(Completions, AnswerHasTextUsageAndFinishReason) {
  Serving serving = serve();
  HttpReply reply = serving.complete(
      {{"prompt", "hello"}, {"max_tokens", 3}, {"seed", 7}, {"return_token_ids", true}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  json body = json::parse(reply.body);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "fake-model");
  EXPECT_EQ(body["choices"][0]["text"], "s7 t1 t2!");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][0]["token_ids"], json({1000, 1001, 1002}));
  EXPECT_EQ(body["choices"][0]["prompt_token_ids"], json({'h', 'e', 'l', 'l', 'o'}));
  EXPECT_EQ(body["usage"], json({{"prompt_tokens", 5},
                                 {"completion_tokens", 3},
                                 {"total_tokens", 8},
                                 {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
}

// With this id, a client's report can be matched to the daemon's log.
TEST(Completions, EveryAnswerHasTheIdThatTheLogHas) {
  Serving serving = serve();
  HttpReply whole = serving.complete({{"prompt", "x"}, {"max_tokens", 1}});
  EXPECT_EQ(whole.headers["x-request-id"], json::parse(whole.body)["id"]);
  HttpReply stream = serving.complete({{"prompt", "x"}, {"max_tokens", 1}, {"stream", true}});
  EXPECT_EQ(stream.headers["x-request-id"], events_of(stream.body).chunks.front()["id"]);
  HttpReply refused = serving.complete({{"prompt", "toolong"}});
  EXPECT_EQ(refused.status, 400);
  for (HttpReply* each : {&whole, &stream, &refused}) {
    const std::string id = each->headers["x-request-id"];
    EXPECT_TRUE(id.starts_with("cmpl-")) << id;
    EXPECT_TRUE(Serving::eventually([&] {
      return serving.daemon->log().find("request id=" + id) != std::string::npos;
    })) << id;
  }
}

TEST(Completions, UsageShowsWhatTheWorkersCacheHad) {
  Serving serving = serve();
  json body = json::parse(
      serving.complete({{"prompt", "hello cached@9"}, {"n", 2}, {"max_tokens", 3}}).body);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 14) << "told once, however many answers";
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 9);
  // The successor may find in its cache what its predecessor computed for the same request.
  body =
      json::parse(serving.complete({{"prompt", "hello cached@9 kill@2"}, {"max_tokens", 3}}).body);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST(Completions, EchoThePromptWithItsLogProbabilities) {
  const std::string died = "/tmp/bulkhead-halfway-" + std::to_string(::getpid());
  const Serving serving = serve({}, {{"FAKE_HOLD", died}});
  const std::string prompt = "echo halfway@6 me";
  json body = {{"prompt", prompt}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}};
  const json whole = json::parse(serving.complete(body).body);
  const json choice = whole["choices"][0];
  EXPECT_TRUE(std::filesystem::remove(died)) << "its worker did not die";
  EXPECT_EQ(choice["text"], prompt);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 0);
  ASSERT_EQ(choice["logprobs"]["tokens"].size(), prompt.size());
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][0], nullptr);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], nullptr);
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -0.25);
  EXPECT_EQ(choice["logprobs"]["text_offset"][5], 5);
  // The answer is streamed, the prompt is given as tokens, and another answer follows.
  body = {{"prompt", {104, 105}}, {"max_tokens", 2}, {"seed", 4}, {"echo", true}, {"stream", true}};
  for (const bool logprobs : {false, true}) {
    if (logprobs) body["logprobs"] = 0;
    std::string text;
    json values = json::array();
    for (const json& chunk : events_of(serving.complete(body).body).chunks) {
      text += chunk["choices"][0]["text"].get<std::string>();
      if (!chunk["choices"][0]["logprobs"].is_object()) continue;
      for (const json& value : chunk["choices"][0]["logprobs"]["token_logprobs"])
        values.push_back(value);
    }
    EXPECT_EQ(text, "hi" + expected_text(4, 2));
    if (logprobs) {
      EXPECT_EQ(values, (json{nullptr, -0.25, -0.5, -0.5}));
    }
  }
  body["resumable"] = true;
  EXPECT_EQ(serving.complete(body).status, 400);
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 0}}).status, 400);
}

// The scripted worker shows the gap as [].
TEST(Completions, ASuffixMakesThePromptAGapToFill) {
  const Serving serving = serve();
  const HttpReply reply = serving.complete(
      {{"prompt", "fits@20 ab"}, {"suffix", "cd"}, {"max_tokens", 2}, {"seed", 4}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body)["choices"][0]["text"], expected_text(4, 2));
  EXPECT_EQ(json::parse(reply.body)["usage"]["prompt_tokens"], "fits@20 ab[]cd"s.size());
  const HttpReply ollama = serving.post(
      "/api/generate",
      R"({"prompt":"ab","suffix":"cd","stream":false,"options":{"num_predict":2,"seed":4}})");
  EXPECT_EQ(json::parse(ollama.body)["response"], expected_text(4, 2)) << ollama.body;
  EXPECT_EQ(json::parse(ollama.body)["prompt_eval_count"], 6);
}

TEST(Completions, EveryPieceHasTheSameFingerprint) {
  const Serving serving = serve();
  const std::string fingerprint =
      json::parse(serving.complete({{"prompt", "a b c"}}).body).at("system_fingerprint");
  EXPECT_EQ(fingerprint.substr(0, 3), "fp_");
  const Events events = events_of(serving.complete({{"prompt", "d e f"}, {"stream", true}}).body);
  ASSERT_FALSE(events.chunks.empty());
  for (const json& chunk : events.chunks)
    EXPECT_EQ(chunk.at("system_fingerprint"), fingerprint);
}

TEST(Completions, StreamHasTheSameTextAndEndsWithDone) {
  Serving serving = serve();
  HttpReply reply = serving.complete({{"prompt", "hello eos@20"},
                                      {"seed", 7},
                                      {"stream", true},
                                      {"return_token_ids", true},
                                      {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(reply.headers["content-type"].starts_with("text/event-stream"));
  EXPECT_TRUE(reply.complete);
  Events events = events_of(reply.body);
  EXPECT_TRUE(events.done);
  std::string text, finish;
  std::vector<int> ids, prompt_ids;
  for (const json& chunk : events.chunks) {
    if (chunk["choices"].empty()) continue;
    const json& choice = chunk["choices"][0];
    text += choice["text"].get<std::string>();
    for (int id : choice["token_ids"])
      ids.push_back(id);
    if (choice.contains("prompt_token_ids"))
      prompt_ids = choice["prompt_token_ids"].get<std::vector<int>>();
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    EXPECT_TRUE(chunk["usage"].is_null());
  }
  EXPECT_EQ(text, expected_text(7, 20));
  EXPECT_EQ(ids, expected_ids(20));
  EXPECT_EQ(prompt_ids.size(), std::string("hello eos@20").size());
  EXPECT_EQ(finish, "stop");
  EXPECT_EQ(events.chunks.back()["usage"]["completion_tokens"], 20);
}

TEST(Chat, StreamBeginsWithTheRole) {
  Serving serving = serve();
  HttpReply reply = serving.post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"developer","content":"be brief"},{"role":"user","content":[{"type":"text","text":"hi"}]}],
                                     "stream":true,"max_completion_tokens":4,"seed":1,"user":"me","metadata":{}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  Events events = events_of(reply.body);
  ASSERT_GE(events.chunks.size(), 3U);
  EXPECT_EQ(events.chunks[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events.chunks[0]["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (const json& chunk : events.chunks)
    text += chunk["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(text, expected_text(1, 4));
  EXPECT_EQ(events.chunks.back()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.chunks.back()["choices"][0]["delta"], json::object());
  EXPECT_TRUE(events.done);
}

TEST(Chat, AnswerIsAMessage) {
  Serving serving = serve();
  HttpReply reply = serving.post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"seed":5,"logprobs":true,"top_logprobs":2})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  json body = json::parse(reply.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "s5 t1!");
  const json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[1]["token"], " t1");
  EXPECT_EQ(content[1]["top_logprobs"].size(), 2U);
  EXPECT_EQ(content[1]["top_logprobs"][1]["token"], "bytes:\\xe2\\x82");
  EXPECT_EQ(content[1]["top_logprobs"][1]["bytes"], json({0xe2, 0x82}));
}

TEST(Completions, LogprobsHaveTheOldShape) {
  Serving serving = serve();
  json body = json::parse(
      serving.complete({{"prompt", "x"}, {"max_tokens", 3}, {"seed", 5}, {"logprobs", 1}}).body);
  const json& logprobs = body["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"s5", " t1", " t2"}));
  EXPECT_EQ(logprobs["token_logprobs"].size(), 3U);
  EXPECT_EQ(logprobs["text_offset"], json({0, 2, 5}));
  EXPECT_EQ(logprobs["top_logprobs"][0]["a0"], -0.5);
}

TEST(Completions, ChoicesHaveSeedsOfTheirOwn) {
  Serving serving = serve();
  json body = json::parse(
      serving.complete({{"prompt", {"a", "b"}}, {"n", 2}, {"max_tokens", 1}, {"seed", 40}}).body);
  ASSERT_EQ(body["choices"].size(), 4U);
  EXPECT_EQ(body["choices"][0]["text"], "s40!");
  EXPECT_EQ(body["choices"][1]["text"], "s41!");
  EXPECT_EQ(body["choices"][3]["text"], "s41!");
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["usage"], json({{"prompt_tokens", 2},
                                 {"completion_tokens", 4},
                                 {"total_tokens", 6},
                                 {"prompt_tokens_details", {{"cached_tokens", 0}}}}));

  HttpReply reply = serving.complete(
      {{"prompt", "a"}, {"n", 2}, {"max_tokens", 3}, {"seed", 40}, {"stream", true}});
  std::string texts[2];
  for (const json& chunk : events_of(reply.body).chunks) {
    texts[chunk["choices"][0]["index"].get<int>()] +=
        chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(texts[0], expected_text(40, 3));
  EXPECT_EQ(texts[1], expected_text(41, 3));
}

TEST(Completions, AbsentSeedIsDrawn) {
  Serving serving = serve();
  auto answer = [&] {
    return json::parse(
        serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).body)["choices"][0]["text"];
  };
  EXPECT_NE(answer(), answer());
}

TEST(Completions, PromptAsTokenIds) {
  Serving serving = serve();
  json body = json::parse(
      serving.complete({{"prompt", {5, 6, 7}}, {"max_tokens", 1}, {"return_token_ids", true}})
          .body);
  EXPECT_EQ(body["prompt_token_ids"], json({5, 6, 7}));
}

TEST(Completions, WorkersRefusalIsAStatusEvenWhenStreaming) {
  Serving serving = serve();
  HttpReply reply = serving.complete({{"prompt", "toolong"}, {"stream", true}});
  EXPECT_EQ(reply.status, 400);
  json error = json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(serving.complete({{"prompt", "refused"}}).status, 400);
}

TEST(Models, ListOneAndUnknown) {
  Serving serving = serve();
  json list = json::parse(serving.get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "fake-model");
  EXPECT_EQ(json::parse(serving.get("/v1/models/fake%2Dmodel").body)["object"], "model");
  EXPECT_EQ(serving.get("/v1/models/other").status, 404);
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"model", "fake-model"}, {"max_tokens", 1}}).status,
            200);
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"model", "Fake-Model"}, {"max_tokens", 1}}).status,
            200);
}

// Most clients have a built-in model name. While one model is served, such a name can't be confused with another one.
TEST(Models, AnyNameIsTakenForTheOnlyOne) {
  const json request = {{"prompt", "x"}, {"model", "gpt-4"}, {"max_tokens", 1}};
  Serving serving = serve();
  HttpReply reply = serving.complete(request);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(json::parse(reply.body)["model"], "fake-model");

  Serving strict = serve({"server.any_model_name=off"});
  reply = strict.complete(request);
  EXPECT_EQ(reply.status, 404);
  const json error = json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["message"], "The model 'gpt-4' does not exist; this server has: fake-model.");
}

TEST(Paths, MeanWhatTheyNearlySay) {
  Serving serving = serve();
  const std::string body = R"({"prompt":"x","max_tokens":1})";
  for (const char* path : {"/completions", "/v1/completions/", "/v1//completions",
                           "//v1/completions", "/v1/v1/completions"})
    EXPECT_EQ(serving.post(path, body).status, 200) << path;
  EXPECT_EQ(serving.get("/models").status, 200);
  HttpReply reply = serving.post("/v1/complete", body);
  EXPECT_EQ(reply.status, 404);
  EXPECT_NE(reply.body.find("Ollama's http://HOST:PORT;"), std::string::npos) << reply.body;
  EXPECT_NE(reply.body.find("http://HOST:PORT/v1"), std::string::npos) << reply.body;
}

TEST(Service, HealthWorkersAndMetrics) {
  Serving serving = serve();
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_EQ(json::parse(serving.get("/health").body)["status"], "ok");
  serving.complete({{"prompt", "x"}, {"max_tokens", 5}});
  json worker = serving.worker();
  EXPECT_EQ(worker["state"], "ready");
  EXPECT_EQ(worker["restarts"], 0);
  EXPECT_TRUE(worker["last_death"].is_null());
  EXPECT_EQ(worker["name"], "builtin-0");
  EXPECT_EQ(serving.metric("bulkhead_requests_total{endpoint=\"/v1/completions\",status=\"200\"}"),
            1);
  EXPECT_EQ(serving.metric("bulkhead_tokens_total{kind=\"completion\"}"), 5);
  EXPECT_EQ(serving.metric("bulkhead_worker_fallback_allocations_total{worker=\"builtin-0\"}"), 3);
  EXPECT_EQ(serving.metric("bulkhead_time_to_first_token_seconds_count"), 1);
  const std::string text = serving.get("/metrics").body;
  EXPECT_EQ(text.find("Bad name"), std::string::npos);
  EXPECT_EQ(serving.metric("bulkhead_prefill_time_seconds_count"), 1);
  // A worker can't take over the name, the value or the type of a figure that the daemon counts
  // itself.
  EXPECT_NE(text.find("# TYPE bulkhead_worker_restarts_total counter"), std::string::npos);
  EXPECT_EQ(serving.metric("bulkhead_worker_restarts_total{worker=\"builtin-0\",cause=\"signal\"}"),
            0);
  EXPECT_EQ(text.find("bulkhead_worker_deaths_total{worker="), std::string::npos);
  EXPECT_EQ(serving.metric("bulkhead_worker_deaths_total{cause=\"signal\",worker=\"builtin-0\"}"),
            0);
}

TEST(Service, LoadIsTheNumberOfUnfinishedRequests) {
  Serving serving = serve();
  const auto load = [&] { return json::parse(serving.get("/load").body)["server_load"]; };
  EXPECT_EQ(load(), 0);
  HttpClient stream(serving.port);
  stream.send("POST", "/v1/completions",
              json{{"prompt", "slow"}, {"max_tokens", 5000}, {"stream", true}}.dump());
  EXPECT_EQ(stream.receive_head().status, 200);
  EXPECT_EQ(load(), 1);
}

TEST(Service, FiguresShowTokensPerRecordAndWakeUpsPerToken) {
  for (const char* transport : {"shm", "stdio"}) {
    SCOPED_TRACE(transport);
    Serving serving = serve({"ipc.transport="s + transport});
    const std::string label = "{worker=\"builtin-0\"}";
    const auto figure = [&](const std::string& name) {
      return serving.metric("bulkhead_ipc_" + name + label);
    };
    EXPECT_EQ(figure("tokens_received_total"), 0);
    EXPECT_EQ(figure("tokens_per_record"), 0);

    // One stream: each record has one token.
    ASSERT_EQ(serving.complete({{"prompt", "slow"}, {"max_tokens", 10}}).status, 200);
    EXPECT_EQ(figure("tokens_received_total"), 10);
    EXPECT_EQ(figure("token_records_received_total"), 10);
    EXPECT_EQ(figure("tokens_per_record"), 1);
    const double woken = figure("wakeups_total");
    EXPECT_GT(woken, 0);
    EXPECT_EQ(figure("wakeups_per_token"), woken / 10);
    const double bytes = figure("bytes_received_total");
    EXPECT_GT(bytes, 0);

    // Four streams at once: each record has one token of each.
    ASSERT_EQ(serving.complete({{"prompt", "slow"}, {"max_tokens", 10}, {"n", 4}}).status, 200);
    EXPECT_EQ(figure("tokens_received_total"), 50);
    EXPECT_GT(figure("tokens_per_record"), 1.5);
    EXPECT_GT(figure("wakeups_total"), woken);
    EXPECT_LT(figure("wakeups_per_token"), woken / 10);
    EXPECT_GT(figure("bytes_received_total"), bytes);
    EXPECT_GT(figure("max_depth_bytes"), 0);
    EXPECT_EQ(figure("depth_bytes"), 0);
    EXPECT_EQ(figure("full_stalls_total"), 0);

    const json ipc = serving.worker()["ipc"];
    EXPECT_EQ(ipc["transport"], transport);
    EXPECT_EQ(ipc["tokens_received"], 50);
    EXPECT_NEAR(ipc["tokens_per_record"], figure("tokens_per_record"), 0.001);
    EXPECT_GE(ipc["wakeups"], woken);
    EXPECT_EQ(ipc["depth_bytes"], 0);
  }
}

TEST(Service, KeepAliveServesManyRequestsOnOneConnection) {
  Serving serving = serve();
  HttpClient client(serving.port);
  for (int i = 0; i < 5; ++i) {
    HttpReply reply = client.request("POST", "/v1/completions",
                                     json({{"prompt", "x"}, {"max_tokens", 2}}).dump());
    ASSERT_EQ(reply.status, 200);
    ASSERT_TRUE(reply.complete);
  }
  EXPECT_EQ(client.request("GET", "/health").status, 200);
  EXPECT_EQ(client.request("HEAD", "/health").status, 200);
  EXPECT_EQ(client.request("GET", "/v1/models").status, 200);
}

// OpenAI's JavaScript client needs that with the Node.js of Debian 12; see begin_stream().
TEST(Service, AStreamIsTheLastOnItsConnection) {
  Serving serving = serve();
  HttpClient client(serving.port);
  HttpReply reply =
      client.request("POST", "/v1/completions",
                     json({{"prompt", "x"}, {"max_tokens", 2}, {"stream", true}}).dump());
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers["connection"], "close");
  EXPECT_EQ(reply.headers["transfer-encoding"], "chunked");
  EXPECT_TRUE(reply.complete);
  char byte = 0;
  EXPECT_EQ(::recv(client.fd(), &byte, 1, 0), 0) << "the connection is still open";
}

TEST(Service, StdioTransportGivesTheSame) {
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    Serving serving = serve({transport});
    HttpReply reply = serving.complete(
        {{"prompt", "x"}, {"max_tokens", 50}, {"seed", 3}, {"return_token_ids", true}});
    json body = json::parse(reply.body);
    EXPECT_EQ(body["choices"][0]["text"], expected_text(3, 50)) << transport;
    EXPECT_EQ(body["choices"][0]["token_ids"], json(expected_ids(50))) << transport;
  }
}

TEST(Service, ManyStreamsAtOnce) {
  Serving serving = serve();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 32; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send(
        "POST", "/v1/completions",
        json({{"prompt", "x"}, {"max_tokens", 200}, {"seed", i}, {"stream", true}}).dump());
  }
  for (int i = 0; i < 32; ++i) {
    std::string text;
    for (const json& chunk :
         events_of(clients[static_cast<std::size_t>(i)]->receive().body).chunks) {
      text += chunk["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text, expected_text(static_cast<std::uint64_t>(i), 200));
  }
}

TEST(Service, SeveralModelsNeedAName) {
  Serving serving = serve({"models.0.path=/a/one.gguf", "models.1.path=/a/two.gguf",
                           "models.0.name=one", "models.1.name=two"});
  const HttpReply unnamed = serving.complete({{"prompt", "x"}, {"max_tokens", 1}});
  EXPECT_EQ(unnamed.status, 400);
  EXPECT_NE(unnamed.body.find("name one: one, two."), std::string::npos) << unnamed.body;
  EXPECT_EQ(
      json::parse(
          serving.complete({{"prompt", "x"}, {"max_tokens", 1}, {"model", "two"}}).body)["model"],
      "two");
  EXPECT_EQ(json::parse(serving.get("/v1/models").body)["data"].size(), 2U);
}

}  // namespace
}  // namespace bulkhead::test
