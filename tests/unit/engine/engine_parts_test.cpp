// Answers in parts: a chat whose model reasons or calls tools, read by the engine as it is generated.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/support/sample.hpp"

namespace bulkhead::test {
namespace {

using ipc::PartKind;

constexpr const char* kRaw =
    "<think>\nhm\n</think>\n\nLook:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
    "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])";
constexpr std::size_t kPromptTokens = 2;

// The model generates `raw`, a byte for each token, and then ends.
class PartsHarness : public EngineHarness {
 public:
  explicit PartsHarness(const std::string& raw) : EngineHarness(limits()) {
    language.chat = jinja::Chat::load("{{ messages[0].content }}", "", "");
    language.family = model::answer::family_named("hermes");
    executor.script = [raw](std::span<const engine::TokenId> history) {
      const std::size_t next = history.size() - kPromptTokens;
      return std::optional<engine::TokenId>(
          next < raw.size() ? static_cast<unsigned char>(raw[next]) : FakeTokenizer::kEos);
    };
  }

 private:
  static engine::ExecutorLimits limits() {
    engine::ExecutorLimits limits = small_limits();
    limits.context = 1000;
    return limits;
  }
};

ipc::Submit chat_request(const std::string& more = kTools) {
  ipc::Submit submit = greedy_request(1, {}, 0);
  submit.prompt = ipc::ChatPrompt{R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}"};
  submit.ignore_eos = false;
  submit.sampling.seed = 5;
  return submit;
}

// Returns every byte with the kind of its part, so that answers in different pieces can be compared.
std::string flat(const std::vector<ipc::AnswerPart>& parts) {
  std::string out;
  for (const ipc::AnswerPart& part : parts) {
    if (part.kind == PartKind::kCall) {
      out += "[" + part.id + " " + part.text + " " + std::to_string(part.call) + "]";
      continue;
    }
    for (const char c : part.text)
      out += std::string(1, "crka"[static_cast<int>(part.kind)]) + c;
  }
  return out;
}

TEST(EngineParts, ReasoningContentAndCalls) {
  PartsHarness harness(kRaw);
  harness.engine.submit(chat_request());
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_TRUE(answer.finished.has_value());
  EXPECT_EQ(answer.text, "");
  EXPECT_EQ(answer.finished->reason, ipc::FinishReason::kStop);
  EXPECT_EQ(answer.finished->completion_tokens, std::string(kRaw).size());
  EXPECT_GT(answer.finished->reasoning_tokens, 1U);
  EXPECT_LT(answer.finished->reasoning_tokens, 16U);
  ASSERT_EQ(answer.parts.size(), 6U);
  EXPECT_EQ(answer.parts[0], (ipc::AnswerPart{PartKind::kReasoning, 0, "hm", ""}));
  EXPECT_EQ(answer.parts[1], (ipc::AnswerPart{PartKind::kContent, 0, "Look:", ""}));
  EXPECT_EQ(answer.parts[2].text, "f");
  EXPECT_EQ(answer.parts[3], (ipc::AnswerPart{PartKind::kArguments, 0, "{\"a\": 1}", ""}));
  EXPECT_EQ(answer.parts[4].text, "g");
  EXPECT_NE(answer.parts[2].id, answer.parts[4].id);
  EXPECT_EQ(answer.parts[5], (ipc::AnswerPart{PartKind::kArguments, 1, "{}", ""}));
}

// Wherever the worker died, a successor continues with what was not sent yet, with the same ids. What one worker has
// sent at each place is what it would have sent before it died there; one successor gets the request for all places.
TEST(EngineParts, AResumedAnswerHasTheSameParts) {
  PartsHarness calm(kRaw);
  calm.engine.submit(chat_request());
  calm.run();
  const std::vector<ipc::TokenId> tokens = calm.answer(1).tokens;
  const std::string whole = flat(calm.answer(1).parts);
  PartsHarness first(kRaw), second(kRaw);
  first.engine.submit(chat_request());
  for (std::size_t kept = 0; kept <= tokens.size(); kept += kStride) {
    first.run_until_tokens(1, kept);
    ASSERT_EQ(first.answer(1).tokens.size(), kept);
    second.answers.clear();
    ipc::Submit again = chat_request();
    again.accepted_tokens.assign(tokens.begin(),
                                 tokens.begin() + static_cast<std::ptrdiff_t>(kept));
    second.engine.submit(again);
    second.run();
    EXPECT_EQ(flat(first.answer(1).parts) + flat(second.answer(1).parts), whole) << kept;
    EXPECT_EQ(second.answer(1).finished->reasoning_tokens,
              calm.answer(1).finished->reasoning_tokens);
  }
}

TEST(EngineParts, OneCallIsAllWhereNoMoreAreWanted) {
  PartsHarness harness(kRaw);
  ipc::Submit request = chat_request();
  request.one_call = true;
  harness.engine.submit(request);
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_EQ(answer.parts.size(), 4U);
  EXPECT_EQ(answer.parts[3].text, "{\"a\": 1}");
  EXPECT_EQ(answer.finished->reason, ipc::FinishReason::kStop);
  EXPECT_LT(answer.tokens.size(), std::string(kRaw).size());
}

// The broken call is the answer's last one, and no limit cut it. The tokens that the request brings do not follow the
// grammar of calls.
TEST(EngineParts, ABrokenCallIsAllWhereNoMoreAreWanted) {
  const std::string raw =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\" "
      "1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", ";
  PartsHarness harness(raw + "\"arguments\": {}}\n</tool_call>");
  ipc::Submit request = chat_request();
  request.one_call = true;
  for (const char byte : raw)
    request.accepted_tokens.push_back(static_cast<unsigned char>(byte));
  harness.engine.submit(request);
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_TRUE(answer.finished.has_value());
  EXPECT_EQ(answer.finished->reason, ipc::FinishReason::kStop);
  EXPECT_LE(answer.finished->completion_tokens, raw.size()) << "the second call's name ends it";
}

TEST(EngineParts, AStopStringEndsAPart) {
  PartsHarness harness(kRaw);
  ipc::Submit request = chat_request();
  request.stop = {"ook"};
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(flat(harness.answer(1).parts), "rhrmcL");
  EXPECT_EQ(harness.answer(1).finished->reason, ipc::FinishReason::kStop);
}

TEST(EngineParts, AStopStringThatCutsACallSaysSo) {
  PartsHarness harness(kRaw);
  ipc::Submit request = chat_request();
  request.stop = {"\": 1"};
  harness.engine.submit(request);
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_EQ(answer.parts.size(), 4U);
  EXPECT_EQ(answer.parts[3].text, "{\"a");
  EXPECT_EQ(answer.finished->reason, ipc::FinishReason::kLength);
}

// No limit cut this call. So protocols whose calls have objects show what the model wrote of it. The tokens that the
// request brings do not follow the grammar of calls, so the model may end its answer anywhere.
TEST(EngineParts, AModelThatEndsWithinACallHasStopped) {
  const std::string raw = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\" 1";
  PartsHarness harness(raw);
  ipc::Submit request = chat_request();
  for (const char byte : raw)
    request.accepted_tokens.push_back(static_cast<unsigned char>(byte));
  harness.engine.submit(request);
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_TRUE(answer.finished.has_value());
  EXPECT_EQ(answer.finished->completion_tokens, raw.size());
  EXPECT_EQ(answer.finished->reason, ipc::FinishReason::kStop);
}

TEST(EngineParts, WithoutToolsWhatLooksLikeACallIsText) {
  PartsHarness harness("a <tool_call>\n{\"name\": \"f\"}");
  harness.engine.submit(chat_request(R"("tools":[])"));
  harness.run();
  ASSERT_EQ(harness.answer(1).parts.size(), 1U);
  EXPECT_EQ(harness.answer(1).parts[0].text, "a <tool_call>\n{\"name\": \"f\"}");
}

// A family without reasoning, and no tools: the text is not divided into parts.
TEST(EngineParts, WhatHasNoPartsStaysText) {
  PartsHarness harness(" x \n\n");
  harness.language.family = &model::answer::plain_family();
  harness.engine.submit(chat_request());
  harness.run();
  EXPECT_TRUE(harness.answer(1).parts.empty());
  EXPECT_EQ(harness.answer(1).text, " x \n\n");
}

TEST(EngineParts, APromptThatTheTemplateRefusesFailsWithItsWords) {
  PartsHarness harness("");
  harness.language.chat =
      jinja::Chat::load("{{ raise_exception('no ' ~ messages[0].role) }}", "", "");
  harness.engine.submit(chat_request());
  harness.run();
  ASSERT_TRUE(harness.answer(1).failed.has_value());
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kInvalidRequest);
  EXPECT_EQ(harness.answer(1).failed->message, "no user");
  EXPECT_EQ(harness.answer(1).failed->parameter, "messages");
}

TEST(EngineParts, TheTemplatesTimeIsTheRequests) {
  PartsHarness harness("");
  harness.language.chat = jinja::Chat::load("{{ strftime_now('%d') }}", "", "");
  ipc::Submit request = chat_request();
  std::get<ipc::ChatPrompt>(request.prompt).local_seconds = 1768478400;  // 2026-01-15 12:00
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(harness.answer(1).accepted->prompt_tokens, (std::vector<ipc::TokenId>{'1', '5'}));
}

// The template's BOS and the tokenizer's give only one token; a BOS in a user's text stays text.
TEST(EngineParts, BosComesOnce) {
  const auto prompt = [](bool adds_bos, const std::string& source) {
    const FakeTokenizer tokenizer({}, 300, adds_bos);
    PartsHarness harness("");
    harness.language.tokenizer = &tokenizer;
    const std::string bos(tokenizer.vocabulary_text(FakeTokenizer::kBos));
    harness.language.chat = jinja::Chat::load(source, bos, "");
    harness.engine.submit(chat_request());
    harness.run();
    return harness.answer(1).accepted->prompt_tokens;
  };
  const std::vector<ipc::TokenId> plain = {'h', 'i'};
  std::vector<ipc::TokenId> with_bos = {FakeTokenizer::kBos, 'h', 'i'};
  EXPECT_EQ(prompt(false, "{{ messages[0].content }}"), plain);
  EXPECT_EQ(prompt(true, "{{ messages[0].content }}"), with_bos);
  EXPECT_EQ(prompt(true, "{{ bos_token }}{{ messages[0].content }}"), with_bos);
}

}  // namespace
}  // namespace bulkhead::test
