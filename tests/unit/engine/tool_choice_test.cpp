// Answers that must be calls, or may be. Whatever the model prefers, calls are of offered tools and their arguments
// are valid: alone, among others, and after a resumption at every token.
#include <algorithm>
#include <bit>
#include <cctype>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/sample.hpp"
#include "tests/unit/engine/speculating.hpp"
#include "tests/unit/engine/tool_harness.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/engine/call_constraints.hpp"
#include "worker/engine/call_grammar.hpp"
#include "worker/engine/draft_source.hpp"
#include "worker/model/answer/derived_family.hpp"

namespace bulkhead::test {
namespace {

using ipc::FinishReason;
using ipc::PartKind;
using ipc::ToolChoice;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

bool has_content(const Answer& answer) {
  return std::ranges::any_of(
      answer.parts, [](const ipc::AnswerPart& part) { return part.kind == PartKind::kContent; });
}

TEST(ToolChoice, RequiredIsOneCallAtLeastAndNothingElse) {
  int ended = 0;
  ToolHarness harness;
  for (std::uint64_t id = 0; id < 12; ++id) {
    harness.engine.submit(asks(id, ToolChoice::kRequired));
    harness.run();
    const Answer& answer = harness.answer(id);
    ASSERT_TRUE(answer.finished) << answer.failed->message;
    EXPECT_FALSE(has_content(answer));
    if (answer.finished->reason == FinishReason::kLength) continue;
    EXPECT_GE(calls_of(answer).size(), 1U);
    expect_valid(answer);
    ++ended;
  }
  EXPECT_GT(ended, 0);
}

TEST(ToolChoice, NamedIsOneCallOfThatTool) {
  ToolHarness harness;
  for (std::uint64_t id = 0; id < 12; ++id) {
    harness.engine.submit(asks(id, ToolChoice::kNamed));
    harness.run();
    const Answer& answer = harness.answer(id);
    ASSERT_TRUE(answer.finished) << answer.failed->message;
    ASSERT_EQ(answer.finished->reason, FinishReason::kStop);
    ASSERT_EQ(calls_of(answer).size(), 1U);
    EXPECT_EQ(calls_of(answer)[0].name, "get_weather");
    EXPECT_FALSE(has_content(answer));
    expect_valid(answer);
  }
}

// A guess after which the constraint may hold is drawn without a mask, and dropped if the constraint does hold there.
TEST(ToolChoice, MasksStepsAheadAndGuessesChangeNoTokenOfCalls) {
  const std::string raw =
      R"(I look.<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn", )"
      R"("days": 3}}</tool_call><tool_call>{"name": "get_time", "arguments": )"
      R"({}}</tool_call>That is all.)";
  const auto answer_with = [&](bool adjusts, std::uint32_t depth, ToolChoice choice,
                               const engine::EngineOptions& options) {
    engine::ExecutorLimits limits = limits_of(depth);
    limits.context = 1000;
    limits.adjusts = adjusts;
    ToolHarness harness("hermes", "", kWords, limits, options);
    harness.says(raw, 2);
    ipc::Submit request = asks(1, choice);
    request.sampling = {.temperature = 1, .seed = 4};
    harness.engine.submit(request);
    harness.run();
    return harness.answer(1);
  };
  const engine::EngineOptions plain = options_of(engine::Speculation::kOff);
  for (const ToolChoice choice : {ToolChoice::kAuto, ToolChoice::kRequired, ToolChoice::kNamed}) {
    const Answer expected = answer_with(false, 1, choice, plain);
    ASSERT_TRUE(expected.finished);
    ASSERT_FALSE(calls_of(expected).empty());
    for (const double accuracy : {0.0, 0.8, 1.0}) {
      engine::EngineOptions options = options_of(engine::Speculation::kAlways);
      options.draft_source = [&](std::span<const ipc::TokenId> prompt) {
        std::vector<ipc::TokenId> all(prompt.begin(), prompt.end());
        all.insert(all.end(), expected.tokens.begin(), expected.tokens.end());
        return std::make_unique<engine::RecordedSource>(all, accuracy, 300);
      };
      for (const std::uint32_t depth : {1U, 2U, 3U}) {
        for (const bool adjusts : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << accuracy << " depth " << depth << " adjusts " << adjusts);
          const Answer answer =
              answer_with(adjusts, depth, choice, accuracy == 0 ? plain : options);
          EXPECT_EQ(answer.tokens, expected.tokens);
          EXPECT_EQ(answer.parts, expected.parts);
          ASSERT_TRUE(answer.finished);
          EXPECT_EQ(answer.finished->reason, expected.finished->reason);
          if (accuracy == 1.0) {
            EXPECT_GT(answer.finished->accepted_drafts, 20U);
          }
        }
      }
    }
  }
}

