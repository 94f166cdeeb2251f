// Tool calls of a real model, which was not trained to use tools. Schemas restrict its calls, over each protocol,
// whole and streamed, and when the worker dies.
#include <fstream>
#include <map>

#include "tests/integration/model_serving.hpp"
#include "tests/support/signals.hpp"
#include "worker/constrain/constraint.hpp"

namespace bulkhead::test {
namespace {

constexpr const char* kTemplate =
    R"({%- if tools %}{{ '<|im_start|>system\nCall <tool_call>{"name": N, "arguments": A}</tool_call>\n' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

const json kSchema = json::parse(R"({
  "type": "object", "additionalProperties": false, "required": ["city", "days"],
  "properties": {"city": {"type": "string", "minLength": 2, "maxLength": 10},
                 "days": {"type": "integer", "minimum": 1, "maximum": 14},
                 "units": {"enum": ["metric", "imperial"]}}})");

json weather(bool strict) {
  return {{"type", "function"},
          {"function", {{"name", "get_weather"}, {"strict", strict}, {"parameters", kSchema}}}};
}

json clock_tool() {
  return {{"type", "function"}, {"function", {{"name", "get_time"}, {"strict", true}}}};
}

json asks(const json& choice, int seed) {
  return {{"messages", {{{"role", "user"}, {"content", "What is the weather in Oslo?"}}}},
          {"tools", {weather(true), clock_tool()}},
          {"tool_choice", choice},
          {"temperature", 1.5},
          {"seed", seed},
          {"max_tokens", 200}};
}

const json kWeather = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};

bool valid(const std::string& arguments) {
  static const auto schema =
      constrain::compile_schema(kSchema.dump(), constrain::Strictness::kStrict);
  return constrain::check_text(schema->grammar, arguments).passed;
}

class ToolsOfAModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = testing::TempDir() + "tools_" + std::to_string(::getpid()) + ".jinja";
    std::ofstream(path_) << kTemplate;
    serving_ = std::make_unique<Serving>(serve_model("", {"models.0.chat_template=" + path_}));
  }
  static void TearDownTestSuite() {
    serving_.reset();
    std::filesystem::remove(path_);
  }
  static json ask(const std::string& path, const json& request) {
    const HttpReply reply = serving_->post(path, request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  }
  static json choice_of(const json& request) {
    return ask("/v1/chat/completions", request).at("choices").at(0);
  }

  static std::string path_;
  static std::unique_ptr<Serving> serving_;
};
std::string ToolsOfAModel::path_;
std::unique_ptr<Serving> ToolsOfAModel::serving_;

TEST_F(ToolsOfAModel, RequiredAndNamedAreValidCalls) {
  int named = 0, required = 0;
  for (int seed = 0; seed < 2; ++seed) {
    for (const json& wanted : {json("required"), kWeather}) {
      const json choice = choice_of(asks(wanted, seed));
      const json& message = choice.at("message");
      if (choice.at("finish_reason") == "length") continue;
      EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
      EXPECT_TRUE(message.at("content").is_null()) << message;
      ASSERT_GE(message.at("tool_calls").size(), 1U);
      required += wanted.is_string() ? 1 : 0;
      for (const json& call : message.at("tool_calls")) {
        const json& function = call.at("function");
        if (wanted.is_object()) {
          EXPECT_EQ(function.at("name"), "get_weather");
          ++named;
        }
        if (function.at("name") == "get_weather") {
          EXPECT_TRUE(valid(function.at("arguments"))) << function;
        }
      }
    }
  }
  EXPECT_EQ(named, 2);
  EXPECT_GT(required, 0);
}

TEST_F(ToolsOfAModel, ACallThatIsCutSaysSo) {
  json request = asks(kWeather, 1);
  request["max_tokens"] = 24;
  EXPECT_EQ(choice_of(request).at("finish_reason"), "length");
}

TEST_F(ToolsOfAModel, EachProtocolCanWantACall) {
  const json message = {{"role", "user"}, {"content", "What is the weather in Oslo?"}};
  json claude = {
      {"messages", {message}},
      {"max_tokens", 300},
      {"temperature", 1.0},
      {"seed", 4},
      {"tools", {{{"name", "get_weather"}, {"strict", true}, {"input_schema", kSchema}}}}};
  for (const json& choice : {json{{"type", "any"}, {"disable_parallel_tool_use", true}},
                             json{{"type", "tool"}, {"name", "get_weather"}}}) {
    claude["tool_choice"] = choice;
    const json answer = ask("/v1/messages", claude);
    EXPECT_EQ(answer.at("stop_reason"), "tool_use") << answer;
    EXPECT_TRUE(valid(answer.at("content").at(0).at("input").dump())) << answer;
  }
  json codex = {{"input", "What is the weather in Oslo?"},
                {"temperature", 1.5},
                {"seed", 4},
                {"parallel_tool_calls", false},
                {"tools",
                 {{{"type", "function"},
                   {"name", "get_weather"},
                   {"strict", true},
                   {"parameters", kSchema}}}}};
  for (const json& choice :
       {json("required"), json{{"type", "function"}, {"name", "get_weather"}}}) {
    codex["tool_choice"] = choice;
    const json answer = ask("/v1/responses", codex);
    EXPECT_EQ(answer.at("status"), "completed");
    EXPECT_EQ(answer.at("output").at(0).at("type"), "function_call") << answer;
    EXPECT_TRUE(valid(answer.at("output").at(0).at("arguments"))) << answer;
  }
}

