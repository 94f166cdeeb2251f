// Anthropic's Messages API: what its clients send, and the blocks and events that they get.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

constexpr const char* kRaw =
    "<think>\nThey ask.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": "
    "{\"city\": \"Oslo\"}}\n</tool_call>";

json request(const std::string& text) {
  return {{"model", "any"},
          {"max_tokens", 1000},
          {"seed", 4},
          {"system",
           {{{"type", "text"}, {"text", "x-anthropic-billing-header: cch=81f0;"}},
            {{"type", "text"}, {"text", "Be brief."}}}},
          {"messages", {{{"role", "user"}, {"content", text}}}},
          {"tools", {{{"name", "weather"}, {"input_schema", {{"type", "object"}}}}}},
          {"chat_template_kwargs", {{"family", "hermes"}, {"raw", kRaw}}}};
}

struct Event {
  std::string name;
  json data;
};
std::vector<Event> named_events(const std::string& body) {
  std::vector<Event> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t line = body.find('\n', at), end = body.find("\n\n", at);
    EXPECT_TRUE(body.substr(at).starts_with("event: "));
    const std::string data = body.substr(line + 1, end - line - 1);
    EXPECT_TRUE(data.starts_with("data: ")) << data;
    events.push_back({body.substr(at + 7, line - at - 7), json::parse(data.substr(6))});
    EXPECT_EQ(events.back().data["type"], events.back().name);
    at = end + 2;
  }
  return events;
}

// Assembles a message as Anthropic's clients do.
json assembled(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  json message;
  std::string input;
  bool over = false;
  for (const Event& event : named_events(reply.body)) {
    EXPECT_FALSE(over);
    const json& data = event.data;
    if (event.name == "message_start") {
      message = data["message"];
    } else if (event.name == "content_block_start") {
      EXPECT_EQ(data["index"], message["content"].size());
      message["content"].push_back(data["content_block"]);
      input.clear();
    } else if (event.name == "content_block_delta") {
      json& block = message["content"].at(data["index"].get<std::size_t>());
      const json& delta = data["delta"];
      for (const char* text : {"text", "thinking", "signature"}) {
        if (delta.contains(text))
          block[text] = block[text].get<std::string>() + delta[text].get<std::string>();
      }
      if (delta.contains("partial_json")) input += delta["partial_json"].get<std::string>();
    } else if (event.name == "content_block_stop") {
      json& block = message["content"].back();
      if (block["type"] == "tool_use") block["input"] = json::parse(input);
    } else if (event.name == "message_delta") {
      message.update(data["delta"]);
      message["usage"] = data["usage"];
    } else {
      EXPECT_EQ(event.name, "message_stop");
      over = true;
    }
  }
  EXPECT_TRUE(over);
  message.erase("id");
  return message;
}

