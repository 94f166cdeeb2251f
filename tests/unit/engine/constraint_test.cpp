// Answers with a schema, a grammar or an expression: they follow it, alone and among others, after a resumption and
// after losing pages. A constraint that can't be followed is refused.
#include "worker/constrain/constraint.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/support/sample.hpp"
#include "tests/unit/engine/speculating.hpp"
#include "worker/engine/delayed_constraint.hpp"
#include "worker/engine/grammar_constraint.hpp"

namespace bulkhead::test {
namespace {

using ipc::Constraint;
using ipc::ConstraintKind;
using ipc::FinishReason;
using ::testing::HasSubstr;

const char* const kSchema =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["name", "age"],
        "additionalProperties": false})";

engine::ExecutorLimits roomy() {
  engine::ExecutorLimits limits = small_limits();
  limits.context = 512;
  return limits;
}

ipc::Submit held(std::uint64_t id, Constraint constraint, std::uint32_t max_tokens = 200) {
  ipc::Submit request = sampled_request(id, some_tokens(id, 9), max_tokens, 400 + id);
  request.constraint = std::move(constraint);
  return request;
}

std::vector<ipc::Submit> some_of_each() {
  std::vector<ipc::Submit> requests = {
      held(1, {ConstraintKind::kJsonSchema, kSchema, "response_format"}),
      held(2, {ConstraintKind::kRegex, "[a-c]{5}(x|yy)", "regex"}),
      held(3, {ConstraintKind::kGrammar, "root ::= \"yes\" | \"no\" root", "grammar"}),
      held(4, {ConstraintKind::kJsonSchema, kSchema, "response_format"}),
      sampled_request(5, some_tokens(5, 30), 40, 9),
      greedy_request(6, some_tokens(6, 12), 40),
  };
  requests[3].sampling.temperature = 0;
  requests[3].logprobs = 2;
  requests[1].sampling = {.temperature = 1.5F, .top_p = 0.9F, .frequency_penalty = 0.3F, .seed = 3};
  return requests;
}

bool follows(const Constraint& constraint, const std::string& text) {
  const auto compiled =
      constraint.kind == ConstraintKind::kJsonSchema
          ? constrain::compile_schema(constraint.text, constrain::Strictness::kStrict)
      : constraint.kind == ConstraintKind::kRegex ? constrain::compile_regex(constraint.text)
                                                  : constrain::compile_gbnf(constraint.text);
  return compiled.ok() && constrain::check_text(compiled->grammar, text).passed;
}

Answer alone(const ipc::Submit& request) {
  EngineHarness harness(roomy());
  harness.engine.submit(request);
  harness.run();
  return harness.answer(request.request.value);
}

TEST(Constrained, AnswersFollowWhatTheyAreHeldTo) {
  int stopped = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (ipc::Submit request : some_of_each()) {
      if (request.constraint.kind == ConstraintKind::kNone) continue;
      request.sampling.seed += 1000 * seed;
      const Answer answer = alone(request);
      ASSERT_TRUE(answer.finished) << answer.failed->message;
      if (answer.finished->reason == FinishReason::kLength) continue;
      ++stopped;
      EXPECT_TRUE(follows(request.constraint, answer.text)) << answer.text;
    }
  }
  EXPECT_GT(stopped, 60);
}

// Text with only one possible continuation takes few steps, and has the same tokens and probabilities as without
// guesses.
TEST(Constrained, TextThatMustComeIsGuessedAndNoTokenChanges) {
  const Constraint grammar = {
      ConstraintKind::kGrammar,
      R"(root ::= "The temperature outside is " [0-9]{1,2} " degrees and it will be " ("rainy" | "dry") " tomorrow.")",
      "grammar"};
  const auto answer_with = [&](engine::Speculation speculation, std::uint64_t seed,
                               std::size_t& steps) {
    engine::ExecutorLimits limits = limits_of(1);
    limits.context = 512;
    EngineHarness harness(limits, options_of(speculation));
    ipc::Submit request = held(1, grammar);
    request.sampling.seed = seed;
    request.logprobs = 2;
    harness.engine.submit(request);
    harness.run();
    steps = harness.executor.steps.size();
    return harness.answer(1);
  };
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    std::size_t plain_steps = 0, guessed_steps = 0;
    const Answer plain = answer_with(engine::Speculation::kOff, seed, plain_steps);
    const Answer guessed = answer_with(engine::Speculation::kAlways, seed, guessed_steps);
    ASSERT_TRUE(guessed.finished.has_value());
    EXPECT_EQ(guessed.tokens, plain.tokens);
    EXPECT_EQ(guessed.text, plain.text);
    EXPECT_EQ(guessed.logprobs, plain.logprobs);
    EXPECT_GT(guessed.finished->accepted_drafts, plain.tokens.size() / 2);
    EXPECT_LT(guessed_steps * 2, plain_steps) << plain.text;
  }
}

