// Calls that the model did not finish: no client may take them for whole ones.
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/choice.hpp"
#include "orchestrator/http/dialect.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/responses.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

// Returns the parts of an answer with one call, whose arguments are `arguments` as far as they came.
std::vector<ipc::AnswerPart> parts_of(std::string_view arguments) {
  std::vector<ipc::AnswerPart> parts = {{ipc::PartKind::kCall, 0, "f", "c1"}};
  if (!arguments.empty())
    parts.push_back({ipc::PartKind::kArguments, 0, std::string(arguments), {}});
  return parts;
}

// Answers with that call. Returns the events.
std::string answer(Dialect& dialect, std::string_view arguments, ipc::FinishReason reason) {
  std::string events;
  dialect.begin(AnswerHead{true, "id", 5, "m"}, {}, events);
  dialect.add({}, parts_of(arguments), events);
  dialect.end(reason, {}, {}, events);
  return events;
}

json ollama_calls(std::string_view arguments, ipc::FinishReason reason) {
  const std::unique_ptr<Dialect> dialect = ollama_dialect(OllamaCall::kChat);
  answer(*dialect, arguments, reason);
  return json::parse(dialect->whole())["message"].value("tool_calls", json::array());
}

TEST(UnfinishedCalls, OfOllamasProtocolSayThatTheyAreBroken) {
  for (const char* broken : {"", "{", R"({"city": "Os)", R"("Oslo")"}) {
    EXPECT_TRUE(ollama_calls(broken, ipc::FinishReason::kLength).empty()) << broken;
    const json calls = ollama_calls(broken, ipc::FinishReason::kStop);
    ASSERT_EQ(calls.size(), 1U) << broken;
    EXPECT_EQ(calls[0]["function"]["arguments"], (json{{"INVALID_JSON", broken}}));
  }
  const json whole = ollama_calls("{}", ipc::FinishReason::kLength);
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0]["function"]["arguments"], json::object());
}

// Returns the arguments of the only call among a stream's events, put together as a client does it.
std::string streamed_input(std::string_view events) {
  std::string input;
  constexpr std::string_view kData = "data: ";
  for (std::size_t at = events.find(kData); at != events.npos; at = events.find(kData, at)) {
    at += kData.size();
    const json event = json::parse(events.substr(at, events.find('\n', at) - at));
    input += event.value("delta", json::object()).value("partial_json", "");
  }
  return input;
}

TEST(UnfinishedCalls, OfAnthropicsProtocolSayThatTheyAreBroken) {
  for (const char* broken : {"", "{", R"({"city": "Os)"}) {
    std::unique_ptr<Dialect> dialect = messages_dialect("{}");
    const std::string events = answer(*dialect, broken, ipc::FinishReason::kStop);
    const json content = json::parse(dialect->whole())["content"];
    ASSERT_EQ(content.size(), 1U) << broken;
    EXPECT_EQ(content[0]["input"], (json{{"INVALID_JSON", broken}}));
    EXPECT_EQ(streamed_input(events), *broken == 0 ? R"({"INVALID_JSON":""})" : broken) << events;
    dialect = messages_dialect("{}");
    answer(*dialect, broken, ipc::FinishReason::kLength);
    EXPECT_TRUE(json::parse(dialect->whole())["content"].empty()) << broken;
  }
  const std::unique_ptr<Dialect> dialect = messages_dialect("{}");
  answer(*dialect, "{}", ipc::FinishReason::kStop);
  EXPECT_EQ(json::parse(dialect->whole())["content"][0]["input"], json::object());
}

// A limit cuts only the answer's end. The model itself broke what stands before.
TEST(UnfinishedCalls, BeforeACutAreShown) {
  const std::unique_ptr<Dialect> dialect = messages_dialect("{}");
  std::string events;
  dialect->begin(AnswerHead{true, "id", 5, "m"}, {}, events);
  dialect->add({}, parts_of(R"("Oslo")"), events);
  dialect->add({}, {{{ipc::PartKind::kContent, 0, "so", {}}}}, events);
  dialect->add({}, parts_of(R"({"ci)"), events);
  dialect->end(ipc::FinishReason::kLength, {}, {}, events);
  const json content = json::parse(dialect->whole())["content"];
  ASSERT_EQ(content.size(), 2U) << content;
  EXPECT_EQ(content[0]["input"], (json{{"INVALID_JSON", R"("Oslo")"}}));
  EXPECT_EQ(content[1]["text"], "so");
}

// OpenAI's protocols have calls with text, and a word for an answer that is not complete.
TEST(UnfinishedCalls, OfOpenaisProtocolsAreIncomplete) {
  const AnswerHead head{true, "id", 5, "m"};
  for (const auto& [arguments, whole] :
       std::initializer_list<std::pair<const char*, bool>>{{"", false},
                                                           {R"({"city": "Os)", false},
                                                           {R"({"city": Oslo})", false},
                                                           {R"("Oslo")", true},
                                                           {"{}", true}}) {
    const std::vector<ipc::AnswerPart> parts = parts_of(arguments);
    for (const bool stream : {false, true}) {
      std::string events;
      const Choice::Emit emit = [&](std::string_view event) { events += event; };
      Choice choice(head, ChoiceOptions{.stream = stream}, 0, true);
      choice.tokens({RequestId{1}, 0, {}, {}, {}, {parts[0]}}, emit);
      ipc::Finished finished;
      finished.parts.assign(parts.begin() + 1, parts.end());
      choice.finished(finished, emit);
      EXPECT_EQ(choice.finish_reason(), whole ? "tool_calls" : "length") << arguments;
      EXPECT_EQ(events.find("\"length\"") != events.npos, stream && !whole) << events;
    }
    const std::unique_ptr<Dialect> dialect = responses_dialect("{}");
    answer(*dialect, arguments, ipc::FinishReason::kStop);
    const json response = json::parse(dialect->whole());
    const char* const status = whole ? "completed" : "incomplete";
    EXPECT_EQ(response["status"], status) << arguments;
    ASSERT_EQ(response["output"].size(), 1U);
    EXPECT_EQ(response["output"][0]["status"], status) << arguments;
  }
}

}  // namespace
}  // namespace bulkhead::orchestrator