// The prompt has opened the reasoning, which is not restricted; then the call comes.
TEST(ToolChoice, ReasoningComesBeforeTheCall) {
  int reasoned = 0;
  ToolHarness harness("hermes", "<think>");
  for (std::uint64_t id = 0; id < 6; ++id) {
    harness.engine.submit(asks(id, ToolChoice::kNamed));
    harness.run();
    const Answer& answer = harness.answer(id);
    ASSERT_TRUE(answer.finished) << answer.failed->message;
    EXPECT_FALSE(has_content(answer));
    if (answer.finished->reason == FinishReason::kLength) continue;
    EXPECT_EQ(calls_of(answer).size(), 1U);
    expect_valid(answer);
    ++reasoned;
  }
  EXPECT_GT(reasoned, 0);
}

// The table has no row for this template, so the form of a call is derived from it.
TEST(ToolChoice, CallsOfADerivedFamilyAreHeld) {
  int ended = 0;
  ToolHarness harness;
  harness.language.chat = jinja::Chat::load(
      "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{\"fn\":"
      "{{ c.function.name | tojson }},\"args\":{{ c.function.arguments | tojson }}}</call>"
      "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
      "", "");
  harness.language.family = &model::answer::family_of_chat(*harness.language.chat);
  for (std::uint64_t id = 0; id < 6; ++id) {
    harness.engine.submit(asks(id, ToolChoice::kRequired));
    harness.run();
    const Answer& answer = harness.answer(id);
    ASSERT_TRUE(answer.finished) << answer.failed->message;
    EXPECT_FALSE(has_content(answer));
    if (answer.finished->reason == FinishReason::kLength) continue;
    EXPECT_THAT(harness.tokenizer.decode(answer.tokens), HasSubstr("<call>"));
    EXPECT_GE(calls_of(answer).size(), 1U);
    expect_valid(answer);
    ++ended;
  }
  EXPECT_GT(ended, 0);
}

// Agents send both: a call is a call, and all other text follows the schema.
TEST(ToolChoice, BesideASchemaAnAnswerIsCallsOrFollowsIt) {
  const std::string schema =
      R"({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false})";
  const auto answer_to = [&](std::uint64_t id, const std::string& raw) {
    ToolHarness harness;
    if (!raw.empty()) harness.says(raw, 2);
    ipc::Submit request = asks(id, ToolChoice::kAuto);
    request.constraint = {ipc::ConstraintKind::kJsonSchema, schema, "response_format"};
    harness.engine.submit(request);
    harness.run();
    const Answer answer = harness.answer(id);
    EXPECT_TRUE(answer.finished.has_value());
    return answer;
  };
  const auto content_of = [](const Answer& answer) {
    std::string content = answer.text;
    for (const ipc::AnswerPart& part : answer.parts)
      if (part.kind == PartKind::kContent) content += part.text;
    return content;
  };
  const Answer call = answer_to(
      1, R"(<tool_call>{"name": "get_weather", "arguments": {"days": "many"}}</tool_call>)");
  ASSERT_FALSE(calls_of(call).empty());
  EXPECT_EQ(content_of(call), "");
  const Answer text = answer_to(2, R"({"ok":true})");
  EXPECT_TRUE(calls_of(text).empty());
  EXPECT_EQ(json::parse(content_of(text)), (json{{"ok", true}}));
  for (std::uint64_t id = 3; id < 11; ++id) {
    const Answer answer = answer_to(id, id % 2 == 0 ? "Look: " : "");
    if (answer.finished->reason == FinishReason::kLength) continue;
    expect_valid(answer);
    EXPECT_NE(calls_of(answer).empty(), content_of(answer).empty());
    if (calls_of(answer).empty()) {
      EXPECT_TRUE(json::parse(content_of(answer)).at("ok").is_boolean());
    }
  }
}

TEST(ToolChoice, AutoHoldsACallFromItsMarkOn) {
  ToolHarness harness;
  // After the name, the model would continue wrongly in every way.
  harness.says(
      R"(Look: <tool_call>{"name": "get_weather", "arguments": {"days": "many"}}</tool_call>)", 2);
  harness.engine.submit(asks(1, ToolChoice::kAuto));
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_TRUE(answer.finished);
  EXPECT_TRUE(has_content(answer));
  ASSERT_FALSE(calls_of(answer).empty());
  EXPECT_THAT(calls_of(answer)[0].arguments, Not(HasSubstr("many")));
  if (answer.finished->reason == FinishReason::kStop) expect_valid(answer);
}

