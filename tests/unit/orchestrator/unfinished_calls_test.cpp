// Calls that the model did not finish, in protocols whose calls have objects: no client may take them for whole ones.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/dialect.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/ollama.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

// Answers with one call, whose arguments are `arguments` as far as they came. Returns the events.
std::string answer(Dialect& dialect, std::string_view arguments, ipc::FinishReason reason) {
  std::string events;
  dialect.begin(AnswerHead{true, "id", 5, "m"}, {}, events);
  std::vector<ipc::AnswerPart> parts = {{ipc::PartKind::kCall, 0, "f", "c1"}};
  if (!arguments.empty())
    parts.push_back({ipc::PartKind::kArguments, 0, std::string(arguments), {}});
  dialect.add({}, parts, events);
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

TEST(UnfinishedCalls, OfAnthropicsProtocolSayThatTheyAreBroken) {
  for (const char* broken : {"", "{", R"({"city": "Os)"}) {
    std::unique_ptr<Dialect> dialect = messages_dialect("{}");
    const std::string events = answer(*dialect, broken, ipc::FinishReason::kStop);
    const json content = json::parse(dialect->whole())["content"];
    ASSERT_EQ(content.size(), 1U) << broken;
    EXPECT_EQ(content[0]["input"], (json{{"INVALID_JSON", broken}}));
    EXPECT_NE(events.find("partial_json"), std::string::npos) << events;
    dialect = messages_dialect("{}");
    answer(*dialect, broken, ipc::FinishReason::kLength);
    EXPECT_TRUE(json::parse(dialect->whole())["content"].empty()) << broken;
  }
  const std::unique_ptr<Dialect> dialect = messages_dialect("{}");
  answer(*dialect, "{}", ipc::FinishReason::kStop);
  EXPECT_EQ(json::parse(dialect->whole())["content"][0]["input"], json::object());
}

}  // namespace
}  // namespace bulkhead::orchestrator
