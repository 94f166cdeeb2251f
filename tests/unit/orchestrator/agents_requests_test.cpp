// Requests of coding agents and their protocols beyond text: tools that may be called, and the form of the answer.
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/errors.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/http/responses.hpp"
#include "orchestrator/http/routes.hpp"
#include "tests/unit/orchestrator/parsed_requests.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

json with_tools() {
  const json function = {{"name", "f"}}, other = {{"name", "g"}};
  return {{"messages", {{{"role", "user"}, {"content", "x"}}}},
          {"tools",
           {{{"type", "function"}, {"function", function}},
            {{"type", "function"}, {"function", other}}}}};
}

TEST(AllowedTools, ListsThoseThatMayBeCalled) {
  json body = with_tools();
  body["tool_choice"] = json::parse(
      R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}})");
  auto chat = parse_chat(body.dump());
  ASSERT_EQ(error_of(chat), nullptr) << error_of(chat)->message;
  EXPECT_EQ(std::get<0>(chat).parameters.allowed_tools, std::vector<std::string>{"g"});
  EXPECT_EQ(std::get<0>(chat).parameters.tool_choice, ipc::ToolChoice::kAuto);
  body["tool_choice"]["allowed_tools"]["mode"] = "required";
  chat = parse_chat(body.dump());
  ASSERT_EQ(error_of(chat), nullptr);
  EXPECT_EQ(std::get<0>(chat).parameters.tool_choice, ipc::ToolChoice::kRequired);
  // In the Responses API the choice's members are not nested, and the server's own tools are in the same list.
  const auto response = parse_responses(
      R"({"input":"x","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"},{"type":"web_search"}],
          "tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"web_search"},{"type":"function","name":"f"}]}})");
  ASSERT_EQ(error_of(response), nullptr) << error_of(response)->message;
  EXPECT_EQ(std::get<0>(response).parameters.allowed_tools, std::vector<std::string>{"f"});
}

TEST(History, MayHaveRefusals) {
  // A message after the first, and the field that is refused; "": none is.
  const struct {
    const char *role, *members, *refused;
  } cases[] = {
      {"assistant", R"("content":[{"type":"refusal","refusal":"no"}])", ""},
      {"assistant", R"("refusal":"no")", ""},
      {"assistant", R"("content":null,"refusal":"no")", ""},
      {"assistant", R"("content":[{"type":"refusal","text":"no"}])", "messages[1].content[0]"},
      {"assistant", R"("refusal":5)", "messages[1].refusal"},
      {"user", R"("content":[{"type":"refusal","refusal":"no"}])", "messages[1].content[0]"},
  };
  for (const auto& [role, members, refused] : cases) {
    const auto parsed = parse_chat(R"({"messages":[{"role":"user","content":"x"},{"role":")" +
                                   std::string(role) + "\"," + members + "}]}");
    const ApiError* error = error_of(parsed);
    EXPECT_EQ(error == nullptr ? "" : error->parameter, refused) << role << ' ' << members;
  }
}

TEST(AllowedTools, MistakesAreNamed) {
  // What follows the type, and the field that is refused.
  const std::pair<std::string, const char*> cases[] = {
      {"", "tool_choice.tools"},
      {R"(,"tools":[])", "tool_choice.tools"},
      {R"(,"mode":"always","tools":[{"type":"function","name":"f"}])", "tool_choice.mode"},
      {R"(,"tools":[{"type":"function","name":"h"}])", "tool_choice.tools[0].name"},
      {R"(,"allowed_tools":{"tools":[{"type":"function","function":{}}]})",
       "tool_choice.allowed_tools.tools[0].function.name"},
      {R"(,"tools":[{"type":"function","name":"f"},7])", "tool_choice.tools[1]"},
      {R"(,"tools":["f"])", "tool_choice.tools[0]"},
      {R"(,"tools":[null])", "tool_choice.tools[0]"},
      {R"(,"tools":[{"type":["function"],"name":"f"}])", "tool_choice.tools[0]"},
      {R"(,"tools":[{"type":"function","name":["f"]}])", "tool_choice.tools[0].name"},
      {R"(,"tools":[{"type":"function","function":"f"}])", "tool_choice.tools[0].name"},
      {R"(,"allowed_tools":{"tools":[{"type":"function","function":{"name":1}}]})",
       "tool_choice.allowed_tools.tools[0].function.name"},
      {R"(,"allowed_tools":{"tools":[[]]})", "tool_choice.allowed_tools.tools[0]"},
      {R"(,"allowed_tools":["f"])", "tool_choice.tools"},
  };
  const auto refused = [](const std::string& choice) {
    json body = with_tools();
    body["tool_choice"] = json::parse(choice);
    const auto parsed = parse_chat(body.dump());
    const ApiError* error = error_of(parsed);
    return error == nullptr ? "nothing" : error->parameter;
  };
  for (const auto& [members, parameter] : cases)
    EXPECT_EQ(refused(R"({"type":"allowed_tools")" + members + "}"), parameter) << members;
  EXPECT_EQ(refused(R"({"type":"some_tools"})"), "tool_choice");
}