// An answer that is valid anyway stays as the model generates it, token by token.
TEST(ToolChoice, AutoChangesNoValidAnswer) {
  const std::string raw =
      "Sure.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", "
      "\"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": "
      "{}}\n</tool_call>";
  ToolHarness harness;
  harness.says(raw, 2);
  ipc::Submit request = asks(1, ToolChoice::kAuto);
  request.sampling.temperature = 0;
  harness.engine.submit(request);
  harness.run();
  const Answer& answer = harness.answer(1);
  ASSERT_TRUE(answer.finished);
  EXPECT_EQ(harness.tokenizer.decode(answer.tokens), raw);
  EXPECT_EQ(calls_of(answer).size(), 2U);
  expect_valid(answer);
}

// Repeats a text that a model was made to say as its own words in an answer that may have calls. Each token
// must be allowed, and from the call's mark on few others. `prompt_end` may have opened reasoning, which the
// call ends.
void expect_held_when_said(const ToolHarness& harness, const std::vector<ipc::TokenId>& tokens,
                           const std::string& prompt_end) {
  engine::CallConstraints constraints(harness.tokenizer, *harness.language.family);
  engine::ToolUse use;
  use.tools = json::parse("{" + tools() + "}").at("tools").dump();
  model::answer::AnswerRequest request;
  request.tools = *model::answer::Tools::from_json(use.tools);
  request.prompt_end = prompt_end;
  std::string parameter;
  const auto held = constraints.hold(use, {}, std::move(request), parameter);
  ASSERT_TRUE(held.ok()) << held.error().message();
  std::size_t narrow = 0;
  for (const ipc::TokenId token : tokens) {
    const auto mask = held->constraint->mask();
    ASSERT_TRUE(mask.ok());
    if (!mask->empty()) {
      EXPECT_NE((*mask)[token / 32] >> (token % 32) & 1, 0U) << harness.language.family->name;
      const auto may = [](int sum, std::uint32_t word) { return sum + std::popcount(word); };
      if (std::accumulate(mask->begin(), mask->end(), 0, may) < 200) ++narrow;
    }
    held->constraint->advance(token);
  }
  EXPECT_GT(narrow, 20U) << harness.language.family->name;
}

// Marks that are tokens of their own, and marks that are written letter by letter.
TEST(ToolChoice, EachFamilyCanBeMadeToCall) {
  std::size_t tried = 0;
  for (const model::answer::Family& family : model::answer::families()) {
    if (family.calls.syntax == model::answer::CallSyntax::kNone) continue;
    const model::answer::Calls& calls = family.calls;
    std::vector<std::string> marks = {calls.section,          calls.tags.param_open,
                                      calls.tags.key_close,   calls.tags.value_open,
                                      calls.tags.value_close, calls.string_mark};
    for (const auto* more : {&calls.opens, &calls.closers, &calls.name_ends, &calls.other_marks})
      marks.insert(marks.end(), more->begin(), more->end());
    std::ranges::sort(marks);
    marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
    std::erase_if(marks, [](const std::string& mark) { return mark.size() < 6; });
    const bool channels = calls.syntax == model::answer::CallSyntax::kChannels;
    // A sample takes each way for every other family.
    const bool letters_first = tried++ % 2 == 0;
    for (const bool letters : {letters_first, !letters_first}) {
      if (kSample && letters != letters_first) continue;
      int ended = 0;
      ToolHarness harness(family.name.c_str(), channels ? "<|start|>assistant" : "",
                          letters ? std::vector<std::string>() : marks);
      for (std::uint64_t id = 0; id < 3 && !(kSample && ended > 0); ++id) {
        ipc::Submit request = asks(id, ToolChoice::kNamed);
        request.max_tokens *= 2;  // some families' marks are long
        harness.engine.submit(std::move(request));
        harness.run();
        const Answer& answer = harness.answer(id);
        ASSERT_TRUE(answer.finished) << family.name << answer.failed->message;
        EXPECT_FALSE(has_content(answer)) << family.name;
        if (answer.finished->reason == FinishReason::kLength) continue;
        ++ended;
        EXPECT_EQ(calls_of(answer).size(), 1U) << family.name;
        expect_valid(answer);
        // A call that the prompt began is held in answers that may have calls only if its name comes at once.
        const std::string said = harness.tokenizer.decode(answer.tokens);
        if (calls.begun_by_prompt && std::isspace(static_cast<unsigned char>(said[0])) != 0)
          continue;
        expect_held_when_said(harness, answer.tokens, channels ? "<|start|>assistant" : "");
        if (family.reasoning.ends_at_call)
          expect_held_when_said(harness, answer.tokens, family.reasoning.open);
      }
      EXPECT_GT(ended, 0) << family.name;
    }
  }
}

