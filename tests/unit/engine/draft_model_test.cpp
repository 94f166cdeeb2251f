// A draft model guesses beside n-grams. Whatever it guesses, and whatever fails, the answers must be those without
// it.
#include "worker/engine/draft_model.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/support/sample.hpp"
#include "tests/unit/engine/speculating.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "tests/unit/engine/varied_requests.hpp"

namespace bulkhead::test {
namespace {

using engine::DraftContext;
using engine::DraftModel;
using engine::EngineOptions;
using engine::ExecutorLimits;
using ipc::TokenId;

// Sets how often the draft model agrees with the large one where the text repeats itself; 1 is always.
void agree(FakeExecutor& draft, double share) {
  draft.script = [share](std::span<const TokenId> history) -> std::optional<TokenId> {
    const auto token = repeats_itself(history);
    const auto at = static_cast<double>(history.size() * 7 % 10) / 10;
    return at < share ? token : TokenId{static_cast<TokenId>(history.size() % 250 + 1)};
  };
}

class DraftingEngine : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Depth, DraftingEngine, testing::Values(1U, 2U, 4U));

TEST_P(DraftingEngine, ChangesNoTokenOfAHundredRequests) {
  const std::vector<double> some = {0.7}, all = {0.0, 0.7, 1.0};
  for (const double share : kSample ? some : all) {
    for (const bool ngrams : {false, true}) {
      SCOPED_TRACE(share);
      FakeExecutor draft(limits_of(1));
      agree(draft, share);
      EngineOptions options = asking(draft, ngrams);
      options.scheduler.max_batch = 3;
      EngineHarness harness(limits_of(GetParam()), options);
      harness.executor.script = repeats_itself;
      submit_all(harness, 100);
      EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
      expect_all_same(harness, 100);
      EXPECT_GT(figure(harness, "draft_model_drafted_tokens_total"), 300);
      if (share > 0) {
        EXPECT_GT(figure(harness, "draft_model_accepted_tokens_total"), 100);
      }
      EXPECT_LE(figure(harness, "draft_model_drafted_tokens_total"),
                figure(harness, "speculation_drafted_tokens_total"));
    }
  }
}

// The models are the same, so they draw the same tokens, at a temperature of 1 as well, and with a top-k of the whole
// vocabulary.
TEST_P(DraftingEngine, DrawsWithTheSequencesOwnDraws) {
  for (const int draws : {0, 1, 2}) {
    FakeExecutor draft(limits_of(1));
    EngineHarness harness(limits_of(GetParam()), asking(draft));
    ipc::Submit request = greedy_request(1, {1, 2, 3}, 60);
    if (draws > 0) request.sampling.temperature = 1;
    if (draws > 1) request.sampling.top_k = limits_of(1).vocabulary;
    request.sampling.seed = 77;
    request.ignore_eos = true;
    harness.engine.submit(request);
    harness.run();
    const ipc::Finished& finished = *harness.answer(1).finished;
    EXPECT_EQ(finished.completion_tokens, 60U);
    EXPECT_GT(finished.accepted_drafts, 40U);
    EXPECT_EQ(finished.rejected_drafts, 0U);
    EXPECT_LT(harness.executor.steps.size(), 20U) << "of 60 tokens";
  }
}

TEST_P(DraftingEngine, LackOfPagesMakesNoDifference) {
  for (const std::uint32_t pages : {1U, 9U, 24U, 40U}) {
    SCOPED_TRACE(pages);
    ExecutorLimits few = limits_of(1);
    few.total_pages = pages;
    FakeExecutor draft(few);
    agree(draft, 0.7);
    ExecutorLimits limits = limits_of(GetParam());
    limits.total_pages = 50;
    EngineHarness harness(limits, asking(draft));
    harness.executor.script = repeats_itself;
    submit_all(harness, 40);
    EXPECT_GT(harness.engine.scheduler().preemptions(), 1U) << "the cache was never short";
    expect_all_same(harness, 40);
    if (pages > 9) {
      EXPECT_GT(figure(harness, "draft_model_accepted_tokens_total"), 10);
    }
  }
}

// A model with a shorter context guesses as far as its context goes.
TEST_P(DraftingEngine, AShorterContextEndsTheGuesses) {
  ExecutorLimits shorter = limits_of(1);
  shorter.context = 40;
  FakeExecutor draft(shorter);
  EngineHarness harness(limits_of(GetParam()), asking(draft));
  harness.engine.submit(endless(1, {1, 2, 3}, 100));
  harness.run();
  EXPECT_EQ(harness.answer(1).tokens, answer_to(harness.executor, {1, 2, 3}, 100));
  EXPECT_GT(harness.answer(1).finished->accepted_drafts, 20U);
  EXPECT_LT(harness.answer(1).finished->accepted_drafts, 40U);
}

// Sixteen sequences of a window of 10 positions need some 80 window pages. With fewer, how many sequences get pages
// depends on when their prompts are ready.
TEST_P(DraftingEngine, AModelWithWindowsGuesses) {
  for (const std::uint32_t window_pages : {40U, 200U}) {
    SCOPED_TRACE(window_pages);
    ExecutorLimits windowed = limits_of(1);
    windowed.window = 10;
    windowed.window_pages = window_pages;
    FakeExecutor draft(windowed);
    agree(draft, 0.7);
    EngineHarness harness(limits_of(GetParam()), asking(draft));
    harness.executor.script = repeats_itself;
    submit_all(harness, 40);
    expect_all_same(harness, 40);
    if (window_pages > 40) {
      EXPECT_GT(figure(harness, "draft_model_accepted_tokens_total"), 10);
    }
  }
}

// Each vocabulary has entries that the other one lacks, and answers and guesses have such tokens, too. What the draft
// model can't read or the model can't have is left out; everything else is guessed.
TEST_P(DraftingEngine, VocabulariesOfOtherLengthsMakeNoDifference) {
  for (const std::uint32_t vocabulary : {280U, 297U, 303U, 400U}) {
    SCOPED_TRACE(vocabulary);
    ExecutorLimits other = limits_of(1);
    other.vocabulary = vocabulary;
    FakeExecutor draft(other);
    EngineHarness harness(limits_of(GetParam()), asking(draft));
    harness.executor.script = repeats_itself;
    agree(draft, 0.7);
    submit_all(harness, 40);
    expect_all_same(harness, 40);
    EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
    EXPECT_GT(figure(harness, "draft_model_accepted_tokens_total"), 10);
  }
}

// The same model but for more entries at the end: it guesses some of them, and each such guess ends the guesses.
TEST_P(DraftingEngine, ALongerVocabularyEndsGuessesAtWhatTheModelLacks) {
  ExecutorLimits longer = limits_of(1);
  longer.vocabulary = 330;
  FakeExecutor draft(longer);
  EngineHarness harness(limits_of(GetParam()), asking(draft));
  harness.engine.submit(endless(1, {1, 2, 3}, 100));
  harness.run();
  EXPECT_EQ(harness.answer(1).tokens, answer_to(harness.executor, {1, 2, 3}, 100));
  EXPECT_GT(harness.answer(1).finished->accepted_drafts, 40U);
  EXPECT_EQ(harness.answer(1).finished->rejected_drafts, 0U);
}

// The device of the draft model never gets the prompt's token that it has no row for, and the other sequence is
// guessed.
TEST_P(DraftingEngine, AShorterVocabularyLeavesOutSequencesWithOtherTokens) {
  ExecutorLimits shorter = limits_of(1);
  shorter.vocabulary = 280;
  FakeExecutor draft(shorter);
  EngineHarness harness(limits_of(GetParam()), asking(draft));
  harness.executor.script = [](std::span<const TokenId>) { return TokenId{7}; };
  draft.script = harness.executor.script;
  harness.engine.submit(endless(1, {1, 280, 3}, 40));
  harness.engine.submit(endless(2, {1, 279, 3}, 40));
  harness.run();
  EXPECT_EQ(harness.answer(1).tokens, Tokens(40, 7));
  EXPECT_EQ(harness.answer(2).tokens, Tokens(40, 7));
  EXPECT_EQ(harness.answer(1).finished->accepted_drafts, 0U);
  EXPECT_GT(harness.answer(2).finished->accepted_drafts, 20U);
}

TEST_P(DraftingEngine, ASuccessorGoesOnWithTheSameTokens) {
  for (ipc::Submit request : varied_requests(12)) {
    const std::uint64_t id = request.request.value;
    SCOPED_TRACE(id);
    const Answer& expected = expected_answers(12).at(id);
    for (std::size_t sent = 1; sent < expected.tokens.size(); sent += 7) {
      const auto middle = expected.tokens.begin() + static_cast<std::ptrdiff_t>(sent);
      request.accepted_tokens.assign(expected.tokens.begin(), middle);
      FakeExecutor draft(limits_of(1));
      agree(draft, 0.7);
      EngineHarness harness(limits_of(GetParam()), asking(draft));
      harness.executor.script = repeats_itself;
      harness.engine.submit(request);
      harness.run();
      EXPECT_EQ(harness.answer(id).tokens, Tokens(middle, expected.tokens.end()));
    }
  }
}

TEST_P(DraftingEngine, CancellationFreesTheDraftModelsPages) {
  FakeExecutor draft(limits_of(1));
  EngineHarness harness(limits_of(GetParam()), asking(draft));
  for (std::uint64_t id = 1; id <= 3; ++id)
    harness.engine.submit(endless(id, some_tokens(id, 20), 80));
  harness.run_until_tokens(1, 20);
  harness.engine.cancel(RequestId{2});
  harness.run();
  for (const std::uint64_t id : {1U, 3U})
    EXPECT_EQ(harness.answer(id).tokens, answer_to(harness.executor, some_tokens(id, 20), 80));
}

// The worker must then end, because the device is lost for the large model, too.
TEST(DraftModel, ALostDeviceIsAnError) {
  FakeExecutor draft(limits_of(1));
  draft.lose_device_in = 2;
  EngineHarness harness(limits_of(1), asking(draft));
  harness.engine.submit(endless(1, {1, 2, 3}, 60));
  Status failure;
  for (int i = 0; i < 40 && failure.ok(); ++i) {
    if (const auto turn = harness.engine.turn([] {}); !turn.ok()) failure = turn.error();
  }
  ASSERT_FALSE(failure.ok());
  EXPECT_EQ(failure.error().code(), ErrorCode::kDeviceLost);
  EXPECT_NE(failure.error().message().find("draft model"), std::string::npos);
}

// Rows that are not numbers give no guesses.
TEST(DraftModel, GuessesNothingOfRowsThatAreNoNumbers) {
  FakeExecutor draft(limits_of(1));
  draft.poisoned_outputs = 5;
  EngineHarness harness(limits_of(1), asking(draft));
  harness.engine.submit(endless(1, {1, 2, 3}, 60));
  harness.run();
  EXPECT_EQ(harness.answer(1).tokens, answer_to(harness.executor, {1, 2, 3}, 60));
  EXPECT_EQ(harness.answer(1).finished->rejected_drafts, 0U);
  EXPECT_GT(harness.answer(1).finished->accepted_drafts, 20U);
}

// ---- the model alone ----

struct Alone {
  explicit Alone(const ExecutorLimits& limits)
      : executor(limits), model(executor, limits.vocabulary) {}