// An executor without masks has the host draw the same tokens. With masks, steps in flight and guesses change nothing.
TEST(Constrained, WhoDrawsAndHowFarAheadChangesNoToken) {
  const auto answers_of = [](bool adjusts, std::uint32_t depth, engine::Speculation speculation) {
    engine::ExecutorLimits limits = limits_of(depth);
    limits.context = 512;
    limits.adjusts = adjusts;
    EngineHarness harness(limits, options_of(speculation));
    for (std::uint64_t round = 0; round < 3; ++round) {
      for (ipc::Submit request : some_of_each()) {
        request.request.value += 6 * round;
        request.sampling.seed += round;
        if (round > 0) {  // the device can draw these
          request.sampling = {.temperature = 1, .top_p = 0.9F, .seed = request.sampling.seed};
          request.logprobs = -1;
        }
        if (round == 1) request.sampling.top_k = 20;
        if (round == 2 && request.request.value % 2 == 0) request.sampling.temperature = 0;
        harness.engine.submit(request);
        if (round == 1) harness.turn();
      }
    }
    harness.run();
    std::map<std::uint64_t, Answer> answers;
    for (std::uint64_t id = 1; id <= 18; ++id)
      answers[id] = harness.answer(id);
    return answers;
  };
  const auto expected = answers_of(false, 1, engine::Speculation::kOff);
  for (const bool adjusts : {false, true}) {
    for (const std::uint32_t depth : {1U, 2U, 3U}) {
      for (const auto speculation :
           {engine::Speculation::kOff, engine::Speculation::kNgram, engine::Speculation::kAlways}) {
        SCOPED_TRACE(testing::Message() << "adjusts " << adjusts << " depth " << depth);
        for (const auto& [id, answer] : answers_of(adjusts, depth, speculation)) {
          const Answer& other = expected.at(id);
          EXPECT_EQ(answer.tokens, other.tokens) << "request " << id;
          EXPECT_EQ(answer.text, other.text);
          EXPECT_EQ(answer.logprobs, other.logprobs);
          ASSERT_TRUE(answer.finished && other.finished);
          EXPECT_EQ(answer.finished->reason, other.finished->reason);
        }
      }
    }
  }
}

// A held stream has a column in each step, as a free one has.
TEST(Constrained, AStepsTokenIsDrawnWhileTheNextStepIsComputed) {
  engine::ExecutorLimits limits = limits_of(2);
  limits.context = 512;
  for (const float temperature : {0.0F, 1.0F}) {
    EngineHarness harness(limits, options_of(engine::Speculation::kOff));
    ipc::Submit request = held(1, {ConstraintKind::kRegex, "[0-9]{60}", "regex"}, 60);
    request.sampling = {.temperature = temperature, .top_p = 0.9F, .seed = 1};
    harness.engine.submit(request);
    harness.run();
    ASSERT_EQ(harness.answer(1).tokens.size(), 60U);
    EXPECT_EQ(harness.executor.steps.size(), 60U);
    EXPECT_EQ(std::ranges::count(harness.executor.steps, std::size_t{2},
                                 &FakeExecutor::StepRecord::in_flight),
              59);
  }
}

TEST(Constrained, NeighboursAndTheySayTheSameAsAlone) {
  EngineHarness harness(roomy());
  for (const ipc::Submit& request : some_of_each()) {
    harness.engine.submit(request);
    harness.turn();
  }
  harness.run();
  for (const ipc::Submit& request : some_of_each()) {
    const Answer& answer = harness.answer(request.request.value);
    const Answer expected = alone(request);
    EXPECT_EQ(answer.tokens, expected.tokens) << "request " << request.request.value;
    EXPECT_EQ(answer.text, expected.text);
    EXPECT_EQ(answer.logprobs, expected.logprobs);
  }
}