std::vector<ipc::Submit> some_of_each() {
  std::vector<ipc::Submit> requests = {asks(1, ToolChoice::kNamed), asks(2, ToolChoice::kRequired),
                                       asks(3, ToolChoice::kAuto), asks(4, ToolChoice::kNamed)};
  for (ipc::Submit& request : requests)
    request.max_tokens = 120;
  return requests;
}

TEST(ToolChoice, NeighboursAndTheySayTheSameAsAlone) {
  ToolHarness harness;
  for (const ipc::Submit& request : some_of_each()) {
    harness.engine.submit(request);
    harness.turn();
  }
  harness.run();
  for (const ipc::Submit& request : some_of_each())
    EXPECT_EQ(harness.answer(request.request.value).tokens, alone(request).tokens);
}

TEST(ToolChoice, AResumedAnswerGoesOnAsItWouldHave) {
  for (const ipc::Submit& request : some_of_each()) {
    const Answer whole = alone(request);
    ToolHarness successor;
    for (std::size_t kept = 0; kept <= whole.tokens.size(); kept += 3 * kStride) {
      ipc::Submit resumed = request;
      resumed.accepted_tokens.assign(whole.tokens.begin(),
                                     whole.tokens.begin() + static_cast<std::ptrdiff_t>(kept));
      successor.answers.clear();
      successor.engine.submit(resumed);
      successor.run();
      const Answer& rest = successor.answer(request.request.value);
      ASSERT_TRUE(rest.finished);
      std::vector<ipc::TokenId> tokens = resumed.accepted_tokens;
      tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
      EXPECT_EQ(tokens, whole.tokens) << "kept " << kept;
      EXPECT_EQ(rest.finished->reason, whole.finished->reason);
    }
  }
}

double counter(const EngineHarness& harness, const std::string& name) {
  for (const ipc::Counter& each : harness.engine.stats().counters) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return -1;
}

// Returns tokens of several kinds of calls: right calls, wrong ones that the grammar corrects, and no calls.
std::optional<engine::TokenId> calls_now_and_then(std::span<const engine::TokenId> history) {
  static const std::vector<engine::TokenId> tokens = FakeTokenizer(kWords).encode(
      "So. <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": "
      "2}}\n"
      "</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"more\": "
      "1}}\n</tool_call>",
      false, false);
  if (history.size() % 11 == 0) return std::nullopt;
  return tokens[history.size() % tokens.size()];
}

std::vector<ipc::Submit> some_that_may_call() {
  std::vector<ipc::Submit> requests;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    requests.push_back(asks(id, ToolChoice::kAuto));
    requests.back().max_tokens = 160;
    requests.back().ignore_eos = id % 2 == 0;
    if (id % 3 == 0) requests.back().sampling.temperature = 0;
    if (id == 4) requests.back().reasoning_budget = 3;
    if (id == 5) requests.back().logprobs = 2;
  }
  return requests;
}

std::vector<std::vector<ipc::TokenId>> tokens_of_all(ToolHarness& harness) {
  harness.executor.script = calls_now_and_then;
  for (const ipc::Submit& request : some_that_may_call())
    harness.engine.submit(request);
  harness.run();
  std::vector<std::vector<ipc::TokenId>> tokens;
  for (const ipc::Submit& request : some_that_may_call()) {
    const Answer& answer = harness.answer(request.request.value);
    EXPECT_TRUE(answer.finished);
    tokens.push_back(answer.tokens);
  }
  while (harness.turn()) {
  }
  EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
  return tokens;
}

// The tokens are the same whether host or device draws, however far steps are planned ahead, with few pages and with
// guesses.
TEST(ToolChoice, TheDeviceDrawsWhileNothingIsHeld) {
  ToolHarness on_host;
  const auto tokens = tokens_of_all(on_host);
  double ahead = 0;
  for (const bool states : {false, true}) {
    for (const bool few_pages : {false, true}) {
      for (const auto speculation : {engine::Speculation::kOff, engine::Speculation::kAlways}) {
        engine::ExecutorLimits limits = tool_limits();
        limits.steps_in_flight = 3;
        limits.sampled_top_k = 64;
        limits.most_logprobs = 20;
        limits.max_drafts = 15;
        limits.states = states ? 27 : 0;
        if (few_pages)
          limits.total_pages = 200 / limits.page_tokens;  // room for one answer and a little more
        engine::EngineOptions options;
        options.speculation = speculation;
        ToolHarness harness("hermes", "", kWords, limits, options);
        EXPECT_EQ(tokens_of_all(harness), tokens) << states << few_pages;
        ahead += counter(harness, "steps_ahead_total");
      }
    }
  }
  EXPECT_GT(ahead, 0);
}

}  // namespace
}  // namespace bulkhead::test
