// OpenAI's Responses API: what its clients send, and the items and events that they get.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

constexpr const char* kRaw =
    "<think>\nThey ask.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": "
    "{\"city\": \"Oslo\"}}\n</tool_call>";

json request(const std::string& text) {
  return {{"model", "any"},
          {"seed", 4},
          {"instructions", "Be brief."},
          {"input", text},
          {"tools",
           {{{"type", "function"},
             {"name", "weather"},
             {"strict", false},
             {"parameters", {{"type", "object"}}}},
            {{"type", "web_search"}}}},
          {"chat_template_kwargs", {{"family", "hermes"}, {"raw", kRaw}}}};
}

// Removes what differs between two answers to the same request.
json without_ids(json response) {
  for (const char* name : {"id", "created_at", "completed_at", "usage", "instructions"})
    response.erase(name);
  for (json& item : response["output"])
    item.erase("id");
  return response;
}

// Returns the response that ends the stream, after comparing the events with it.
json completed(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  json last;
  json items = json::array();
  std::string text;
  std::uint64_t number = 0;
  for (std::size_t at = 0; at < reply.body.size();) {
    const std::size_t line = reply.body.find('\n', at), end = reply.body.find("\n\n", at);
    const json data = json::parse(reply.body.substr(line + 7, end - line - 7));
    const std::string type = data["type"];
    EXPECT_EQ(reply.body.substr(at, line - at), "event: " + type);
    EXPECT_EQ(data["sequence_number"], number++);
    if (number == 1) {
      EXPECT_EQ(type, "response.created");
    }
    if (type == "response.output_item.added") {
      EXPECT_EQ(data["output_index"], items.size());
      text.clear();
    } else if (type.ends_with(".delta")) {
      EXPECT_EQ(data["output_index"], items.size());
      text += data["delta"].get<std::string>();
    } else if (type.ends_with("text.done")) {
      EXPECT_EQ(data["text"], text);
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(data["arguments"], text);
    } else if (type == "response.output_item.done") {
      items.push_back(data["item"]);
    } else if (type == "response.completed") {
      last = data["response"];
    }
    at = end + 2;
  }
  EXPECT_EQ(last["output"], items);
  return last;
}

TEST(Responses, AnAnswerIsItems) {
  Serving serving = serve();
  const HttpReply reply = serving.post("/v1/responses", request("hi").dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json response = json::parse(reply.body);
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["instructions"], "Be brief.");
  ASSERT_EQ(response["output"].size(), 3U);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "They ask.");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "Let me look.");
  EXPECT_EQ(response["output"][2]["type"], "function_call");
  EXPECT_EQ(response["output"][2]["name"], "weather");
  EXPECT_EQ(json::parse(response["output"][2]["arguments"].get<std::string>()),
            (json{{"city", "Oslo"}}));
  EXPECT_GT(response["usage"]["output_tokens"], 0);
  EXPECT_EQ(response["usage"]["input_tokens_details"],
            (json{{"cached_tokens", 0}, {"cache_write_tokens", 0}}));
}

// The scripted worker's file recommends a temperature of 0.6, and no top_p.
TEST(Responses, TellTheSamplerThatTheAnswerHas) {
  for (const bool file : {true, false}) {
    const Serving serving = serve({"models.0.sampling_defaults="s + (file ? "file" : "api")});
    const auto told = [&](const json& body) {
      return json::parse(serving.post("/v1/responses", body.dump()).body);
    };
    const json left_open = told({{"input", "x"}, {"max_output_tokens", 1}, {"top_p", nullptr}});
    EXPECT_EQ(left_open["temperature"], file ? 0.6 : 1.0) << left_open;
    EXPECT_EQ(left_open["top_p"], 1.0);
    const json given = told({{"input", "x"}, {"max_output_tokens", 1}, {"temperature", 0.2}});
    EXPECT_EQ(given["temperature"], 0.2);
  }
}

TEST(Responses, StreamTheSameAcrossDeaths) {
  for (const char* transport : {"shm", "stdio"}) {
    Serving serving = serve({"ipc.transport="s + transport});
    const json whole =
        without_ids(json::parse(serving.post("/v1/responses", request("hi").dump()).body));
    for (const char* order : {"calm", "kill@3", "kill@12", "kill@17", "kill@21"}) {
      json streamed = request(order);
      streamed["stream"] = true;
      // The field is spread over several lines, as OpenAI's client writes it.
      EXPECT_EQ(without_ids(completed(serving.post("/v1/responses", streamed.dump(2)))), whole)
          << transport << order;
    }
  }
}

