// Ollama's API: what its clients send, and the lines that they get.
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

constexpr const char* kRaw =
    "<think>\nThey ask.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": {\"city\":\n\"Oslo\"}}\n</tool_call>";

json chat(const std::string& text) {
  return {{"model", "any"},
          {"options", {{"seed", 4}, {"num_predict", 1000}, {"num_ctx", 4096}}},
          {"messages",
           {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", text}}}},
          {"tools",
           {{{"type", "function"},
             {"function", {{"name", "weather"}, {"parameters", {{"type", "object"}}}}}}}},
          {"chat_template_kwargs", {{"family", "hermes"}, {"raw", kRaw}}}};
}

// Assembles the lines of a stream as Ollama's clients do.
json assembled(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "application/x-ndjson");
  json whole;
  bool done = false;
  for (std::size_t at = 0; at < reply.body.size();) {
    const std::size_t end = reply.body.find('\n', at);
    const json line = json::parse(reply.body.substr(at, end - at), nullptr, false);
    EXPECT_TRUE(line.is_object()) << reply.body.substr(at, end - at);
    EXPECT_FALSE(done);
    at = end + 1;
    done = line["done"];
    if (whole.is_null()) whole["message"] = {{"role", "assistant"}, {"content", ""}};
    for (const char* name : {"content", "thinking"}) {
      if (line["message"].contains(name))
        whole["message"][name] =
            whole["message"].value(name, "") + line["message"][name].get<std::string>();
    }
    for (const json& call : line["message"].value("tool_calls", json::array()))
      whole["message"]["tool_calls"].push_back(call);
    if (!done) continue;
    for (const auto& [name, value] : line.items())
      if (name != "message") whole[name] = value;
  }
  EXPECT_TRUE(done);
  return whole;
}

// Removes the members that differ from one answer to the next.
json comparable(json answer) {
  for (const char* name :
       {"created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}) {
    EXPECT_TRUE(answer.contains(name)) << name;
    answer.erase(name);
  }
  return answer;
}

TEST(Ollama, ReportsTheTokensLogProbabilities) {
  Serving serving = serve();
  const json options = {{"seed", 4}, {"num_predict", 3}};
  const json plain = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  for (const auto& [path, more] : {std::pair<const char*, json>("/api/chat", plain),
                                   {"/api/generate", {{"prompt", "hi"}}},
                                   {"/api/generate", {{"prompt", "hi"}, {"raw", true}}}}) {
    json body = {{"model", "any"}, {"options", options}, {"logprobs", true}, {"top_logprobs", 2}};
    body.update(more);
    json streamed = json::array();
    const std::string lines = serving.post(path, body.dump()).body;
    for (std::size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
      const json line = json::parse(lines.substr(at, lines.find('\n', at) - at));
      for (const json& each : line.value("logprobs", json::array()))
        streamed.push_back(each);
    }
    ASSERT_EQ(streamed.size(), 3U) << lines;
    EXPECT_EQ(streamed[0]["token"], "s4");
    EXPECT_EQ(streamed[0]["logprob"], -0.5);
    EXPECT_EQ(streamed[0]["bytes"], json({'s', '4'}));
    EXPECT_EQ(streamed[0]["top_logprobs"].size(), 2U);
    body["stream"] = false;
    EXPECT_EQ(json::parse(serving.post(path, body.dump()).body)["logprobs"], streamed);
    body["logprobs"] = false;
    body.erase("top_logprobs");
    EXPECT_FALSE(json::parse(serving.post(path, body.dump()).body).contains("logprobs"));
  }
}

TEST(Ollama, AChatIsOneMessage) {
  Serving serving = serve();
  json body = chat("hi");
  body["stream"] = false;
  const HttpReply reply = serving.post("/api/chat", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json answer = json::parse(reply.body);
  EXPECT_EQ(answer["done"], true);
  EXPECT_EQ(answer["done_reason"], "stop");
  EXPECT_EQ(answer["message"]["role"], "assistant");
  EXPECT_EQ(answer["message"]["thinking"], "They ask.");
  EXPECT_EQ(answer["message"]["content"], "Let me look.");
  ASSERT_EQ(answer["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(answer["message"]["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_EQ(answer["message"]["tool_calls"][0]["function"]["arguments"], (json{{"city", "Oslo"}}));
  EXPECT_EQ(answer["prompt_eval_count"], "system: Be brief.\nuser: hi\n"s.size());
  EXPECT_GT(answer["eval_count"], 0);
  EXPECT_GE(answer["total_duration"], answer["eval_duration"]);
}

TEST(Ollama, StreamsTheSameAcrossDeaths) {
  for (const char* transport : {"shm", "stdio"}) {
    Serving serving = serve({"ipc.transport="s + transport});
    json body = chat("hi");
    const json streamed = comparable(assembled(serving.post("/api/chat", body.dump())));
    body["stream"] = false;
    EXPECT_EQ(comparable(json::parse(serving.post("/api/chat", body.dump()).body)), streamed);
    for (const int token : {3, 12, 17, 21}) {
      json survived = comparable(
          assembled(serving.post("/api/chat", chat("hi kill@" + std::to_string(token)).dump())));
      // The prompt has one order more: to die.
      survived["prompt_eval_count"] = streamed["prompt_eval_count"];
      EXPECT_EQ(survived, streamed) << transport << token;
    }
  }
}

TEST(Ollama, ACallThatIsCutIsLeftOut) {
  Serving serving = serve();
  json body = chat("hi");
  body["options"]["num_predict"] = 20;
  const json answer = assembled(serving.post("/api/chat", body.dump()));
  EXPECT_EQ(answer["done_reason"], "length");
  EXPECT_FALSE(answer["message"].contains("tool_calls")) << answer;
}

TEST(Ollama, AHistoryBecomesAChat) {
  Serving serving = serve();
  json body = chat("look");
  body.erase("chat_template_kwargs");
  body["options"]["num_predict"] = 1;
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content", "One moment."},
       {"thinking", "hm"},
       {"tool_calls", {{{"function", {{"name", "weather"}, {"arguments", {{"city", "Oslo"}}}}}}}}});
  body["messages"].push_back({{"role", "tool"}, {"tool_name", "weather"}, {"content", "rain"}});
  const json answer = assembled(serving.post("/api/chat", body.dump()));
  EXPECT_EQ(answer["prompt_eval_count"],
            "system: Be brief.\nuser: look\nassistant: One moment.\ntool: rain\n"s.size());
  EXPECT_EQ(answer["done_reason"], "length");
}

TEST(Ollama, GeneratesFromAPromptAndFromARawOne) {
  Serving serving = serve();
  json body = {{"model", "any"},
               {"prompt", "tell"},
               {"system", "short"},
               {"stream", false},
               {"options", {{"seed", 4}, {"num_predict", 3}}}};
  json answer = json::parse(serving.post("/api/generate", body.dump()).body);
  EXPECT_EQ(answer["response"], expected_text(4, 3));
  EXPECT_EQ(answer["prompt_eval_count"], "system: short\nuser: tell\n"s.size());
  body.erase("system");
  body["raw"] = true;
  answer = json::parse(serving.post("/api/generate", body.dump()).body);
  EXPECT_EQ(answer["response"], expected_text(4, 3));
  EXPECT_EQ(answer["prompt_eval_count"], "tell"s.size());
  EXPECT_EQ(answer["done_reason"], "length");
}

TEST(Ollama, WithoutWordsItAsksForTheModel) {
  Serving serving = serve();
  for (const char* path : {"/api/chat", "/api/generate"}) {
    const HttpReply reply = serving.post(path, R"({"model":"any","keep_alive":-1})");
    EXPECT_EQ(reply.status, 200);
    const json answer = json::parse(reply.body);
    EXPECT_EQ(answer["done_reason"], "load");
    EXPECT_EQ(answer["done"], true);
  }
}

TEST(Ollama, ListsModels) {
  Serving serving = serve();
  const std::string id = json::parse(serving.get("/v1/models").body)["data"][0]["id"];
  for (const char* path : {"/api/tags", "/api/ps"}) {
    const json models = json::parse(serving.get(path).body)["models"];
    ASSERT_EQ(models.size(), 1U) << path;
    EXPECT_EQ(models[0]["name"], id);
    EXPECT_EQ(models[0]["details"]["family"], "fake");
    EXPECT_EQ(models[0]["details"]["families"], json{"fake"});
    EXPECT_EQ(models[0]["digest"].get<std::string>().size(), 64U);
    EXPECT_EQ(models[0]["details"]["format"], "gguf");
    EXPECT_EQ(models[0]["details"]["parameter_size"], "7.6B");
    EXPECT_EQ(models[0]["details"]["quantization_level"], "Q4_K_M");
  }
  const json shown = json::parse(serving.post("/api/show", json{{"model", id}}.dump()).body);
  EXPECT_EQ(shown["capabilities"], (json{"completion", "tools"}));
  EXPECT_EQ(shown["model_info"]["fake.context_length"], 100000);
  EXPECT_EQ(shown["model_info"]["general.parameter_count"], 7615616512);
  EXPECT_TRUE(json::parse(serving.get("/api/version").body)["version"].is_string());
  EXPECT_EQ(serving.post("/api/pull", R"({"model":"x"})").status, 501);
  HttpClient client(serving.port);
  const HttpReply deleted = client.request("DELETE", "/api/delete", R"({"model":"x"})");
  EXPECT_EQ(deleted.status, 501);
  EXPECT_NE(deleted.body.find("the daemon's configuration names the models"), std::string::npos);
  EXPECT_EQ(serving.post("/api/delete", "{}").status, 405);
}

// `/api/show` lists the values that the model's file recommends if requests use these values.
TEST(Ollama, ShowsTheFilesSamplersIfRequestsGetThem) {
  for (const bool file : {true, false}) {
    const Serving serving =
        serve({std::string("models.0.sampling_defaults=") + (file ? "file" : "api")});
    const std::string id = json::parse(serving.get("/v1/models").body)["data"][0]["id"];
    const json shown = json::parse(serving.post("/api/show", json{{"model", id}}.dump()).body);
    EXPECT_EQ(shown["parameters"], file ? "temperature 0.6\ntop_k 20\nrepeat_penalty 1.05" : "");
    const json params =
        json::parse(serving.get("/props").body)["default_generation_settings"]["params"];
    EXPECT_EQ(params["temperature"], file ? 0.6 : 0.8);
    EXPECT_EQ(params["top_k"], file ? 20 : 40);
    EXPECT_EQ(params.value("repeat_penalty", 1.0), file ? 1.05 : 1.0);
    EXPECT_EQ(params["top_p"], 0.95);
  }
}

TEST(Ollama, ErrorsAreAString) {
  Serving serving = serve({"server.any_model_name=off"});
  const std::string id = json::parse(serving.get("/v1/models").body)["data"][0]["id"];
  EXPECT_EQ(serving.post("/api/show", json{{"model", id + ":latest"}}.dump()).status, 200);
  EXPECT_EQ(serving.post("/api/show", json{{"model", id + ":latest:latest"}}.dump()).status, 404);
  const auto error_of = [](const HttpReply& reply) {
    return json::parse(reply.body)["error"].get<std::string>();
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"messages":5})", "'messages'"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "'messages[0].role'"},
      {R"({"messages":[{"role":"user","content":"x","images":["a"]}]})", "'messages[0].images'"},
      {R"({"options":{"temperature":"hot"}})", "'options.temperature'"},
      {R"({"options":{"mirostat":2}})", "'options.mirostat'"},
      {R"({"options":{"num_predict":"x"}})", "'options.num_predict'"},
      {R"({"format":5})", "'format'"},
      {R"({"think":"deeply"})", "'think'"},
      {R"({"top_logprobs":2})", "'top_logprobs'"},
      {R"({"logprobs":true,"top_logprobs":21})", "'top_logprobs'"},
      {R"({"messages":[{"role":"user","content":"refused"}]})", "chat template"},
  };
  for (const auto& [fields, words] : cases) {
    json body = chat("hi");
    body["model"] = id;
    body.update(json::parse(fields));
    const HttpReply reply = serving.post("/api/chat", body.dump());
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_NE(error_of(reply).find(words), std::string::npos) << reply.body;
  }
  for (const char* fields : {R"({"suffix":"x","system":"y"})", R"({"context":[1,2]})",
                             R"({"template":"x"})", R"({"raw":true,"system":"x"})"}) {
    json body = {{"model", id}, {"prompt", "x"}};
    body.update(json::parse(fields));
    EXPECT_EQ(serving.post("/api/generate", body.dump()).status, 400) << body;
  }
  EXPECT_EQ(serving.post("/api/chat", chat("hi").dump()).status, 404);  // any is no model here
  EXPECT_EQ(serving.post("/api/show", R"({"name":"other"})").status, 404);
}

TEST(Errors, BeforeTheRouteAreInTheFormOfTheirPath) {
  Serving serving = serve({"server.api_key=secret", "server.max_body_mb=1"});
  const std::vector<std::string> key = {"Authorization: Bearer secret"};
  const std::string large(2 << 20, ' ');
  const auto check = [](const HttpReply& reply, int status, bool ollama) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const json body = json::parse(reply.body);
    if (ollama) {
      EXPECT_TRUE(body["error"].is_string()) << reply.body;
    } else {
      EXPECT_EQ(body["type"], "error") << reply.body;
    }
  };
  for (const char* path : {"/api/chat", "/v1/messages"}) {
    const bool ollama = std::string(path) == "/api/chat";
    check(serving.post(path, "{}"), 401, ollama);
    check(serving.post(path + "/nothing"s, "{}", key), 404, ollama);
    check(serving.post(path, large, key), 413, ollama);
    check(HttpClient(serving.port).request("GET", path, "", key), 405, ollama);
    check(serving.post(path, "{}", {key[0], "Origin: http://elsewhere"}), 403, ollama);
  }
}

TEST(Streams, AreKeptAliveWhileNothingComes) {
  const Serving serving = serve({"server.stream_keep_alive_s=1", "server.request_timeout_s=3"});
  const json chat = {{"max_tokens", 1},
                     {"stream", true},
                     {"messages", {{{"role", "user"}, {"content", "never"}}}}};
  json kept = chat;
  kept["resumable"] = true;
  struct Case {
    const char* path;
    json body;
    const char* sign;
  };
  const Case cases[] = {{"/v1/chat/completions", chat, ": alive\n\n"},
                        {"/v1/chat/completions", kept, ": alive\n\n"},
                        {"/v1/messages", chat, "event: ping\n"},
                        {"/api/chat", chat, "\"content\":\"\"},\"done\":false}\n"}};
  std::vector<std::future<HttpReply>> replies;
  for (const Case& each : cases) {
    replies.push_back(std::async(std::launch::async, [&serving, &each] {
      return serving.post(each.path, each.body.dump());
    }));
  }
  for (std::size_t i = 0; i < replies.size(); ++i) {
    const std::string body = replies[i].get().body;
    EXPECT_NE(body.find(cases[i].sign), std::string::npos) << cases[i].path << body;
  }
}

}  // namespace
}  // namespace bulkhead::test
