// Guesses for models whose layers carry states from position to position: a wrong guess changes no state that a
// sequence continues from, and snapshots hold the states of accepted tokens only. (speculation_test.cpp has the tests
// for all models.)
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/speculating.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/draft_source.hpp"

namespace bulkhead::test {
namespace {

using engine::EngineOptions;
using engine::ExecutorLimits;
using engine::Speculation;
using ipc::TokenId;

constexpr std::uint32_t kAnswer = 40;

Tokens prompt_of_a_chat() {
  return some_tokens(1, 21);
}

ipc::Submit drawn(std::uint64_t id, const Tokens& prompt, std::uint32_t count) {
  ipc::Submit request = sampled_request(id, prompt, count, 77);
  request.ignore_eos = true;
  return request;
}

// Returns the answer without guesses and without any earlier request.
Tokens plain_answer(const Tokens& prompt, std::uint32_t count) {
  EngineHarness harness(limits_with_states(1), options_of(Speculation::kOff));
  harness.engine.submit(drawn(1, prompt, count));
  harness.run();
  return harness.answer(1).tokens;
}

const Tokens& whole_chat() {
  static const Tokens whole = prompt_of_a_chat() + plain_answer(prompt_of_a_chat(), kAnswer);
  return whole;
}

// Guesses the chat's tokens right, except those whose index is `wrong` more than a multiple of `every`.
class WrongNowAndThen final : public engine::DraftSource {
 public:
  WrongNowAndThen(std::size_t every, std::size_t wrong) : every_(every), wrong_(wrong) {}
  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override {
    std::size_t made = 0;
    for (std::size_t at = tokens.size(); made < guesses.size() && at < whole_chat().size(); ++at)
      guesses[made++] = whole_chat()[at] ^ (at % every_ == wrong_ ? 1U : 0U);
    return made;
  }

 private:
  std::size_t every_, wrong_;
};

EngineOptions wrong_now_and_then(std::size_t every, std::size_t wrong) {
  EngineOptions options = options_of(Speculation::kAlways);
  options.draft_source = [=](std::span<const TokenId>) {
    return std::make_unique<WrongNowAndThen>(every, wrong);
  };
  return options;
}

// The chat's next turn continues from the last full page, whose states are those after the answer's own tokens,
// whichever draft was wrong. A page has four positions, so the last page ends after drafts of every number and kind.
TEST(StatesWithDrafts, TheNextTurnContinuesFromTheAnswersLastPage) {
  const Tokens more = whole_chat() + some_tokens(2, 9);
  const Tokens expected = plain_answer(more, 12);
  for (const std::size_t every : {2U, 3U, 5U, 8U, 100U}) {
    for (std::size_t wrong = 0; wrong < std::min<std::size_t>(every, 8); ++wrong) {
      SCOPED_TRACE(testing::Message() << "index " << wrong << " of " << every);
      EngineHarness harness(limits_with_states(2), wrong_now_and_then(every, wrong));
      harness.engine.submit(drawn(1, prompt_of_a_chat(), kAnswer));
      harness.run();
      EXPECT_EQ(prompt_of_a_chat() + harness.answer(1).tokens, whole_chat());
      EXPECT_GT(figure(harness, "speculation_accepted_tokens_total"), 5);
      harness.engine.submit(drawn(2, more, 12));
      harness.run();
      EXPECT_EQ(harness.answer(2).tokens, expected);
      // The answer's last token is not computed: 60 positions are, of 61 tokens.
      EXPECT_EQ(harness.answer(2).finished->cached_tokens, 60U);
      while (harness.turn()) {
      }
    }
  }
}

// There are fewer slots than the source has guesses, and no snapshot fits.
TEST(StatesWithDrafts, AStepHasNoMoreDraftsThanSlots) {
  for (const std::uint32_t slots : {1U, 3U}) {
    ExecutorLimits limits = limits_of(1);
    limits.max_drafts = slots;
    limits.states = 16 + slots;
    EngineHarness harness(limits, wrong_now_and_then(100, 0));
    for (std::uint64_t id = 1; id <= 5; ++id)
      harness.engine.submit(drawn(id, prompt_of_a_chat(), kAnswer));
    harness.run();
    for (std::uint64_t id = 1; id <= 5; ++id)
      EXPECT_EQ(prompt_of_a_chat() + harness.answer(id).tokens, whole_chat());
    std::uint32_t most = 0;
    for (const FakeExecutor::StepRecord& step : harness.executor.steps) {
      if (step.outputs == step.columns) most = std::max(most, step.columns);
    }
    EXPECT_EQ(most, 5 + slots);
    EXPECT_EQ(harness.engine.scheduler().states().snapshots(), 0U);
  }
}

TEST(StatesWithDrafts, NoSlotsMeanNoDrafts) {
  ExecutorLimits limits = limits_of(1);
  limits.max_drafts = 0;
  limits.states = 16;
  EngineHarness harness(limits, wrong_now_and_then(100, 0));
  harness.engine.submit(drawn(1, prompt_of_a_chat(), kAnswer));
  harness.run();
  EXPECT_EQ(prompt_of_a_chat() + harness.answer(1).tokens, whole_chat());
  EXPECT_EQ(figure(harness, "speculation_drafted_tokens_total"), 0);
}

// A lost step leaves pages, states and the drafts' slots undefined.
TEST(StatesWithDrafts, SequencesOfALostStepAreComputedAgain) {
  for (std::uint32_t lose_in = 1; lose_in < 12; ++lose_in) {
    SCOPED_TRACE(lose_in);
    EngineHarness harness(limits_with_states(2), wrong_now_and_then(5, 2));
    std::uint32_t waited = 0;
    harness.executor.while_waiting = [&] {
      if (++waited == lose_in) harness.executor.steps_to_lose = 1;
    };
    harness.engine.submit(drawn(1, prompt_of_a_chat(), kAnswer));
    harness.run();
    EXPECT_EQ(prompt_of_a_chat() + harness.answer(1).tokens, whole_chat());
    EXPECT_EQ(harness.executor.steps_to_lose, 0U);
  }
}

// ---- a successor ----

class Records : public engine::PageLedger, public engine::StateLedger {
 public:
  void entered(const engine::EnteredPage& page) override {
    std::erase(order_, page.page);
    order_.push_back(page.page);
    tokens_[page.page] = {page.tokens.begin(), page.tokens.end()};
    pages_[page.page] = page;
  }
  void left(engine::PageIndex page) override {
    std::erase(order_, page);
    pages_.erase(page);
  }
  void saved(const engine::EnteredState& state) override { states_[state.slot] = state; }
  void overwritten(engine::StateSlot slot) override { states_.erase(slot); }

