// Guesses change how many tokens a step gives, and nothing else. Tokens, texts, log-probabilities and ends are those
// of one token for each step, whatever is guessed and however wrong it is; and no page with a wrong guess can be
// found.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/support/sample.hpp"
#include "tests/unit/engine/speculating.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "tests/unit/engine/varied_requests.hpp"
#include "worker/engine/draft_source.hpp"

namespace bulkhead::test {
namespace {

using engine::DraftSource;
using engine::EngineOptions;
using engine::ExecutorLimits;
using engine::NgramSource;
using engine::RecordedSource;
using engine::Speculation;
using ipc::TokenId;

Tokens guessed(const DraftSource& source, const Tokens& tokens, std::size_t count) {
  Tokens guesses(count);
  guesses.resize(source.guess(tokens, guesses));
  return guesses;
}

TEST(NgramSource, ExpectsWhatFollowedTheLastTokensBefore) {
  NgramSource source(100);
  Tokens tokens = {1, 2, 3, 4, 5, 6, 9, 2, 3};
  source.advance(tokens);
  EXPECT_TRUE(guessed(source, tokens, 2).empty()) << "two tokens are no key";
  tokens.push_back(4);
  source.advance(tokens);
  EXPECT_EQ(guessed(source, tokens, 3), (Tokens{5, 6, 9}));
  tokens.push_back(5);
  source.advance(tokens);
  EXPECT_EQ(guessed(source, tokens, 2), (Tokens{6, 9})) << "it goes on there";
  tokens.push_back(77);
  source.advance(tokens);
  EXPECT_TRUE(guessed(source, tokens, 2).empty()) << "it was wrong, and nothing else is known";
}

TEST(NgramSource, GoesOnWithAPeriodPastTheEndOfWhatIsKnown) {
  NgramSource source(100);
  const Tokens tokens = {8, 1, 2, 1, 2, 1};
  source.advance(tokens);
  EXPECT_EQ(guessed(source, tokens, 6), (Tokens{2, 1, 2, 1, 2, 1}));
}

TEST(NgramSource, TakesTheNewerOfTwoPlaces) {
  NgramSource source(100);
  const Tokens tokens = {1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3};
  source.advance(tokens);
  EXPECT_EQ(guessed(source, tokens, 1), (Tokens{60}));
}

TEST(RecordedSource, IsRightAsOftenAsItsOptionsSay) {
  const Tokens recorded = some_tokens(1, 2000);
  const RecordedSource source(recorded, 0.8, 256);
  const Tokens guesses = guessed(source, {}, 2000);
  ASSERT_EQ(guesses.size(), recorded.size());
  std::size_t right = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i)
    right += guesses[i] == recorded[i] ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(right) / 2000, 0.8, 0.03);
}

// ---- the engine ----

// Guesses what the request's answer will be, wrong now and then.
EngineOptions guessing(double accuracy) {
  EngineOptions options = options_of(Speculation::kAlways);
  options.draft_source = [accuracy](std::span<const TokenId> tokens) {
    Tokens all(tokens.begin(), tokens.end());
    for (const ipc::Submit& request : varied_requests(100)) {
      const auto& prompt = std::get<Tokens>(request.prompt);
      const Answer& answer = expected_answers(100).at(request.request.value);
      Tokens whole = prompt;
      whole.insert(whole.end(), answer.tokens.begin(), answer.tokens.end());
      if (whole.size() >= tokens.size() &&
          std::ranges::equal(std::span(whole).first(all.size()), all)) {
        all = whole;
        break;
      }
    }
    return std::make_unique<RecordedSource>(all, accuracy, 300);
  };
  return options;
}

// Checks that every page that can be found holds tokens of an answer, after its sequence's own beginning.
class TrueTokens : public engine::PageLedger {
 public:
  void entered(const engine::EnteredPage& page) override {
    const Tokens before =
        page.before == engine::PrefixIndex::kRoot ? Tokens() : chains_.at(page.before);
    Tokens chain = before;
    chain.insert(chain.end(), page.tokens.begin(), page.tokens.end());
    chains_[page.page] = chain;
    all_.push_back(std::move(chain));
  }
  void left(engine::PageIndex page) override { chains_.erase(page); }
  const std::vector<Tokens>& all() const { return all_; }

 private:
  std::map<engine::PageIndex, Tokens> chains_;
  std::vector<Tokens> all_;
};

// Steps in flight, and whether the model has states.
class SpeculatingEngine : public testing::TestWithParam<std::tuple<std::uint32_t, bool>> {
 protected:
  static ExecutorLimits limits() {
    const auto& [depth, states] = GetParam();
    return states ? limits_with_states(depth) : limits_of(depth);
  }
};
INSTANTIATE_TEST_SUITE_P(Depth, SpeculatingEngine,
                         testing::Combine(testing::Values(1U, 2U, 4U), testing::Bool()));

