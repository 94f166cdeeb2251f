// What coding agents and their protocols ask for besides text: which tools may be called, and what an answer is to be.
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

const ApiError* error_of(const Parsed<GenerationRequest>& parsed) {
  return std::get_if<ApiError>(&parsed);
}

// Claude Code asks so for a session's title.
TEST(OutputConfig, HoldsTheAnswerAndTellsTheEffort) {
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
  for (const auto& [effort, told] :
       {std::pair("low", "low"), std::pair("high", "high"), std::pair("xhigh", "high")}) {
    const auto parsed = parsed_with(R"("output_config":{"effort":")" + std::string(effort) + "\"}");
    ASSERT_EQ(error_of(parsed), nullptr);
    const auto& chat = std::get<ipc::ChatPrompt>(std::get<0>(parsed).prompts.front());
    EXPECT_EQ(json::parse(chat.json).at("chat_template_kwargs"),
              (json{{"reasoning_effort", told}}));
  }
  for (const char* wrong :
       {R"("output_config":5)", R"("output_config":{"effort":5})",
        R"("output_config":{"format":{"type":"text"}})",
        R"("output_config":{"format":{"type":"json_schema"}})", R"("output_format":[])"})
    EXPECT_NE(error_of(parsed_with(wrong)), nullptr) << wrong;
}

}  // namespace
}  // namespace bulkhead::orchestrator