// Codex's history may come from another provider, and may name tools that are left out here.
TEST(Responses, TakesCallsOfToolsThatItLeavesOut) {
  const json chat = chat_of(parse_responses(
      R"({"input":[{"role":"user","content":"x"},
                   {"type":"web_search_call","id":"ws_1","status":"completed"},
                   {"type":"custom_tool_call","call_id":"c1","name":"apply_patch","input":"*** \"a\""},
                   {"type":"custom_tool_call_output","call_id":"c1","output":"done"},
                   {"type":"local_shell_call","call_id":"c2","action":{"command":["ls"]}},
                   {"type":"local_shell_call_output","call_id":"c2","output":"a b"}],
          "tools":[{"type":"web_search"},{"type":"function","name":"f"}],
          "tool_choice":{"type":"web_search"}})"));
  const json& messages = chat.at("messages");
  ASSERT_EQ(messages.size(), 5U);
  const json& patch = messages[1]["tool_calls"][0]["function"];
  EXPECT_EQ(patch["name"], "apply_patch");
  EXPECT_EQ(json::parse(patch["arguments"].get<std::string>()), (json{{"input", "*** \"a\""}}));
  EXPECT_EQ(messages[2], (json{{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "done"}}));
  EXPECT_EQ(messages[3]["tool_calls"][0]["function"]["name"], "local_shell");
  EXPECT_EQ(messages[4]["content"], "a b");
}

// Codex offers the tools of an MCP server in this form.
TEST(Responses, TheToolsOfANamespaceAreCalledByBothNames) {
  const std::string tools =
      R"("tools":[{"type":"namespace","name":"mcp__git__","description":"d","tools":[)"
      R"({"type":"function","name":"f","description":"e","parameters":{"type":"object"}},{"type":"custom","name":"g"}]},)"
      R"({"type":"namespace","name":"b","tools":[{"type":"function","name":"h"}]},{"type":"function","name":"f"}])";
  const auto parsed = parse_responses(
      R"({"input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"c","namespace":"mcp__git__","name":"f","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c","output":"y"}],"tool_choice":{"type":"function","namespace":"b","name":"h"},)" +
      tools + "}");
  const json chat = chat_of(parsed);
  ASSERT_EQ(chat["tools"].size(), 3U);
  EXPECT_EQ(
      chat["tools"][0]["function"],
      (json{{"name", "mcp__git__f"}, {"description", "e"}, {"parameters", {{"type", "object"}}}}));
  EXPECT_EQ(chat["tools"][1]["function"]["name"], "b__h");
  EXPECT_EQ(chat["tools"][2]["function"]["name"], "f");
  EXPECT_EQ(chat["messages"][1]["tool_calls"][0]["function"]["name"], "mcp__git__f");
  const auto& request = std::get<GenerationRequest>(parsed);
  EXPECT_EQ(request.parameters.tool_name, "b__h");
  EXPECT_EQ(request.warnings.size(), 1U);

  const std::unique_ptr<Dialect> dialect = responses_dialect("{" + tools + "}");
  std::string events;
  dialect->begin({}, {}, events);
  for (const char* name : {"mcp__git__f", "f"})
    dialect->add("", std::vector<ipc::AnswerPart>{{ipc::PartKind::kCall, 0, name, "c1"}}, events);
  dialect->end(ipc::FinishReason::kStop, "", {}, events);
  const json output = json::parse(dialect->whole())["output"];
  EXPECT_EQ(output[0]["namespace"], "mcp__git__");
  EXPECT_EQ(output[0]["name"], "f");
  EXPECT_FALSE(output[1].contains("namespace"));
  EXPECT_EQ(output[1]["name"], "f");
}