  std::vector<engine::EnteredPage> pages() const {
    std::vector<engine::EnteredPage> all;
    for (const engine::PageIndex page : order_) {
      all.push_back(pages_.at(page));
      all.back().tokens = tokens_.at(page);
    }
    return all;
  }
  std::vector<engine::EnteredState> states() const {
    std::vector<engine::EnteredState> all;
    for (const auto& [slot, state] : states_)
      all.push_back(state);
    return all;
  }

 private:
  std::vector<engine::PageIndex> order_;
  std::map<engine::PageIndex, Tokens> tokens_;
  std::map<engine::PageIndex, engine::EnteredPage> pages_;
  std::map<engine::StateSlot, engine::EnteredState> states_;
};

// The worker dies after any number of turns. Its successor takes the memory over, as the steps in flight left it, and
// continues with the same tokens.
TEST(StatesWithDrafts, ASuccessorContinuesFromWhatASequenceWithDraftsLeft) {
  std::size_t taken = 0;
  for (std::uint32_t turns = 1; turns < 20; ++turns) {
    SCOPED_TRACE(turns);
    Records records;
    EngineHarness dead(limits_with_states(2), wrong_now_and_then(5, turns % 5));
    dead.engine.set_ledger(&records);
    dead.engine.set_state_ledger(&records);
    dead.engine.submit(drawn(1, prompt_of_a_chat(), kAnswer));
    for (std::uint32_t i = 0; i < turns; ++i)
      dead.turn();
    ipc::Submit request = drawn(1, prompt_of_a_chat(), kAnswer);
    request.accepted_tokens = dead.answer(1).tokens;

    EngineHarness heir(limits_with_states(2), wrong_now_and_then(3, 1));
    heir.executor = dead.executor;
    heir.executor.forget_steps();
    EXPECT_TRUE(heir.engine.adopt(records.pages()).ok());
    const auto states = heir.engine.adopt_states(records.states());
    ASSERT_TRUE(states.ok());
    EXPECT_EQ(*states, records.states().size());
    taken += *states;
    EXPECT_EQ(figure(heir, "kv_pages_damaged_total"), 0);
    if (!dead.answer(1).ended()) heir.engine.submit(request);
    heir.run();
    EXPECT_EQ(prompt_of_a_chat() + request.accepted_tokens + heir.answer(1).tokens, whole_chat());
  }
  EXPECT_GT(taken, 10U);
}

}  // namespace
}  // namespace bulkhead::test
