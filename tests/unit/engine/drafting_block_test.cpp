// A block of the model itself guesses from the model's hidden states. Whatever it guesses, the answers must be those
// without it, and it must get the hidden state from which each token was chosen.
#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/speculating.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "tests/unit/engine/varied_requests.hpp"

namespace bulkhead::test {
namespace {

using engine::DraftContext;
using engine::DraftModel;
using engine::EngineOptions;
using engine::ExecutorLimits;
using engine::HiddenStates;
using ipc::TokenId;

ExecutorLimits limits_of_block() {
  ExecutorLimits limits = limits_of(1);
  limits.takes_hidden = true;
  return limits;
}

// A token that depends on the last one alone, so that a block that does not see the prompt can guess it. The model
// departs from it now and then.
TokenId after(std::span<const TokenId> history) {
  return static_cast<TokenId>(history.back() * 7 + 3) % 250 + 1;
}
std::optional<TokenId> mostly_after(std::span<const TokenId> history) {
  return history.size() % 5 == 0 ? std::nullopt : std::optional(after(history));
}

// What the block got: a column's token and position, and its hidden state.
struct Given {
  TokenId token = 0;
  std::uint32_t position = 0;
  std::vector<float> hidden;
};

std::vector<Given> given_to(FakeExecutor& block, EngineHarness& harness,
                            const ipc::Submit& request) {
  std::vector<Given> given;
  block.when_submitted = [&given](const engine::Step& step) {
    for (std::size_t i = 0; i < step.columns.size(); ++i)
      given.push_back({step.columns[i].token,
                       step.columns[i].position,
                       {step.hidden[i].begin(), step.hidden[i].end()}});
  };
  harness.engine.submit(request);
  harness.run();
  return given;
}

class DraftingBlockInEngine : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Depth, DraftingBlockInEngine, testing::Values(1U, 2U, 4U));

TEST_P(DraftingBlockInEngine, ChangesNoTokenOfAHundredRequests) {
  for (const bool states : {false, true}) {
    for (const bool ngrams : {false, true}) {
      SCOPED_TRACE(states);
      SCOPED_TRACE(ngrams);
      FakeExecutor block(limits_of_block());
      EngineOptions options = asking(block, ngrams);
      options.scheduler.max_batch = 3;
      EngineHarness harness(states ? limits_with_states(GetParam(), 3) : limits_of(GetParam()),
                            options);
      harness.executor.script = repeats_itself;
      block.script = repeats_itself;
      submit_all(harness, 100);
      EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
      expect_all_same(harness, 100);
      EXPECT_GT(figure(harness, "draft_model_drafted_tokens_total"), 100);
      EXPECT_GT(figure(harness, "draft_model_accepted_tokens_total"), 0);
    }
  }
}

TEST_P(DraftingBlockInEngine, GetsTheHiddenStateOfEachToken) {
  for (const bool drawn : {false, true}) {
    FakeExecutor block(limits_of_block());
    block.script = after;
    EngineHarness harness(limits_of(GetParam()), asking(block));
    harness.executor.script = mostly_after;
    const Tokens prompt = {1, 2, 3, 4, 5};
    ipc::Submit request = endless(1, prompt, 60);
    if (drawn) {
      request.sampling.temperature = 1;
      request.sampling.seed = 5;
      request.sampling.frequency_penalty = 0.5F;
    }
    const std::vector<Given> given = given_to(block, harness, request);
    const Tokens all = prompt + harness.answer(1).tokens;
    ASSERT_EQ(all.size(), 65U);
    std::size_t own = 0;
    for (const Given& each : given) {
      // The block's positions begin at the first generated token.
      const std::size_t at = prompt.size() + each.position;
      ASSERT_LT(at, all.size() + 8);
      for (std::size_t i = prompt.size(); i < all.size(); ++i) {
        if (each.hidden != harness.executor.hidden_after(std::span(all).first(i))) continue;
        EXPECT_EQ(i, at);
        EXPECT_EQ(all[i], each.token);
        ++own;
      }
    }
    EXPECT_GE(own, 55U) << "the model's own hidden states";
    EXPECT_GT(given.size(), own) << "the block's, after its guesses";
    EXPECT_GT(harness.answer(1).finished->accepted_drafts, 20U);
  }
}

// With more sequences than the block guesses for, nobody would read hidden states. Later it begins again.
TEST(DraftingBlock, MoreSequencesThanItServesTellNoHiddenStates) {
  ExecutorLimits limits = limits_of_block();
  limits.max_sequences = 2;
  FakeExecutor block(limits);
  block.script = after;
  EngineHarness harness(limits_of(1), asking(block));
  harness.executor.script = after;
  std::size_t alone = 0, crowded = 0;
  harness.executor.when_submitted = [&](const engine::Step& step) {
    const auto telling = static_cast<std::size_t>(
        std::ranges::count_if(step.columns, &engine::Column::tells_hidden));
    (step.sequences.size() > 2 ? crowded : alone) += telling;
  };
  for (std::uint64_t id = 1; id <= 3; ++id)
    harness.engine.submit(endless(id, {1, 2, 3}, id == 3 ? 20 : 60));
  harness.run();
  EXPECT_LE(crowded, 3U) << "more than the first token of each";
  EXPECT_GT(alone, 0U);
  EXPECT_GT(harness.answer(1).finished->accepted_drafts, 10U);
}

// After tokens for which it was not asked, the block begins with the newest hidden states.
TEST(DraftingBlock, BeginsAgainAfterALongSilence) {
  FakeExecutor executor(limits_of_block());
  executor.script = after;
  DraftModel block(executor, executor.limits().vocabulary);
  ASSERT_TRUE(block.takes_hidden());
  DraftContext context;
  Tokens tokens = {9, 8, 7};
  const std::vector<float> state(executor.limits().embedding, 0.5F);
  const auto grow = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      tokens.push_back(after(tokens));
      block.add_hidden(context, tokens, state);
    }
  };
  std::array<TokenId, 3> guesses{};
  const auto guess = [&] {
    std::vector<DraftModel::Wanted> wanted{{.context = &context,
                                            .tokens = block.seen(context, tokens),
                                            .choice = {.temperature = 0},
                                            .guesses = guesses}};
    const auto times =
        block.guess(wanted, 3, [] { return std::chrono::steady_clock::time_point(); });
    EXPECT_TRUE(times.ok());
    return wanted[0].count;
  };
  EXPECT_FALSE(block.takes(context, block.seen(context, tokens))) << "no hidden state yet";
  grow(1);
  EXPECT_EQ(context.first, 3U);
  EXPECT_TRUE(block.takes(context, block.seen(context, tokens)));
  EXPECT_EQ(guess(), 3U);
  EXPECT_EQ(guesses[0], after(tokens));
  grow(HiddenStates::kMost - 1);
  EXPECT_EQ(context.first, 3U) << "it has all states that it needs";
  EXPECT_GT(guess(), 0U);
  grow(HiddenStates::kMost + 1);
  EXPECT_EQ(context.first, tokens.size() - HiddenStates::kMost);
  EXPECT_TRUE(block.takes(context, block.seen(context, tokens)));
  EXPECT_GT(guess(), 0U);
  EXPECT_EQ(guesses[0], after(tokens));
  // A token without its state, as after a restart: the block waits for the next one.
  tokens.push_back(after(tokens));
  EXPECT_FALSE(block.takes(context, block.seen(context, tokens)));
  grow(1);
  EXPECT_EQ(context.first, tokens.size() - 1);
  EXPECT_GT(guess(), 0U);
}

// An answer may be longer than the block's context.
TEST(DraftingBlock, BeginsAgainWhereItsContextEnds) {
  ExecutorLimits limits = limits_of_block();
  limits.context = 40;
  FakeExecutor block(limits);
  block.script = after;
  EngineHarness harness(limits_of(1), asking(block));
  harness.executor.script = after;
  const std::vector<Given> given = given_to(block, harness, endless(1, {1, 2, 3}, 110));
  EXPECT_EQ(harness.answer(1).tokens.size(), 110U);
  EXPECT_GT(harness.answer(1).finished->accepted_drafts, 70U);
  EXPECT_LT(std::ranges::max(given, {}, &Given::position).position, 40U);
}

}  // namespace
}  // namespace bulkhead::test