TEST(Messages, AnAnswerIsBlocks) {
  Serving serving = serve();
  const HttpReply reply = serving.post("/v1/messages", request("hi").dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json message = json::parse(reply.body);
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  ASSERT_EQ(message["content"].size(), 3U);
  EXPECT_EQ(message["content"][0]["thinking"], "They ask.");
  EXPECT_EQ(message["content"][1],
            (json{{"type", "text"}, {"text", "Let me look."}, {"citations", nullptr}}));
  EXPECT_EQ(message["content"][2]["name"], "weather");
  EXPECT_EQ(message["content"][2]["input"], (json{{"city", "Oslo"}}));
  EXPECT_GT(message["usage"]["input_tokens"], 0);
}

// The types of Anthropic's clients have no optional members.
TEST(Messages, AnswersHaveEveryMemberOfTheClientsTypes) {
  const auto expect = [](const json& object, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      EXPECT_TRUE(object.contains(name)) << name << " of " << object;
  };
  const std::vector<std::string> of_message = {
      "id",    "type",        "role",         "model",       "content",      "container",
      "usage", "diagnostics", "stop_details", "stop_reason", "stop_sequence"};
  const std::vector<std::string> of_usage = {"input_tokens",
                                             "cache_creation_input_tokens",
                                             "cache_read_input_tokens",
                                             "output_tokens",
                                             "cache_creation",
                                             "inference_geo",
                                             "output_tokens_details",
                                             "server_tool_use",
                                             "service_tier",
                                             "speed"};
  Serving serving = serve();
  const json whole = json::parse(serving.post("/v1/messages", request("hi").dump()).body);
  expect(whole, of_message);
  expect(whole["usage"], of_usage);
  EXPECT_GT(whole["usage"]["output_tokens_details"]["thinking_tokens"], 0);
  json streamed = request("hi");
  streamed["stream"] = true;
  json blocks = whole["content"];
  for (const Event& event : named_events(serving.post("/v1/messages", streamed.dump()).body)) {
    if (event.name == "message_start") {
      expect(event.data["message"], of_message);
      expect(event.data["message"]["usage"], of_usage);
    } else if (event.name == "content_block_start") {
      blocks.push_back(event.data["content_block"]);
    } else if (event.name == "message_delta") {
      expect(event.data["delta"], {"container", "stop_details", "stop_reason", "stop_sequence"});
      expect(event.data["usage"], of_usage);
    }
  }
  ASSERT_EQ(blocks.size(), 6U);
  for (const json& block : blocks) {
    if (block["type"] == "text") expect(block, {"text", "citations"});
    if (block["type"] == "thinking") expect(block, {"thinking", "signature"});
    if (block["type"] == "tool_use") {
      expect(block, {"id", "name", "input"});
      EXPECT_EQ(block["caller"], (json{{"type", "direct"}}));
    }
  }
  // Clients send the blocks back as they are.
  json next = request("and then?");
  next["messages"] = {{{"role", "user"}, {"content", "hi"}},
                      {{"role", "assistant"}, {"content", whole["content"]}},
                      {{"role", "user"},
                       {"content",
                        {{{"type", "tool_result"},
                          {"tool_use_id", whole["content"][2]["id"]},
                          {"content", "rain"}}}}}};
  EXPECT_EQ(serving.post("/v1/messages", next.dump()).status, 200);
}

// The arguments that the model wrote are not JSON. Nothing of the call is lost, whether whole or streamed.
TEST(Messages, ACallWithBrokenArgumentsIsThereAndSaysSo) {
  Serving serving = serve();
  json body = request("hi");
  const std::string broken = "{\"city\": Oslo}";
  body["chat_template_kwargs"]["raw"] =
      "<tool_call>{\"name\": \"weather\", \"arguments\": " + broken + "}</tool_call>";
  const HttpReply reply = serving.post("/v1/messages", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json message = json::parse(reply.body);
  EXPECT_EQ(message["stop_reason"], "tool_use");
  ASSERT_EQ(message["content"].size(), 1U) << reply.body;
  EXPECT_EQ(message["content"][0]["name"], "weather");
  EXPECT_EQ(message["content"][0]["input"], (json{{"INVALID_JSON", broken}}));
  body["stream"] = true;
  std::string input, reason;
  for (const Event& event : named_events(serving.post("/v1/messages", body.dump()).body)) {
    const json delta = event.data.value("delta", json::object());
    input += delta.value("partial_json", "");
    reason = delta.value("stop_reason", reason);
  }
  EXPECT_EQ(input, broken);
  EXPECT_EQ(reason, "tool_use");
}

TEST(Messages, StreamTheSameAcrossDeaths) {
  for (const char* transport : {"shm", "stdio"}) {
    Serving serving = serve({"ipc.transport="s + transport});
    json whole = json::parse(serving.post("/v1/messages", request("hi").dump()).body);
    whole.erase("id");
    json streamed = request("hi");
    streamed["stream"] = true;
    EXPECT_EQ(assembled(serving.post("/v1/messages", streamed.dump())), whole);
    for (const int token : {3, 12, 17, 21}) {
      streamed = request("hi kill@" + std::to_string(token));
      streamed["stream"] = true;
      json survived = assembled(serving.post("/v1/messages", streamed.dump()));
      survived["usage"] = whole["usage"];  // the prompt has one order more: to die
      EXPECT_EQ(survived, whole) << transport << token;
    }
  }
}

TEST(Messages, AHistoryBecomesAChat) {
  Serving serving = serve();
  json body = request("look");
  body.erase("chat_template_kwargs");
  body["max_tokens"] = 1;
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content",
        {{{"type", "thinking"}, {"thinking", "hm"}, {"signature", ""}},
         {{"type", "text"}, {"text", "One moment."}},
         {{"type", "tool_use"}, {"id", "t1"}, {"name", "weather"}, {"input", json::object()}}}}});
  body["messages"].push_back(
      {{"role", "user"},
       {"content",
        {{{"type", "tool_result"}, {"tool_use_id", "t1"}, {"content", "rain"}},
         {{"type", "text"}, {"text", "well?"}}}}});
  const HttpReply reply = serving.post("/v1/messages", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body)["stop_reason"], "max_tokens");
  // The scripted worker's prompt is its messages, a byte a token; the checksum is not among them.
  const std::string prompt =
      "system: Be brief.\nuser: look\nassistant: One moment.\ntool: rain\nuser: well?\n";
  const HttpReply count = serving.post("/v1/messages/count_tokens", body.dump());
  EXPECT_EQ(count.status, 200);
  EXPECT_EQ(json::parse(count.body), (json{{"input_tokens", prompt.size()}}));
}