// A search for tools answers with their names; the model is shown all tools.
TEST(Messages, ReferencesToToolsAreTheirNames) {
  const json chat = chat_of(parse_messages(
      R"({"max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[)"
      R"({"type":"tool_use","id":"t","name":"ToolSearch","input":{}}]},{"role":"user","content":[{"type":"tool_result",)"
      R"("tool_use_id":"t","content":[{"type":"tool_reference","tool_name":"f"},{"type":"tool_reference","tool_name":"g"}]}]}],)"
      R"("tools":[{"name":"f","defer_loading":true,"input_schema":{"type":"object"}}]})"));
  EXPECT_EQ(chat["messages"][2]["content"], "f\ng");
  EXPECT_EQ(chat["tools"].size(), 1U);
}

TEST(ChatPrefix, OfTheLastMessageIsContinued) {
  const auto read = [](const std::string& messages) {
    return chat_of(parse_chat(R"({"messages":[{"role":"user","content":"x"},)" + messages + "]}"));
  };
  for (const char* name : {"prefix", "partial"}) {
    const std::string begun =
        R"({"role":"assistant","content":"y",")" + std::string(name) + R"(":true})";
    EXPECT_EQ(read(begun).value("continue_final_message", false), true) << name;
    EXPECT_FALSE(
        read(begun + R"(,{"role":"user","content":"z"})").contains("continue_final_message"));
  }
  EXPECT_FALSE(read(R"({"role":"assistant","content":"y","prefix":false})")
                   .contains("continue_final_message"));
}

TEST(MessagesTools, OfTheClientAreTaken) {
  const auto read = [](const std::string& type) {
    return parse_messages(R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":")" +
                          type + R"(","name":"bash"}]})");
  };
  const json bash = chat_of(read("bash_20250124")).at("tools")[0]["function"];
  EXPECT_EQ(bash["name"], "bash");
  EXPECT_TRUE(bash["parameters"]["properties"].contains("command"));
  EXPECT_TRUE(
      chat_of(read("text_editor_20250728"))["tools"][0]["function"]["parameters"]["properties"]
          .contains("old_str"));
  const auto computer = read("computer_20250124"), search = read("web_search_20250305");
  ASSERT_NE(error_of(computer), nullptr);
  EXPECT_EQ(error_of(computer)->message.find("servers run"), std::string::npos);
  ASSERT_NE(error_of(search), nullptr);
  EXPECT_NE(error_of(search)->message.find("servers run"), std::string::npos);
}

TEST(Ollama, HandsItsEffortToTheTemplate) {
  const auto request = parse_ollama_chat(
      R"({"model":"m","think":"max","messages":[{"role":"user","content":"x"}]})");
  ASSERT_TRUE(std::holds_alternative<OllamaRequest>(request));
  EXPECT_EQ(chat_of(std::get<OllamaRequest>(request).wanted).at("reasoning_effort"), "max");
}

