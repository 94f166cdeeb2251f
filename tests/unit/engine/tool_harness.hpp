// An engine whose model may call two tools, and functions that check its answers' calls.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/engine_harness.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/model/answer/family.hpp"

namespace bulkhead::test {

inline const char* const kSchema =
    R"({"type": "object", "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 14}}, "required": ["city", "days"],
        "additionalProperties": false})";

inline std::string tools(const char* more = "") {
  return R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":)" +
         std::string(kSchema) + more +
         R"(}},{"type":"function","function":{"name":"get_time","parameters":{"type":"object",
          "properties":{},"additionalProperties":false}}}])";
}

// The words of a vocabulary in which the family's marks are separate tokens.
inline const std::vector<std::string> kWords = {"<tool_call>", "</tool_call>",  "<think>",
                                                "</think>",    "{\"name\": \"", "\"arguments\": {",
                                                "\"}}",        "}}\n",          ">{\"name\""};

inline engine::ExecutorLimits tool_limits() {
  engine::ExecutorLimits limits = small_limits();
  limits.context = 1000;
  return limits;
}

class ToolHarness : public EngineHarness {
 public:
  explicit ToolHarness(const char* family = "hermes", const char* prompt_end = "",
                       std::vector<std::string> words = kWords,
                       const engine::ExecutorLimits& limits = tool_limits(),
                       const engine::EngineOptions& options = {})
      : EngineHarness(limits, options, std::move(words)) {
    language.chat =
        jinja::Chat::load("{{ messages[0].content }}" + std::string(prompt_end), "", "");
    language.family = model::answer::family_named(family);
  }
  // Makes the model say `raw` wherever its constraint allows that, and then end.
  void says(const std::string& raw, std::size_t prompt_tokens) {
    const std::vector<engine::TokenId> tokens = tokenizer.encode(raw, false, false);
    executor.script = [tokens, prompt_tokens](std::span<const engine::TokenId> history) {
      const std::size_t next = history.size() - prompt_tokens;
      return std::optional<engine::TokenId>(next < tokens.size() ? tokens[next]
                                                                 : FakeTokenizer::kEos);
    };
  }
};

inline ipc::Submit asks(std::uint64_t id, ipc::ToolChoice choice,
                        const std::string& more = tools()) {
  ipc::Submit submit = sampled_request(id, {}, 300, 900 + id);
  submit.prompt = ipc::ChatPrompt{R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}"};
  submit.sampling.temperature = 1.5F;
  submit.ignore_eos = false;
  submit.tool_choice = choice;
  if (choice == ipc::ToolChoice::kNamed) submit.tool_name = "get_weather";
  return submit;
}

// Returns the answer of an engine that has no other request.
inline Answer alone(const ipc::Submit& request, const char* family = "hermes",
                    const char* prompt_end = "") {
  ToolHarness harness(family, prompt_end);
  harness.engine.submit(request);
  harness.run();
  return harness.answer(request.request.value);
}

struct Call {
  std::string name, arguments;
};
inline std::vector<Call> calls_of(const Answer& answer) {
  std::vector<Call> calls;
  for (const ipc::AnswerPart& part : answer.parts) {
    if (part.kind == ipc::PartKind::kCall) calls.push_back({part.text, {}});
    if (part.kind == ipc::PartKind::kArguments) calls.back().arguments += part.text;
  }
  return calls;
}

inline void expect_valid(const Answer& answer) {
  static const auto schema = constrain::compile_schema(kSchema, constrain::Strictness::kStrict);
  for (const Call& call : calls_of(answer)) {
    if (call.name == "get_time") {
      EXPECT_EQ(nlohmann::json::parse(call.arguments), nlohmann::json::object()) << call.arguments;
    } else {
      EXPECT_EQ(call.name, "get_weather");
      EXPECT_TRUE(constrain::check_text(schema->grammar, call.arguments).passed) << call.arguments;
    }
  }
}

}  // namespace bulkhead::test