TEST(Messages, CountingGeneratesNothing) {
  Serving serving = serve();
  // A thread parses the second one.
  for (const std::string& text : {"hello"s, std::string(60'000, 'x')}) {
    const json body = {{"messages", {{{"role", "user"}, {"content", text}}}}};
    const json count = json::parse(serving.post("/v1/messages/count_tokens", body.dump()).body);
    EXPECT_EQ(count, (json{{"input_tokens", ("user: " + text + "\n").size()}}));
    for (const char* path : {"/v1/chat/completions/input_tokens", "/v1/responses/input_tokens"}) {
      json other = body;
      if (path == "/v1/responses/input_tokens"s) other = {{"input", text}};
      EXPECT_EQ(json::parse(serving.post(path, other.dump()).body)["input_tokens"],
                count["input_tokens"])
          << path;
    }
  }
  // This answer's token comes after any that the worker had generated before.
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  EXPECT_EQ(serving.worker()["ipc"]["tokens_received"], 1);
}

TEST(Messages, ErrorsAreInAnthropicsForm) {
  Serving serving = serve();
  for (
      const char* body :
      {"{}", "[]", R"({"messages":5})", R"({"messages":[{"role":"robot","content":"x"}]})",
       R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})",
       R"({"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"any"}})",
       R"({"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"all"}})",
       R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"web_search_20250305","name":"w"}]})",
       R"({"messages":[{"role":"user","content":"x"}],"temperature":"hot"})",
       R"({"messages":[{"role":"user","content":"refused"}]})"}) {
    const HttpReply reply = serving.post("/v1/messages", body);
    EXPECT_EQ(reply.status, 400) << body;
    const json error = json::parse(reply.body);
    EXPECT_EQ(error["type"], "error") << reply.body;
    EXPECT_EQ(error["error"]["type"], "invalid_request_error");
    EXPECT_FALSE(error["error"]["message"].get<std::string>().empty());
  }
}

TEST(Messages, ErrorsNameWhatTheClientWrote) {
  Serving serving = serve();
  const std::pair<const char*, const char*> cases[] = {
      {R"({"stop_sequences":[""]})", "'stop_sequences'"},
      {R"({"tools":[{"name":"","input_schema":{}}]})", "'tools[0].name'"},
      {R"({"tools":[{"name":"f","input_schema":5}]})", "'tools[0].input_schema'"},
      {R"({"max_tokens":0})", "'max_tokens'"},
      {R"({"mirostat":2})", "'mirostat'"},
      {R"({"output_config":{"effort":5}})", "'output_config.effort'"},
      {R"({"output_config":{"format":{"type":"text"}}})", "'output_config.format.type'"},
      {R"({"output_config":{"format":{"type":"json_schema"}}})", "'output_config.format.schema'"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"text","text":5}]}]})",
       "'messages[1].content[0].text'"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "'messages[0].content[0].text'"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use"}]}]})",
       "'messages[1].content[0].name'"},
  };
  for (const auto& [fields, name] : cases) {
    json body = request("hi");
    body.update(json::parse(fields));
    for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
      const HttpReply reply = serving.post(path, body.dump());
      EXPECT_EQ(reply.status, 400) << body;
      EXPECT_NE(reply.body.find(name), std::string::npos) << reply.body;
    }
  }
}

TEST(Messages, TheKeyMayBeWhereAnthropicHasIt) {
  Serving serving = serve({"server.api_key=secret"});
  const std::string body = request("hi").dump();
  EXPECT_EQ(serving.post("/v1/messages", body).status, 401);
  EXPECT_EQ(serving.post("/v1/messages", body, {"x-api-key: wrong"}).status, 401);
  EXPECT_EQ(serving.post("/v1/messages", body, {"x-api-key: secret"}).status, 200);
  EXPECT_EQ(serving.post("/v1/messages", body, {"Authorization: Bearer secret"}).status, 200);
  // Beside what a proxy asks for, or an empty variable, it counts; beside another key it does not.
  for (const char* other : {"Authorization: Basic eDp5", "Authorization: Bearer"})
    EXPECT_EQ(serving.post("/v1/messages", body, {other, "x-api-key: secret"}).status, 200)
        << other;
  EXPECT_EQ(serving.post("/v1/messages", body, {"Authorization: Bearer wrong", "x-api-key: secret"})
                .status,
            401);
}

}  // namespace
}  // namespace bulkhead::test