// No tool of an agent may make its whole request fail.
TEST(LargeTools, AreTakenInEveryProtocol) {
  json properties = json::object();
  for (int i = 0; i < 1000; ++i)
    properties["k" + std::to_string(i)] = {{"type", "string"}};
  const json schema = {{"type", "object"}, {"properties", std::move(properties)}};
  const json message = {{"role", "user"}, {"content", "x"}};
  const json messages = {
      {"messages", {message}},
      {"max_tokens", 1},
      {"tools", {{{"name", "f"}, {"input_schema", schema}}}},
  };
  EXPECT_EQ(error_of(parse_messages(messages.dump())), nullptr);
  const json responses = {
      {"input", "x"},
      {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", schema}}}},
  };
  EXPECT_EQ(error_of(parse_responses(responses.dump())), nullptr);
}

// Claude Code asks for a session's title in this form.
TEST(OutputConfig, ConstrainsTheAnswerAndSetsTheEffort) {
  const std::string schema = R"({"type":"object","properties":{"z":{},"a":{}}})";
  const auto parsed_with = [](const std::string& members) {
    return parse_messages(R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}],)" +
                          members + "}");
  };
  const std::string format = R"({"type":"json_schema","schema":)" + schema + "}";
  for (const std::string& asked : {R"("output_config":{"effort":"max","format":)" + format + "}",
                                   R"("output_format":)" + format}) {
    const auto parsed = parsed_with(asked);
    ASSERT_EQ(error_of(parsed), nullptr) << error_of(parsed)->message;
    const ipc::Constraint& held = std::get<0>(parsed).parameters.constraint;
    EXPECT_EQ(held.kind, ipc::ConstraintKind::kJsonSchema);
    EXPECT_EQ(held.text, schema);
  }
  // The worker decides which efforts the template supports. The effort does not switch reasoning on or
  // off.
  for (const char* effort : {"low", "high", "xhigh", "max"}) {
    const auto parsed = parsed_with(R"("output_config":{"effort":")" + std::string(effort) + "\"}");
    ASSERT_EQ(error_of(parsed), nullptr);
    const auto& chat = std::get<ipc::ChatPrompt>(std::get<0>(parsed).prompts.front());
    EXPECT_EQ(json::parse(chat.json).at("template_effort"), effort);
    EXPECT_FALSE(json::parse(chat.json).contains("reasoning_effort"));
  }
  for (const char* wrong :
       {R"("output_config":5)", R"("output_config":{"effort":5})",
        R"("output_config":{"format":{"type":"text"}})",
        R"("output_config":{"format":{"type":"json_schema"}})", R"("output_format":[])"})
    EXPECT_NE(error_of(parsed_with(wrong)), nullptr) << wrong;
}

TEST(MessagesAnswer, NamesTheStopStringThatEndedIt) {
  for (const auto& [stop, reason, sequence] :
       {std::tuple("END", "stop_sequence", json("END")), std::tuple("", "end_turn", json())}) {
    const std::unique_ptr<Dialect> dialect = messages_dialect("");
    std::string events;
    dialect->begin({}, {}, events);
    const ipc::AnswerPart thought = {ipc::PartKind::kReasoning, 0, "hm", ""};
    dialect->add("", {&thought, 1}, events);
    dialect->end(ipc::FinishReason::kStop, stop, {}, events);
    const json whole = json::parse(dialect->whole());
    EXPECT_EQ(whole["stop_reason"], reason);
    EXPECT_EQ(whole["stop_sequence"], sequence);
    EXPECT_NE(events.find(R"("stop_sequence":)" + sequence.dump()), std::string::npos) << events;
    // A client puts a thought's signature together from its events.
    EXPECT_NE(events.find(R"("type":"signature_delta","signature":)" +
                          whole["content"][0]["signature"].dump()),
              std::string::npos)
        << events;
  }
}