TEST(Constrained, AResumedAnswerGoesOnAsItWouldHave) {
  for (const ipc::Submit& request : some_of_each()) {
    const Answer whole = alone(request);
    for (std::size_t kept = 0; kept <= whole.tokens.size(); kept += kStride) {
      ipc::Submit resumed = request;
      resumed.accepted_tokens.assign(whole.tokens.begin(),
                                     whole.tokens.begin() + static_cast<std::ptrdiff_t>(kept));
      const Answer rest = alone(resumed);
      ASSERT_TRUE(rest.finished);
      std::vector<ipc::TokenId> tokens = resumed.accepted_tokens;
      tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
      EXPECT_EQ(tokens, whole.tokens) << "kept " << kept;
      EXPECT_EQ(rest.finished->reason, whole.finished->reason);
      EXPECT_EQ(rest.finished->completion_tokens, whole.finished->completion_tokens);
    }
  }
}

TEST(Constrained, TheEndComesOnlyWhereItMay) {
  EngineHarness harness(roomy());
  harness.executor.script = [](std::span<const ipc::TokenId>) { return FakeTokenizer::kEos; };
  std::uint64_t id = 0;
  for (const char* expression : {"ab+", "abc", ""}) {
    ipc::Submit request = held(++id, {ConstraintKind::kRegex, expression, "regex"});
    request.sampling.temperature = 0;
    harness.engine.submit(request);
  }
  harness.run();
  EXPECT_EQ(harness.answer(1).text, "ab");  // the answer ends as soon as the end is allowed
  EXPECT_EQ(harness.answer(2).text, "abc");
  EXPECT_EQ(harness.answer(3).text, "");  // only the end is allowed
  for (; id > 0; --id)
    EXPECT_EQ(harness.answer(id).finished->reason, FinishReason::kStop);
  EXPECT_EQ(harness.answer(2).finished->completion_tokens, 3U);
}

TEST(Constrained, WhatIsCutSaysSo) {
  const Answer answer =
      alone(held(1, {ConstraintKind::kJsonSchema, kSchema, "response_format"}, 7));
  EXPECT_EQ(answer.finished->reason, FinishReason::kLength);
  EXPECT_EQ(answer.tokens.size(), 7U);
}

TEST(Constrained, PromptsOfTokensAndOfTextAreHeldAlike) {
  ipc::Submit request = held(1, {ConstraintKind::kRegex, "[0-9]{12}", "regex"});
  request.prompt = std::string("digits, please");
  const Answer answer = alone(request);
  ASSERT_TRUE(answer.finished);
  EXPECT_TRUE(follows(request.constraint, answer.text)) << answer.text;
}

TEST(Constrained, WhatCannotBeEnforcedIsRefusedByItsField) {
  struct Case {
    Constraint constraint;
    const char* word;
  };
  const Case cases[] = {
      {{ConstraintKind::kJsonSchema, R"({"type": "array", "uniqueItems": true})",
        "response_format"},
       "uniqueItems"},
      {{ConstraintKind::kJsonSchema, R"({"type": "integer", "minimum": 2, "maximum": 1})",
        "response_format"},
       ""},
      {{ConstraintKind::kJsonSchema, "{", "response_format"}, "schema"},
      {{ConstraintKind::kGrammar, "root ::= nobody", "grammar"}, "nobody"},
      {{ConstraintKind::kRegex, "(", "regex"}, "regex"},
  };
  for (const Case& each : cases) {
    const Answer answer = alone(held(1, each.constraint));
    ASSERT_TRUE(answer.failed) << each.constraint.text;
    EXPECT_FALSE(answer.accepted);
    EXPECT_EQ(answer.failed->parameter, each.constraint.parameter);
    EXPECT_THAT(answer.failed->message, HasSubstr(each.word));
    EXPECT_TRUE(answer.failed->code == ipc::FailureCode::kInvalidRequest ||
                answer.failed->code == ipc::FailureCode::kUnsupported);
  }
}

