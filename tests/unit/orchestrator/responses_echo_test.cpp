// What a response repeats of its request, and how its stream tells of a failure.
#include "orchestrator/http/responses_echo.hpp"

#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/errors.hpp"
#include "orchestrator/http/responses.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

// Returns the whole response to this request.
json response_to(const std::string& body, ipc::FinishReason reason = ipc::FinishReason::kStop) {
  const std::unique_ptr<Dialect> dialect = responses_dialect(body);
  std::string events;
  dialect->begin({true, "resp_1", 5, "m"}, {}, events);
  dialect->add("Hi", {}, events);
  dialect->end(reason, "", {}, events);
  return json::parse(dialect->whole());
}

// The members that the schema of Open Responses requires (ResponseResource, version 2026-04-24).
constexpr const char* kRequired[] = {"id",
                                     "object",
                                     "created_at",
                                     "completed_at",
                                     "status",
                                     "incomplete_details",
                                     "model",
                                     "previous_response_id",
                                     "instructions",
                                     "output",
                                     "error",
                                     "tools",
                                     "tool_choice",
                                     "truncation",
                                     "parallel_tool_calls",
                                     "text",
                                     "top_p",
                                     "presence_penalty",
                                     "frequency_penalty",
                                     "top_logprobs",
                                     "temperature",
                                     "reasoning",
                                     "usage",
                                     "max_output_tokens",
                                     "max_tool_calls",
                                     "store",
                                     "background",
                                     "service_tier",
                                     "metadata",
                                     "safety_identifier",
                                     "prompt_cache_key"};

TEST(ResponsesEcho, HasEveryMemberThatTheSchemaRequires) {
  for (const char* body :
       {"{}", R"({"reasoning": null, "text": null, "tools": null, "store": null})"}) {
    const json response = response_to(body);
    for (const char* name : kRequired)
      EXPECT_TRUE(response.contains(name)) << name;
    EXPECT_EQ(response["presence_penalty"], 0);
    EXPECT_EQ(response["background"], false);
    EXPECT_EQ(response["service_tier"], "default");
    EXPECT_TRUE(response["reasoning"].is_null());
    EXPECT_EQ(response["text"], (json{{"format", {{"type", "text"}}}}));
  }
  const json given = response_to(
      R"({"presence_penalty": 0.5, "safety_identifier": "s", "prompt_cache_key": "k",
          "max_tool_calls": 3, "service_tier": "auto"})");
  EXPECT_EQ(given["presence_penalty"], 0.5);
  EXPECT_EQ(given["safety_identifier"], "s");
  EXPECT_EQ(given["prompt_cache_key"], "k");
  EXPECT_EQ(given["max_tool_calls"], 3);
  EXPECT_EQ(given["service_tier"], "default");
}

TEST(ResponsesEcho, TellsWhenAnAnswerWasCompleted) {
  EXPECT_TRUE(response_to("{}")["completed_at"].is_number_integer());
  EXPECT_TRUE(response_to("{}", ipc::FinishReason::kLength)["completed_at"].is_null());
}

TEST(ResponsesEcho, CompletesWhatClientsMayLeaveOut) {
  const json response = response_to(
      R"({"reasoning": {"effort": "low"}, "text": {"verbosity": "medium"},
          "tools": [{"type": "function", "name": "f"}, {"type": "web_search"},
                    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g",
                     "parameters": {"type": "object", "maximum": 123456789012345678901234567890}}]}]})");
  EXPECT_EQ(response["reasoning"], (json{{"effort", "low"}, {"summary", nullptr}}));
  EXPECT_EQ(response["text"], (json{{"verbosity", "medium"}, {"format", {{"type", "text"}}}}));
  EXPECT_EQ(response["tools"][0], (json{{"type", "function"},
                                        {"name", "f"},
                                        {"description", nullptr},
                                        {"parameters", nullptr},
                                        {"strict", false}}));
  EXPECT_EQ(response["tools"][1], (json{{"type", "web_search"}}));
  EXPECT_EQ(response["tools"][2]["tools"][0]["strict"], false);
  const json schema = response_to(
      R"({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}})")["text"]
                                                                                    ["format"];
  EXPECT_EQ(schema, (json{{"type", "json_schema"},
                          {"name", "n"},
                          {"schema", json::object()},
                          {"description", nullptr},
                          {"strict", false}}));
}

TEST(ResponsesEcho, KeepsTheIntegersOfSchemas) {
  const ResponsesEcho echo = responses_echo(
      R"({"tools": [{"type": "function", "name": "f", "parameters": {"maximum": 123456789012345678901234567890}}]})");
  EXPECT_NE(echo.members.find("123456789012345678901234567890"), std::string::npos) << echo.members;
}

// OpenAI's clients raise an error only if the event has a member of this name; its reference has the other members.
TEST(Responses, AFailedStreamTellsItInBothForms) {
  const std::unique_ptr<Dialect> dialect = responses_dialect("{}");
  std::string events;
  dialect->begin({true, "resp_1", 5, "m"}, {}, events);
  events.clear();
  dialect->fail(api_error(kOutOfMemory, "why"), events);
  const std::string start = "event: error\ndata: ";
  ASSERT_TRUE(events.starts_with(start)) << events;
  const json event = json::parse(events.substr(start.size(), events.find("\n\n") - start.size()));
  EXPECT_EQ(event["type"], "error");
  EXPECT_EQ(event["code"], "out_of_memory");
  EXPECT_EQ(event["message"], "why");
  EXPECT_EQ(event["error"], (json{{"type", "server_error"},
                                  {"code", "out_of_memory"},
                                  {"message", "why"},
                                  {"param", nullptr}}));
  EXPECT_NE(events.find("event: response.failed\n"), std::string::npos);
}

}  // namespace
}  // namespace bulkhead::orchestrator
