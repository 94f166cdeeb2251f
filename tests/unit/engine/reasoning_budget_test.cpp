// How long answers may reason, and answers in channels that must follow a schema.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/engine_harness.hpp"
#include "worker/constrain/constraint.hpp"

namespace bulkhead::test {
namespace {

using ipc::FinishReason;
using ipc::PartKind;

const std::vector<std::string> kWords = {"<think>",     "</think>", "<|start|>",     "<|channel|>",
                                         "<|message|>", "<|end|>",  "<|constrain|>", "assistant",
                                         "analysis",    "final"};

class ReasoningHarness : public EngineHarness {
 public:
  ReasoningHarness(const char* family, const std::string& prompt_end)
      : EngineHarness(limits(), {}, kWords) {
    language.chat = jinja::Chat::load("{{ messages[0].content }}" + prompt_end, "", "");
    language.family = model::answer::family_named(family);
  }

 private:
  static engine::ExecutorLimits limits() {
    engine::ExecutorLimits limits = small_limits();
    limits.context = 1000;
    return limits;
  }
};

ipc::Submit asks(std::int32_t budget, std::uint64_t seed = 5) {
  ipc::Submit submit = sampled_request(1, {}, 120, seed);
  submit.prompt = ipc::ChatPrompt{R"({"messages":[{"role":"user","content":"hi"}]})"};
  submit.sampling.temperature = 1.5F;
  submit.ignore_eos = false;
  submit.reasoning_budget = budget;
  return submit;
}

// The answer must be five of these letters.
ipc::Submit asks_for_five_letters(std::int32_t budget) {
  ipc::Submit submit = asks(budget);
  submit.constraint = {ipc::ConstraintKind::kRegex, "[a-c]{5}", "regex"};
  return submit;
}

Answer answer_to(const ipc::Submit& request, const char* family, const std::string& prompt_end) {
  ReasoningHarness harness(family, prompt_end);
  harness.engine.submit(request);
  harness.run();
  return harness.answer(1);
}

// Returns five letters after a message of the assistant that has begun.
Answer answer_that_continues(const std::string& message, std::int32_t budget) {
  ReasoningHarness harness("hermes", "");
  harness.language.chat =
      jinja::Chat::load("{% for m in messages %}[{{ m.content }}]{% endfor %}", "", "");
  ipc::Submit request = asks_for_five_letters(budget);
  request.prompt = ipc::ChatPrompt{
      R"({"continue_final_message": true, "messages": [{"role": "user", "content": "hi"},
                          {"role": "assistant", "content": ")" +
      message + "\"}]}"};
  harness.engine.submit(request);
  harness.run();
  return harness.answer(1);
}

std::string text_of(const Answer& answer, PartKind kind) {
  std::string text;
  for (const ipc::AnswerPart& part : answer.parts) {
    if (part.kind == kind) text += part.text;
  }
  return text;
}

TEST(ReasoningBudget, EndsReasoningAfterThisManyTokens) {
  const auto closer = FakeTokenizer::kFirstWord + 1;
  const Answer free = answer_to(asks(-1), "hermes", "<think>");
  ASSERT_GT(free.tokens.size(), 20U);
  ASSERT_EQ(std::ranges::find(free.tokens.begin(), free.tokens.begin() + 20, closer),
            free.tokens.begin() + 20)
      << "another seed is needed";
  for (const std::int32_t budget : {0, 1, 7, 20}) {
    const Answer bounded = answer_to(asks(budget), "hermes", "<think>");
    ASSERT_TRUE(bounded.finished);
    const auto length = static_cast<std::size_t>(budget);
    ASSERT_GT(bounded.tokens.size(), length);
    // Before that, the answer is the same.
    EXPECT_TRUE(
        std::equal(free.tokens.begin(), free.tokens.begin() + budget, bounded.tokens.begin()));
    EXPECT_EQ(bounded.tokens[length], closer) << budget;
    EXPECT_GE(bounded.finished->reasoning_tokens, length);
  }
}

TEST(ReasoningBudget, ThatIsNotReachedChangesNothing) {
  const Answer free = answer_to(asks(-1), "hermes", "");
  const Answer bounded = answer_to(asks(1000), "hermes", "");
  EXPECT_EQ(free.tokens, bounded.tokens);
}

TEST(ReasoningBudget, ComesBeforeAnAnswerThatIsHeld) {
  const Answer answer = answer_to(asks_for_five_letters(6), "hermes", "<think>");
  ASSERT_TRUE(answer.finished);
  EXPECT_EQ(answer.finished->reason, FinishReason::kStop);
  EXPECT_EQ(answer.tokens.size(), 6U + 1 + 5);
  EXPECT_EQ(text_of(answer, PartKind::kContent).size(), 5U);
}

TEST(ReasoningBudget, AResumedAnswerKeepsIt) {
  const Answer whole = answer_to(asks(9), "hermes", "<think>");
  for (std::size_t kept = 0; kept < 16; ++kept) {
    ipc::Submit again = asks(9);
    again.accepted_tokens.assign(whole.tokens.begin(),
                                 whole.tokens.begin() + static_cast<std::ptrdiff_t>(kept));
    const Answer rest = answer_to(again, "hermes", "<think>");
    std::vector<ipc::TokenId> tokens = again.accepted_tokens;
    tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(tokens, whole.tokens) << kept;
  }
}

// The schema applies to the content: the channel's header comes before the content, and reasoning may come first.
TEST(Channels, AnswersFollowTheirSchemaInTheFinalChannel) {
  const char* const schema = R"({"type": "object", "additionalProperties": false, "required": ["a"],
                                 "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}}})";
  const auto compiled = constrain::compile_schema(schema, constrain::Strictness::kStrict);
  int ended = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    ipc::Submit request = asks(10, seed);
    request.constraint = {ipc::ConstraintKind::kJsonSchema, schema, "response_format"};
    const Answer answer = answer_to(request, "gpt-oss", "<|start|>assistant");
    ASSERT_TRUE(answer.finished) << answer.failed->message;
    if (answer.finished->reason == FinishReason::kLength) continue;
    const std::string content = text_of(answer, PartKind::kContent);
    EXPECT_TRUE(constrain::check_text(compiled->grammar, content).passed) << content;
    ++ended;
  }
  EXPECT_GT(ended, 6);
}

// A message that the prompt has begun has its header already.
TEST(Channels, AMessageThatIsGoneOnWithIsHeldAtOnce) {
  const Answer answer = answer_to(asks_for_five_letters(-1), "gpt-oss",
                                  "<|start|>assistant<|channel|>final<|message|>");
  ASSERT_TRUE(answer.finished);
  EXPECT_EQ(answer.tokens.size(), 5U);
}

// The message that the answer continues has opened reasoning. The answer's form applies to what
// follows the reasoning.
TEST(ContinuedReasoning, ComesBeforeAnAnswerOfAWantedForm) {
  const Answer answer = answer_that_continues("<think>Let me", 7);
  ASSERT_TRUE(answer.finished);
  EXPECT_EQ(answer.tokens.size(), 7U + 1U + 5U);
  EXPECT_FALSE(text_of(answer, PartKind::kReasoning).empty());
  EXPECT_EQ(text_of(answer, PartKind::kContent).size(), 5U);
  EXPECT_EQ(text_of(answer, PartKind::kReasoning).find("Let me"), std::string::npos);
}

// After content, the mark of reasoning is text.
TEST(ContinuedContent, ThatEndsWithAMarkOpensNoReasoning) {
  const Answer answer = answer_that_continues("I write <think>", -1);
  ASSERT_TRUE(answer.finished);
  EXPECT_EQ(answer.tokens.size(), 5U);
}

}  // namespace
}  // namespace bulkhead::test