// Each server has its own fields for reasoning.
TEST(Reasoning, IsAskedForInManyWords) {
  const auto read = [](const std::string& members) {
    return parse_chat(R"({"messages":[{"role":"user","content":"x"}],)" + members + "}");
  };
  const auto chat = [&](const std::string& members) {
    auto parsed = read(members);
    if (const ApiError* error = error_of(parsed)) ADD_FAILURE() << error->message;
    return json::parse(std::get<ipc::ChatPrompt>(std::get<0>(parsed).prompts.at(0)).json);
  };
  EXPECT_EQ(chat(R"("thinking":{"type":"disabled"})").at("enable_thinking"), false);
  EXPECT_EQ(chat(R"("thinking":{"type":"enabled"})").at("enable_thinking"), true);
  EXPECT_FALSE(chat(R"("thinking":{"type":"adaptive"})").contains("enable_thinking"));
  EXPECT_EQ(chat(R"("thinking":{"type":"disabled"},"enable_thinking":true)").at("enable_thinking"),
            true);
  EXPECT_EQ(chat(R"("reasoning":{"effort":"low"})").at("reasoning_effort"), "low");
  EXPECT_EQ(chat(R"("reasoning":{"enabled":false})").at("enable_thinking"), false);
  EXPECT_EQ(chat(R"("reasoning":{})").size(), 1U);
  EXPECT_EQ(std::get<0>(read(R"("reasoning":{"max_tokens":7})")).parameters.reasoning_budget, 7);
  EXPECT_EQ(std::get<0>(read(R"("thinking":{"type":"enabled","budget_tokens":9})"))
                .parameters.reasoning_budget,
            9);
  EXPECT_EQ(chat(R"("thinking":{"type":"enabled","clear_thinking":false})").at("keep_reasoning"),
            true);
  EXPECT_EQ(chat(R"("thinking":{"type":"enabled","keep":"all"})").at("keep_reasoning"), true);
  EXPECT_EQ(chat(R"("preserve_thinking":false)").at("keep_reasoning"), false);
  EXPECT_FALSE(chat(R"("thinking":{"type":"enabled"})").contains("keep_reasoning"));
  for (const char* hidden : {R"("include_reasoning":false)", R"("reasoning_format":"hidden")",
                             R"("reasoning":{"exclude":true})"})
    EXPECT_TRUE(std::get<0>(read(hidden)).hide_reasoning) << hidden;
  for (const char* shown : {R"("include_reasoning":true)", R"("reasoning_format":"auto")",
                            R"("reasoning_format":"parsed")", R"("reasoning":{"effort":"low"})"})
    EXPECT_FALSE(std::get<0>(read(shown)).hide_reasoning) << shown;
  const std::pair<const char*, const char*> refused[] = {
      {R"("thinking":5)", "thinking"},
      {R"("thinking":{})", "thinking.type"},
      {R"("thinking":{"type":"enabled","clear_thinking":1})", "thinking.clear_thinking"},
      {R"("thinking":{"type":"enabled","keep":"some"})", "thinking.keep"},
      {R"("preserve_thinking":"yes")", "preserve_thinking"},
      {R"("reasoning":"high")", "reasoning"},
      {R"("reasoning":{"effort":5})", "reasoning.effort"},
      {R"("reasoning":{"max_tokens":"x"})", "reasoning.max_tokens"},
      {R"("reasoning_format":"raw")", "reasoning_format"},
      {R"("include_reasoning":false,"resumable":true,"stream":true)", "resumable"},
  };
  for (const auto& [members, parameter] : refused) {
    const auto parsed = read(members);
    ASSERT_NE(error_of(parsed), nullptr) << members;
    EXPECT_EQ(error_of(parsed)->parameter, parameter) << error_of(parsed)->message;
  }
}

TEST(OtherServersFields, AreHonouredOrRefusedByName) {
  const auto read = [](const std::string& members) {
    return parse_chat(R"({"messages":[{"role":"user","content":"x"}],)" + members + "}");
  };
  for (const char* field :
       {R"("chat_template":"{{ messages }}")", R"("add_special_tokens":false)",
        R"("stop_regex":"a+")", R"("structural_tag":"{}")", R"("adaptive_target":0.5)",
        R"("penalty_alpha":0.6)", R"("separate_reasoning":false)",
        R"("repetition_penalty_range":1024,"repetition_penalty":1.1)"}) {
    const auto parsed = read(field);
    ASSERT_NE(error_of(parsed), nullptr) << field;
    EXPECT_EQ(error_of(parsed)->parameter,
              std::string(field).substr(1, error_of(parsed)->parameter.size()));
  }
  for (const char* harmless :
       {R"("chat_template":null,"stop_regex":[],"structural_tag":"")",
        R"("adaptive_target":-1,"adaptive_decay":0.9,"penalty_alpha":0,"do_sample":true)",
        R"("repetition_penalty_range":1024)", R"("add_special_tokens":true)"})
    EXPECT_EQ(error_of(read(harmless)), nullptr) << harmless;
  EXPECT_EQ(std::get<0>(read(R"("do_sample":false)")).parameters.sampling.temperature, 0);
  const auto grammar = read(R"("ebnf":"root ::= \"a\"")");
  ASSERT_EQ(error_of(grammar), nullptr);
  EXPECT_EQ(std::get<0>(grammar).parameters.constraint.kind, ipc::ConstraintKind::kGrammar);
}