TEST(MaskedSampling, DrawsAmongTheMasksTokensAlone) {
  constexpr std::uint32_t kTokens = 1000;
  std::vector<float> row(kTokens);
  for (std::uint32_t i = 0; i < kTokens; ++i)
    row[i] = static_cast<float>((i * 7919) % 101) / 10.0F;
  const std::vector<ipc::TokenId> ids = {3, 64, 517, 999};
  for (const ipc::TokenId id : ids)
    row[id] = id == 517 ? 1.0F : 0.0F;
  row[700] = 1000;  // by far the best token, but not allowed
  std::vector<std::uint32_t> mask((kTokens + 31) / 32, 0);
  for (const ipc::TokenId id : ids)
    mask[id / 32] |= 1U << (id % 32);
  engine::Sampler sampler(kTokens);
  const auto draw = [&](ipc::Sampling sampling, std::uint64_t n) {
    return *sampler.sample(row, sampling, n, {.mask = mask});
  };
  EXPECT_EQ(draw({.temperature = 0}, 0), 517U);
  EXPECT_EQ(draw({.temperature = 1, .top_k = 1}, 5), 517U);
  constexpr int kDraws = 20000;
  std::map<ipc::TokenId, int> counts;
  for (int n = 0; n < kDraws; ++n)
    ++counts[draw({.temperature = 1, .seed = 9}, static_cast<std::uint64_t>(n))];
  const double whole = 3 + std::exp(1.0);
  EXPECT_EQ(counts.size(), ids.size());
  for (const ipc::TokenId id : ids) {
    EXPECT_NEAR(counts[id] / double{kDraws}, (id == 517 ? std::exp(1.0) : 1.0) / whole, 0.015)
        << id;
  }
  EXPECT_FALSE(sampler.sample(row, {}, 0, {.mask = std::vector<std::uint32_t>(4, 0)}).ok());
}

TEST(DelayedConstraint, HoldsAfterItsMarkAndLetsNoEndComeBefore) {
  const FakeTokenizer tokenizer({"<think>", "</think>", "k>\n"});
  const auto id = [&](const char* text) { return tokenizer.encode(text, false, false); };
  const auto opened = [&](const char* prompt, const model::answer::Family& family) {
    return engine::open_reasoning(tokenizer, id(prompt), family);
  };
  const model::answer::Family& thinks = *model::answer::family_named("hermes");
  EXPECT_EQ(opened("assistant\n<think>\n", thinks), "</think>");
  EXPECT_EQ(opened("<think> assistant", thinks), "");
  EXPECT_EQ(opened("", thinks), "");
  // Another family's mark is ordinary text, and so is a channel's name.
  EXPECT_EQ(opened("assistant\n<think>\n", model::answer::plain_family()), "");
  EXPECT_EQ(opened("Go on with the analysis", thinks), "");
  EXPECT_EQ(opened("Go on with the analysis", *model::answer::family_named("gpt-oss")), "");

  engine::ConstraintCompiler compiler;
  const auto digits = [&] {
    return std::make_unique<engine::DelayedConstraint>(
        *compiler.compile({ConstraintKind::kRegex, "[0-9]{2}", "regex"}, tokenizer), "</think>",
        tokenizer);
  };
  const auto allowed = [](engine::TokenConstraint& constraint, ipc::TokenId token) {
    const auto mask = *constraint.mask();
    return (mask[token / 32] >> (token % 32) & 1) != 0;
  };
  // The mark as one token, and in pieces.
  for (const std::vector<ipc::TokenId>& mark :
       {id("</think>"), std::vector<ipc::TokenId>{'<', '/', 't', 'h', 'i', 'n', 260}}) {
    const auto constraint = digits();
    for (const char c : std::string("Hm, < 12 < 13."))
      constraint->advance(static_cast<unsigned char>(c));
    EXPECT_TRUE(allowed(*constraint, 'x'));
    EXPECT_FALSE(allowed(*constraint, FakeTokenizer::kEos));
    for (const ipc::TokenId token : mark)
      constraint->advance(token);
    EXPECT_FALSE(allowed(*constraint, 'x'));
    EXPECT_TRUE(allowed(*constraint, '7'));
    EXPECT_FALSE(constraint->complete());
    constraint->advance('7');
    constraint->advance('8');
    EXPECT_TRUE(constraint->complete());
  }
}