TEST_F(ToolsOfAModel, AMessageIsHeldToItsFormat) {
  const json format = {{"type", "json_schema"}, {"schema", kSchema}};
  const json answer = ask("/v1/messages", {{"messages", {{{"role", "user"}, {"content", "Oslo?"}}}},
                                           {"max_tokens", 300},
                                           {"temperature", 1.0},
                                           {"seed", 4},
                                           {"output_config", {{"format", format}}}});
  EXPECT_EQ(answer.at("stop_reason"), "end_turn") << answer;
  EXPECT_TRUE(valid(answer.at("content").at(0).at("text"))) << answer;
}

TEST_F(ToolsOfAModel, WhatCannotBeHeldIsNamed) {
  json request = asks("auto", 1);
  request["max_tokens"] = 2;
  json& schema = request["tools"][0]["function"]["parameters"];
  schema["properties"]["city"] = {{"type", "array"}, {"uniqueItems", true}};
  HttpReply reply = serving_->post("/v1/chat/completions", request.dump());
  EXPECT_EQ(reply.status, 400);
  const json error = json::parse(reply.body).at("error");
  EXPECT_EQ(error.at("param"), "tools");
  EXPECT_NE(error.at("message").get<std::string>().find("uniqueItems"), std::string::npos) << error;
  request["tools"][0]["function"]["strict"] = false;
  reply = serving_->post("/v1/chat/completions", request.dump());
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(reply.headers["x-bulkhead-warning"].find("uniqueItems"), std::string::npos);
}

// Returns what the choice of each chunk adds.
std::vector<json> deltas_of(const HttpReply& reply) {
  std::vector<json> deltas;
  for (const json& chunk : events_of(reply.body).chunks) {
    EXPECT_FALSE(chunk.contains("error")) << chunk;
    deltas.push_back(chunk.at("choices").at(0));
  }
  return deltas;
}

// Returns the message that a client makes of the pieces: it joins a call's arguments and keeps the rest as it came.
json put_together(const std::vector<json>& deltas) {
  json whole = json::array();
  std::map<int, std::string> arguments;
  for (json piece : deltas) {
    json& delta = piece.at("delta");
    for (json& call : delta.value("tool_calls", json::array()))
      arguments[call.at("index")] += call.at("function").value("arguments", "");
    const bool only_arguments =
        delta.contains("tool_calls") && !delta["tool_calls"][0].contains("id");
    if (!only_arguments) whole.push_back(piece);
  }
  whole.push_back(arguments);
  return whole;
}

TEST_F(ToolsOfAModel, AStreamedCallSurvivesItsWorkerWithTheSameBytes) {
  json request = asks(kWeather, 3);
  json& schema = request["tools"][0]["function"]["parameters"];
  schema["properties"]["log"] = {
      {"type", "array"}, {"minItems", 6}, {"maxItems", 8}, {"items", {{"enum", {"sun", "rain"}}}}};
  schema["required"].push_back("log");
  request["max_tokens"] = 300;
  request["stream"] = true;
  const HttpReply calm = serving_->post("/v1/chat/completions", request.dump());
  ASSERT_EQ(calm.status, 200) << calm.body;
  HttpClient client(serving_->port);
  ASSERT_TRUE(client.send("POST", "/v1/chat/completions", request.dump()));
  HttpReply reply = client.receive_head();
  ASSERT_EQ(reply.status, 200);
  while (reply.body.find("\"arguments\":\"{") == std::string::npos) {
    const auto chunk = client.receive_chunk();
    ASSERT_TRUE(chunk && !chunk->empty());
    reply.body += *chunk;
  }
  ASSERT_EQ(send_signal(serving_->worker().at("pid").get<pid_t>(), SIGKILL), 0);
  while (auto chunk = client.receive_chunk()) {
    if (chunk->empty()) break;
    reply.body += *chunk;
  }
  // Timing decides how many tokens come in one piece.
  EXPECT_EQ(put_together(deltas_of(reply)), put_together(deltas_of(calm)));
  EXPECT_EQ(deltas_of(reply).back().at("finish_reason"), "tool_calls");
}

}  // namespace
}  // namespace bulkhead::test