TEST(Verbosity, IsRefusedWhereItWouldChangeTheAnswer) {
  for (const char* words : {"low", "high"}) {
    json body = with_tools();
    body["verbosity"] = words;
    const auto chat = parse_chat(body.dump());
    ASSERT_NE(error_of(chat), nullptr);
    EXPECT_EQ(error_of(chat)->parameter, "verbosity");
    EXPECT_NE(error_of(parse_responses(R"({"input":"x","text":{"verbosity":")" +
                                       std::string(words) + "\"}}")),
              nullptr);
  }
  EXPECT_EQ(error_of(parse_responses(R"({"input":"x","text":{"verbosity":"medium"}})")), nullptr);
}

// The type of an error in Anthropic's API is in the error's own row.
TEST(MessagesErrors, HaveTheTypesOfTheirRows) {
  const std::pair<ErrorKind, const char*> rows[] = {
      {kBadRequest, "invalid_request_error"},
      {kInvalidApiKey, "authentication_error"},
      {kNotAllowed, "permission_error"},
      {kModelNotFound, "not_found_error"},
      {kBodyTooLarge, "request_too_large"},
      {kKeyLimit, "rate_limit_error"},
      {kTooManyConnections, "overloaded_error"},
      {kMethodNotAllowed, "invalid_request_error"},
      {kUnsupportedEncoding, "invalid_request_error"},
      {error_kind(ipc::FailureCode::kTimeout), "timeout_error"},
      {error_kind(ipc::FailureCode::kWorkerCrashed), "api_error"}};
  for (const auto& [kind, type] : rows) {
    const HttpResponse response = messages_refusal(api_error(kind, "why"), "req_1");
    EXPECT_EQ(response.status, kind.status);
    EXPECT_EQ(json::parse(response.body)["error"]["type"], type);
    EXPECT_EQ(json::parse(response.body)["request_id"], "req_1");
  }
}

// Those who read only the events of a stream learn which request failed.
TEST(Messages, AnErrorThatEndsAStreamHasTheRequestsId) {
  const std::unique_ptr<Dialect> dialect = messages_dialect("{}");
  AnswerHead head;
  head.id = "msg_1";
  std::string events;
  dialect->begin(head, {}, events);
  events.clear();
  dialect->fail(api_error(kOutOfMemory, "why"), events);
  const std::string begin = "event: error\ndata: ";
  ASSERT_TRUE(events.starts_with(begin)) << events;
  EXPECT_EQ(json::parse(events.substr(begin.size())),
            json::parse(R"({"type":"error","request_id":"msg_1",
                            "error":{"type":"overloaded_error","message":"why"}})"));
}

// The error of a path without a route has the form of the most similar routes.
TEST(Refusals, HaveTheFormOfTheNearestRoute) {
  const ApiError error = api_error(kUnknownUrl, "why");
  const auto body = [&](const char* path) {
    return json::parse(nearest_route(path).refuse(error, "req_1").body);
  };
  for (const char* path : {"/v1/messages", "/messages", "/v1/messages/batches", "//v1/messages/"})
    EXPECT_EQ(body(path).value("type", ""), "error") << path;
  for (const char* path : {"/api/chat", "/api/blobs", "/api/blobs/sha256:1"})
    EXPECT_TRUE(body(path)["error"].is_string()) << path;
  for (const char* path : {"", "/", "/v1", "/v1/message", "/apis/chat", "/v1/chat/completions"})
    EXPECT_EQ(body(path)["error"].value("code", ""), "unknown_url") << path;
}

}  // namespace
}  // namespace bulkhead::orchestrator