// Its first events repeat the request, and are larger than what may wait for a slow client.
TEST(Responses, LargeEventsLoseNoClientThatReads) {
  Serving serving = serve();
  json body = request("hi");
  body["stream"] = true;
  body["metadata"] = {{"note", std::string(900'000, 'x')}};
  const json response = completed(serving.post("/v1/responses", body.dump()));
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["metadata"], body["metadata"]);
}

TEST(Responses, AHistoryBecomesAChat) {
  Serving serving = serve();
  json body = request("look");
  body.erase("chat_template_kwargs");
  body["max_output_tokens"] = 1;
  body["input"] = {
      {{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "look"}}}}},
      {{"type", "reasoning"},
       {"id", "rs_1"},
       {"summary", json::array()},
       {"content", {{{"type", "reasoning_text"}, {"text", "hm"}}}}},
      {{"type", "message"},
       {"role", "assistant"},
       {"content", {{{"type", "output_text"}, {"text", "One moment."}}}}},
      {{"type", "function_call"}, {"call_id", "c1"}, {"name", "weather"}, {"arguments", "{}"}},
      {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "rain"}}};
  const HttpReply reply = serving.post("/v1/responses", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json response = json::parse(reply.body);
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  // The scripted worker's prompt is its messages, a byte a token.
  const std::string prompt = "system: Be brief.\nuser: look\nassistant: One moment.\ntool: rain\n";
  EXPECT_EQ(response["usage"]["input_tokens"], prompt.size());
  const json counted = {{"object", "response.input_tokens"}, {"input_tokens", prompt.size()}};
  const HttpReply count = serving.post("/v1/responses/input_tokens", body.dump());
  EXPECT_EQ(count.status, 200);
  EXPECT_EQ(json::parse(count.body), counted);
  const json chat = {{"messages",
                      {{{"role", "system"}, {"content", "Be brief."}},
                       {{"role", "user"}, {"content", "look"}},
                       {{"role", "assistant"}, {"content", "One moment."}},
                       {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "rain"}}}}};
  const HttpReply chat_count = serving.post("/v1/chat/completions/input_tokens", chat.dump());
  EXPECT_EQ(chat_count.status, 200);
  EXPECT_EQ(json::parse(chat_count.body), counted);
}

TEST(Responses, SaysWhichToolsItLeavesOut) {
  Serving serving = serve();
  for (const bool stream : {false, true}) {
    const json body = {{"input", "x"}, {"tools", {{{"type", "web_search"}}}}, {"stream", stream}};
    const HttpReply reply = serving.post("/v1/responses", body.dump());
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-bulkhead-warning"), "tools of type \"web_search\" are left out");
  }
}

TEST(Responses, WhatItCantDoIsNamed) {
  Serving serving = serve();
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input":5})", "input"},
      {R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0]"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})", "input[0].content[0]"},
      {R"({"input":"x","previous_response_id":"resp_1"})", "previous_response_id"},
      {R"({"input":"x","background":true})", "background"},
      {R"({"input":"x","tool_choice":"required"})", "tool_choice"},
      {R"({"input":"x","top_logprobs":3})", "top_logprobs"},
      {R"({"input":"x","include":["message.output_text.logprobs"]})", "include"},
      {R"({"input":"x","response_format":{"type":"json_object"}})", "text.format"},
      {R"({"input":"x","typical_p":0.5})", "typical_p"},
      {R"({"input":"x","n":2})", "n"},
      {R"({"input":[{"role":"user","content":[{"type":"input_text","text":5}]}]})",
       "input[0].content[0].text"},
      // If the parser of chats finds an error, the error has the names that the client wrote, too.
      {R"({"input":[]})", "input"},
      {R"({"instructions":"i","input":[{"role":"robot","content":"x"}]})", "input[0].role"},
      {R"({"instructions":"i","input":[{"type":"function_call","call_id":"c"}]})", "input[0].name"},
      {R"({"input":"x","max_output_tokens":0})", "max_output_tokens"},
      {R"({"input":"x","tools":[{"type":"function","name":""}]})", "tools[0].name"},
      {R"({"input":"x","reasoning":{"effort":5}})", "reasoning.effort"},
      {R"({"input":"x","text":{"verbosity":"low"}})", "text.verbosity"},
      {R"({"input":"x","tool_choice":{"type":"allowed_tools","tools":[]}})", "tool_choice.tools"},
      {R"({"input":"x","text":{"format":{"type":"xml"}}})", "text.format.type"},
      {R"({"input":"x","text":{"format":{"type":"json_schema","name":"n"}}})",
       "text.format.schema"},
  };
  for (const auto& [body, parameter] : cases) {
    const HttpReply reply = serving.post("/v1/responses", body);
    EXPECT_EQ(reply.status, 400) << body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], parameter) << reply.body;
    EXPECT_NE(error["message"].get<std::string>().find(fmt::format("'{}'", parameter)),
              std::string::npos)
        << reply.body;
  }
}

}  // namespace
}  // namespace bulkhead::test