TEST(DelayedConstraint, HoldsForWhatTheMarksOwnTokenAdds) {
  const FakeTokenizer tokenizer({"</think", ">{", ">7", ">\n", ">78", "k>x", "</think>y"});
  const auto id = [&](const char* text) { return tokenizer.encode(text, false, false).at(0); };
  engine::ConstraintCompiler compiler;
  engine::DelayedConstraint constraint(
      *compiler.compile({ConstraintKind::kRegex, "[0-9]{2}", "regex"}, tokenizer), "</think>",
      tokenizer);
  const auto allowed = [&](ipc::TokenId token) {
    const auto mask = *constraint.mask();
    return (mask[token / 32] >> (token % 32) & 1) != 0;
  };
  EXPECT_TRUE(allowed(id(">{")));
  EXPECT_FALSE(allowed(id("</think>y")));
  constraint.advance(id("</think"));
  EXPECT_FALSE(allowed(id(">{")));
  EXPECT_FALSE(allowed(id(">78"))) << "no token has this text";
  EXPECT_TRUE(allowed(id("k>x")));
  EXPECT_TRUE(allowed(id(">\n")));
  EXPECT_TRUE(allowed('>'));
  EXPECT_TRUE(allowed(id(">7")));
  constraint.advance(id(">7"));
  EXPECT_FALSE(constraint.complete());
  EXPECT_FALSE(allowed('x'));
  constraint.advance('8');
  EXPECT_TRUE(constraint.complete());
}

TEST(DelayedConstraint, FindsAMarkThatTheContinuedTextBegan) {
  const FakeTokenizer tokenizer({"</think>"});
  engine::ConstraintCompiler compiler;
  engine::DelayedConstraint constraint(
      *compiler.compile({ConstraintKind::kRegex, "[0-9]{2}", "regex"}, tokenizer), "</think>",
      tokenizer, nullptr, "Let me see.</thi");
  for (const char c : std::string("nk>12"))
    constraint.advance(static_cast<unsigned char>(c));
  EXPECT_TRUE(constraint.complete());
}

TEST(LogitBias, MakesTokensLikelyAndImpossible) {
  ipc::Submit request = sampled_request(1, some_tokens(1, 9), 20, 5);
  request.logit_bias = {{'x', 100}};
  EXPECT_EQ(alone(request).text, std::string(20, 'x'));
  request.sampling.temperature = 0;
  EXPECT_EQ(alone(request).text, std::string(20, 'x'));
  request.logit_bias.clear();
  const Answer free = alone(request);
  for (const ipc::TokenId token : free.tokens)
    request.logit_bias.push_back({token, -100});
  for (const ipc::TokenId token : alone(request).tokens)
    EXPECT_EQ(std::ranges::count(free.tokens, token), 0);
  request.logit_bias = {{4000, 1}};
  const Answer refused = alone(request);
  ASSERT_TRUE(refused.failed);
  EXPECT_EQ(refused.failed->parameter, "logit_bias");
}

TEST(StopTokens, EndAnAnswerAsTheEndOfTheTextDoes) {
  ipc::Submit request = greedy_request(1, some_tokens(3, 9), 20);
  const Answer free = alone(request);
  ASSERT_GT(free.tokens.size(), 5U);
  request.stop_tokens = {free.tokens[4]};
  const auto end = std::ranges::find(free.tokens, free.tokens[4]) - free.tokens.begin();
  const Answer answer = alone(request);
  EXPECT_EQ(answer.finished->reason, FinishReason::kStop);
  EXPECT_EQ(answer.tokens, (std::vector(free.tokens.begin(), free.tokens.begin() + end)));
  request.stop_tokens = {free.tokens[4], 99999};
  const Answer refused = alone(request);
  ASSERT_TRUE(refused.failed);
  EXPECT_FALSE(refused.accepted);
  EXPECT_EQ(refused.failed->parameter, "stop");
  EXPECT_THAT(refused.failed->message, HasSubstr("stop token 99999 at index 1"));
}

}  // namespace
}  // namespace bulkhead::test