TEST_P(SpeculatingEngine, ChangesNoTokenOfAHundredRequests) {
  const std::vector<double> some = {-1.0, 0.8}, all = {-1.0, 0.0, 0.5, 0.8, 1.0};
  for (const double accuracy : kSample ? some : all) {
    SCOPED_TRACE(accuracy);
    EngineOptions options = accuracy < 0 ? options_of(Speculation::kAlways) : guessing(accuracy);
    options.scheduler.max_batch = 6;  // most steps are full, so no prompt is read beside them
    EngineHarness harness(limits(), options);
    TrueTokens ledger;
    harness.engine.set_ledger(&ledger);
    harness.executor.script = repeats_itself;
    submit_all(harness, 100);
    EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
    expect_all_same(harness, 100);
    std::vector<Tokens> wholes;
    for (const ipc::Submit& request : varied_requests(100)) {
      const Answer& expected = expected_answers(100).at(request.request.value);
      wholes.push_back(std::get<Tokens>(request.prompt));
      wholes.back().insert(wholes.back().end(), expected.tokens.begin(), expected.tokens.end());
    }
    for (const Tokens& kept : ledger.all()) {
      EXPECT_TRUE(std::ranges::any_of(wholes, [&](const Tokens& whole) {
        return whole.size() >= kept.size() && std::equal(kept.begin(), kept.end(), whole.begin());
      })) << "a page of tokens that no answer has";
    }
    EXPECT_GT(figure(harness, "speculation_drafted_tokens_total"), 500);
    if (accuracy != 0) {
      EXPECT_GT(figure(harness, "speculation_accepted_tokens_total"), 100);
    }
  }
}

// The device draws drafts under the penalties that the guesses before them bring; the host, under those of the tokens.
TEST_P(SpeculatingEngine, PenaltiesOfGuessesAreThoseOfTokens) {
  for (const bool adjusts : {true, false}) {
    ExecutorLimits limits = SpeculatingEngine::limits();
    limits.adjusts = adjusts;
    EngineHarness harness(limits, guessing(0.8));
    harness.executor.script = repeats_itself;
    for (ipc::Submit request : varied_requests(40)) {
      if (request.request.value % 4 == 2) harness.engine.submit(request);
    }
    harness.run();
    EXPECT_GT(figure(harness, "speculation_accepted_tokens_total"), 20);
    for (std::uint64_t id = 2; id <= 40; id += 4) {
      SCOPED_TRACE(id);
      expect_same(harness.answer(id), expected_answers(40).at(id));
    }
  }
}

TEST_P(SpeculatingEngine, LosingPagesMakesNoDifference) {
  ExecutorLimits limits = SpeculatingEngine::limits();
  limits.total_pages = 34;
  EngineHarness harness(limits, guessing(0.8));
  harness.executor.script = repeats_itself;
  for (const ipc::Submit& request : varied_requests(40))
    harness.engine.submit(request);
  harness.run();
  EXPECT_GT(harness.engine.scheduler().preemptions(), 2U) << "the cache was never short";
  EXPECT_GT(figure(harness, "speculation_accepted_tokens_total"), 20);
  expect_all_same(harness, 40);
}

// A worker dies after any number of tokens, and its successor continues: both together send the answer of a worker
// that was never disturbed.
TEST_P(SpeculatingEngine, ASuccessorGoesOnWithTheSameTokens) {
  for (ipc::Submit request : varied_requests(12)) {
    const std::uint64_t id = request.request.value;
    SCOPED_TRACE(id);
    const Answer& expected = expected_answers(100).at(id);
    for (std::size_t sent = 1; sent < expected.tokens.size(); sent += 5) {
      request.accepted_tokens.assign(expected.tokens.begin(),
                                     expected.tokens.begin() + static_cast<std::ptrdiff_t>(sent));
      EngineHarness harness(limits(), guessing(0.8));
      harness.executor.script = repeats_itself;
      harness.engine.submit(request);
      harness.run();
      EXPECT_EQ(harness.answer(id).tokens,
                Tokens(expected.tokens.begin() + static_cast<std::ptrdiff_t>(sent),
                       expected.tokens.end()));
      EXPECT_EQ(figure(harness, "draws_below_accepted_total"), 0);
    }
  }
}

TEST_P(SpeculatingEngine, CancellationWithDraftsInFlightFreesThePages) {
  for (int when = 0; when < 12; ++when) {
    EngineHarness harness(limits(), guessing(1));
    harness.executor.script = repeats_itself;
    for (const ipc::Submit& request : varied_requests(4))
      harness.engine.submit(request);
    for (int i = 0; i < when; ++i)
      harness.turn();
    harness.cancel_during_a_step(2);
    harness.run();
    while (harness.turn()) {
    }
    EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
    for (const std::uint64_t id : {1U, 3U, 4U})
      expect_same(harness.answer(id), expected_answers(100).at(id));
  }
}

TEST_P(SpeculatingEngine, ReportsHowManyGuessesWereRight) {
  EngineHarness harness(limits(), guessing(1));
  harness.executor.script = repeats_itself;
  const ipc::Submit request = varied_requests(4).back();  // greedy, and of full length
  harness.engine.submit(request);
  harness.run();
  const ipc::Finished& finished = *harness.answer(4).finished;
  EXPECT_EQ(finished.completion_tokens, 28U);
  EXPECT_GT(finished.accepted_drafts, 20U);
  EXPECT_EQ(finished.rejected_drafts, 0U);
  EXPECT_LT(harness.executor.steps.size(), 8U) << "of 28 tokens";
  EXPECT_EQ(figure(harness, "generated_tokens_total"), 28);
}

}  // namespace
}  // namespace bulkhead::test