  // Returns the guesses after `tokens`.
  Tokens guess(DraftContext& context, const Tokens& tokens, std::uint32_t rounds) {
    Tokens guesses(engine::kMostDrafts);
    std::vector<DraftModel::Wanted> wanted(1);
    wanted[0].context = &context;
    wanted[0].tokens = tokens;
    wanted[0].choice.temperature = 0;
    wanted[0].guesses = guesses;
    const auto times = model.guess(wanted, rounds, engine::Clock::now);
    EXPECT_TRUE(times.ok());
    guesses.resize(wanted[0].count);
    return guesses;
  }

  FakeExecutor executor;
  DraftModel model;
};

TEST(DraftModel, GuessesWhatItsModelGoesOnWith) {
  Alone alone(limits_of(1));
  DraftContext context;
  Tokens tokens = {5, 6, 7};
  EXPECT_EQ(alone.guess(context, tokens, 4), answer_to(alone.executor, tokens, 4));
  // The first two guesses were right, and then came another token.
  tokens = tokens + answer_to(alone.executor, tokens, 2) + Tokens{99};
  EXPECT_EQ(alone.guess(context, tokens, 3), answer_to(alone.executor, tokens, 3));
  // All guesses were right, and one more token came.
  tokens = tokens + answer_to(alone.executor, tokens, 4);
  EXPECT_EQ(alone.guess(context, tokens, 3), answer_to(alone.executor, tokens, 3));
}

// The states that guesses left are not those that the sequence continues from.
TEST(DraftModel, WithStatesGuessesAfterTheSequencesOwnTokens) {
  ExecutorLimits limits = limits_of(1);
  limits.states = 5;  // two pairs, and one that is no pair
  limits.max_drafts = 0;
  Alone alone(limits);
  auto context = std::make_unique<DraftContext>();
  Tokens tokens = {5, 6, 7};
  EXPECT_EQ(alone.guess(*context, tokens, 4), answer_to(alone.executor, tokens, 4));
  for (const std::size_t right : {0U, 1U, 2U, 3U}) {
    tokens = tokens + answer_to(alone.executor, tokens, right) + Tokens{99};
    EXPECT_EQ(alone.guess(*context, tokens, 3), answer_to(alone.executor, tokens, 3)) << right;
  }
  tokens = tokens + answer_to(alone.executor, tokens, 4);
  EXPECT_EQ(alone.guess(*context, tokens, 3), answer_to(alone.executor, tokens, 3));
  // A third sequence gets slots once another one has ended.
  DraftContext second, third;
  const Tokens other = {9, 8, 7};
  EXPECT_EQ(alone.guess(second, other, 2).size(), 2U);
  EXPECT_TRUE(alone.guess(third, other, 2).empty());
  context.reset();
  const Tokens later = other + some_tokens(3, 64);
  Tokens guesses;
  for (int i = 0; i < 9 && guesses.empty(); ++i)
    guesses = alone.guess(third, later, 2);
  EXPECT_EQ(guesses, answer_to(alone.executor, later, 2));
}

// Both models may carry states, or one of them.
TEST_P(DraftingEngine, ModelsWithStatesChangeNoToken) {
  for (const bool large : {false, true}) {
    for (const std::uint32_t slots : {0U, 4U, 40U}) {
      SCOPED_TRACE(testing::Message() << large << slots);
      ExecutorLimits small = limits_of(1);
      small.states = slots;
      small.max_drafts = 0;
      FakeExecutor draft(small);
      agree(draft, 0.7);
      EngineHarness harness(large ? limits_with_states(GetParam()) : limits_of(GetParam()),
                            asking(draft));
      harness.executor.script = repeats_itself;
      submit_all(harness, 40);
      expect_all_same(harness, 40);
      if (slots != 4) {  // with two pairs, few sequences get any
        EXPECT_GT(figure(harness, "draft_model_accepted_tokens_total"), 10);
      }
    }
  }
}

TEST(DraftModel, ReadsALongPromptInPieces) {
  ExecutorLimits limits = limits_of(1);
  limits.context = 400;
  Alone alone(limits);
  DraftContext context;
  const Tokens tokens = some_tokens(3, 300);
  int calls = 0;
  Tokens guesses;
  for (; guesses.empty() && calls < 100; ++calls)
    guesses = alone.guess(context, tokens, 2);
  EXPECT_EQ(guesses, answer_to(alone.executor, tokens, 2));
  EXPECT_GT(calls, 3);
  EXPECT_TRUE(std::ranges::all_of(alone.executor.steps,
                                  [](const auto& step) { return step.columns <= 64; }));
  // Another sequence with the same beginning finds it already read.
  DraftContext other;
  const std::uint64_t read = alone.model.read_tokens();
  EXPECT_EQ(alone.guess(other, tokens, 2), guesses);
  EXPECT_LT(alone.model.read_tokens() - read, 10U);
}

// It gives its pages back so that the other one can be read, and gets pages again later.
TEST(DraftModel, LeavesOutASequenceForWhichItLacksPages) {
  ExecutorLimits limits = limits_of(1);
  limits.total_pages = 12;  // of 4 positions
  Alone alone(limits);
  DraftContext first, second;
  const Tokens a = some_tokens(1, 30), b = some_tokens(2, 28);
  Tokens guesses;
  for (int i = 0; i < 9 && guesses.empty(); ++i)
    guesses = alone.guess(first, a, 2);
  EXPECT_EQ(guesses, answer_to(alone.executor, a, 2));
  for (int i = 0; i < 9; ++i)
    EXPECT_TRUE(alone.guess(second, b, 2).empty());
  EXPECT_TRUE(second.pages.pages().empty());
  EXPECT_FALSE(alone.model.takes(second, b));
  EXPECT_TRUE(alone.model.takes(second, b + some_tokens(3, 64)));
  EXPECT_TRUE(alone.model.takes(first, a));
}

TEST(DraftModel, LeavesASequenceForGoodAtATokenThatItLacks) {
  Alone alone(limits_of(1));
  DraftContext context;
  Tokens tokens = some_tokens(1, 30);
  for (int i = 0; i < 9 && context.pages.pages().empty(); ++i)
    alone.guess(context, tokens, 2);
  tokens.push_back(limits_of(1).vocabulary);
  const std::uint64_t read = alone.model.read_tokens();
  EXPECT_TRUE(alone.guess(context, tokens, 2).empty());
  EXPECT_FALSE(alone.model.takes(context, tokens));
  EXPECT_TRUE(context.pages.pages().empty());
  tokens = tokens + some_tokens(2, 40);
  EXPECT_TRUE(alone.guess(context, tokens, 2).empty());
  EXPECT_FALSE(alone.model.takes(context, tokens));
  EXPECT_EQ(alone.model.read_tokens(), read);
  EXPECT_EQ(alone.model.pool().used_pages(), 0U);
}

}  // namespace
}  // namespace bulkhead::test
