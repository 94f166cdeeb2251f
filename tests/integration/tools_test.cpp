// Chats whose answers have parts: reasoning, content and tool calls, as OpenAI's clients get them, whole and
// streamed, and across deaths of the worker.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

constexpr const char* kRaw =
    "<think>\nThey want both.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": "
    "\"clock\", \"arguments\": {}}\n</tool_call>";

json chat(const std::string& text, const std::string& raw = kRaw) {
  json tools = json::array();
  for (const char* name : {"weather", "clock"})
    tools.push_back({{"type", "function"},
                     {"function", {{"name", name}, {"parameters", {{"type", "object"}}}}}});
  return {{"messages", {{{"role", "user"}, {"content", text}}}},
          {"tools", tools},
          {"seed", 11},
          {"chat_template_kwargs", {{"family", "hermes"}, {"raw", raw}}}};
}

json message_of(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return json::parse(reply.body)["choices"][0];
}

// Assembles deltas as clients do.
json assembled(const HttpReply& reply) {
  const Events events = events_of(reply.body);
  EXPECT_TRUE(events.done);
  json message = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", json::array()}};
  std::string finish;
  for (const json& chunk : events.chunks) {
    const json& choice = chunk["choices"][0];
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    const json& delta = choice["delta"];
    for (const char* text : {"content", "reasoning_content"}) {
      if (delta.contains(text))
        message[text] = message[text].get<std::string>() + delta[text].get<std::string>();
    }
    for (const json& call : delta.value("tool_calls", json::array())) {
      const std::size_t index = call["index"];
      json& calls = message["tool_calls"];
      if (index == calls.size()) {
        EXPECT_EQ(call["type"], "function");
        calls.push_back(
            {{"id", call["id"]}, {"name", call["function"]["name"]}, {"arguments", ""}});
      } else {
        EXPECT_EQ(index + 1, calls.size());
        EXPECT_FALSE(call.contains("id")) << "an id comes once";
      }
      json& arguments = calls[index]["arguments"];
      arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
  return {{"message", message}, {"finish_reason", finish}};
}

TEST(ToolCalls, AreParsedFromTheModelsText) {
  Serving serving = serve();
  const HttpReply reply = serving.post("/v1/chat/completions", chat("hi").dump());
  const json choice = message_of(reply);
  const json& message = choice["message"];
  EXPECT_EQ(message["content"], "Let me look.");
  EXPECT_EQ(message["reasoning_content"], "They want both.");
  ASSERT_EQ(message["tool_calls"].size(), 2U);
  const json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "weather");
  EXPECT_EQ(json::parse(call["function"]["arguments"].get<std::string>()),
            (json{{"city", "Oslo"}, {"days", 2}}));
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(json::parse(reply.body)["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

TEST(ToolCalls, ReasoningIsHiddenFromThoseWhoDoNotWantIt) {
  Serving serving = serve();
  json request = chat("hi");
  request["include_reasoning"] = false;
  const HttpReply reply = serving.post("/v1/chat/completions", request.dump());
  const json whole = message_of(reply);
  EXPECT_FALSE(whole["message"].contains("reasoning_content"));
  EXPECT_EQ(whole["message"]["content"], "Let me look.");
  EXPECT_EQ(whole["message"]["tool_calls"].size(), 2U);
  EXPECT_EQ(json::parse(reply.body)["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
  request["stream"] = true;
  const json streamed = assembled(serving.post("/v1/chat/completions", request.dump()));
  EXPECT_EQ(streamed["message"]["reasoning_content"], "");
  EXPECT_EQ(streamed["message"]["content"], "Let me look.");
}

TEST(ToolCalls, WithoutContentItIsNull) {
  Serving serving = serve();
  const json choice = message_of(serving.post(
      "/v1/chat/completions",
      chat("hi", "<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>").dump()));
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_FALSE(choice["message"].contains("reasoning_content"));
}

TEST(ToolCalls, ThatLengthCutsSaySo) {
  Serving serving = serve();
  json request = chat("hi");
  request["max_tokens"] = 24;
  const json choice = message_of(serving.post("/v1/chat/completions", request.dump()));
  EXPECT_EQ(choice["finish_reason"], "length");
}

// The worker dies at each of many tokens: in a mark, in a name, in the middle of arguments.
TEST(ToolCalls, StreamTheSameAcrossDeaths) {
  for (const char* transport : {"shm", "stdio"}) {
    Serving serving = serve({"ipc.transport="s + transport});
    json request = chat("hi");
    const json whole = message_of(serving.post("/v1/chat/completions", request.dump()));
    request["stream"] = true;
    const json calm = assembled(serving.post("/v1/chat/completions", request.dump()));
    EXPECT_EQ(calm["finish_reason"], "tool_calls");
    EXPECT_EQ(calm["message"]["content"], whole["message"]["content"]);
    EXPECT_EQ(calm["message"]["reasoning_content"], whole["message"]["reasoning_content"]);
    ASSERT_EQ(calm["message"]["tool_calls"].size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      const json& call = whole["message"]["tool_calls"][i];
      EXPECT_EQ(calm["message"]["tool_calls"][i]["id"], call["id"]);
      EXPECT_EQ(calm["message"]["tool_calls"][i]["arguments"], call["function"]["arguments"]);
    }
    for (const int token : {2, 9, 14, 18, 23, 27, 31, 36, 40}) {
      const std::string order = "kill@" + std::to_string(token);
      json deadly = chat(order);
      deadly["stream"] = true;
      EXPECT_EQ(assembled(serving.post("/v1/chat/completions", deadly.dump())), calm)
          << transport << " " << order;
    }
  }
}

TEST(ToolCalls, AResumableStreamGoesOnInAnotherDaemon) {
  const std::string folder = testing::TempDir() + "tools_journal_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  const std::vector<std::string> settings = {"isolation.journal_path=" + folder + "/journal"};
  json request = chat("hi");
  request["stream"] = true;
  std::string id;
  json first;
  {
    Serving serving = serve(settings);
    request["resumable"] = true;
    const HttpReply reply = serving.post("/v1/chat/completions", request.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const std::size_t at = reply.body.find("chatcmpl-");
    id = reply.body.substr(at, reply.body.find('"', at) - at);
    first = reply.body;
  }
  Serving again = serve(settings);
  const HttpReply reply = again.get("/v1/requests/" + id + "/events");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.body, first.get<std::string>());
  std::filesystem::remove_all(folder);
}

TEST(ApplyTemplate, ShowsThePromptAndWhatItLacks) {
  Serving serving = serve();
  const HttpReply reply = serving.post("/apply-template", chat("hello").dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = json::parse(reply.body);
  EXPECT_EQ(body["prompt"], "user: hello\n");
  EXPECT_EQ(body["warnings"], json({"a warning"}));
  EXPECT_EQ(serving.post("/apply-template", R"({"messages":"no"})").status, 400);
}

TEST(Warnings, ComeInTheHead) {
  Serving serving = serve();
  for (const bool stream : {false, true}) {
    const json request = {{"messages", {{{"role", "user"}, {"content", "warn"}}}},
                          {"max_tokens", 2},
                          {"stream", stream}};
    const HttpReply reply = serving.post("/v1/chat/completions", request.dump());
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-bulkhead-warning"), "a warning") << stream;
  }
}

}  // namespace
}  // namespace bulkhead::test
