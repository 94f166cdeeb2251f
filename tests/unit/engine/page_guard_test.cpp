// Memory that changes: pages are changed while they wait and between a death and their adoption, and logits are not
// numbers. No request may get another token because of that.
#include "worker/engine/page_guard.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/page_ledger.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::test {
namespace {

using engine::EnteredPage;
using engine::PageIndex;
using ipc::TokenId;

constexpr std::chrono::seconds kLater{2};  // later than a comparison counts as fresh

engine::EngineOptions with_prefixes(std::chrono::seconds check_memory = {}) {
  engine::EngineOptions options;
  options.scheduler.prefix_cache = true;
  options.scheduler.max_batch = 8;
  options.check_memory = check_memory;
  return options;
}

engine::ExecutorLimits limits_with(std::uint32_t steps_in_flight) {
  engine::ExecutorLimits limits = small_limits();
  limits.steps_in_flight = steps_in_flight;
  return limits;
}

// Returns the page that holds the n-th page of these tokens.
PageIndex page_of(const EngineHarness& harness, const Tokens& tokens, std::size_t n) {
  const auto& pool = harness.engine.scheduler().pool();
  PageIndex page = engine::PrefixIndex::kRoot;
  for (std::size_t i = 0; i <= n; ++i) {
    page = pool.index()
               .find(page, std::span(tokens).subspan(i * pool.page_tokens(), pool.page_tokens()))
               .value();
  }
  return page;
}

TEST(SpoiltPages, OneThatWaitsIsNotBelievedWhenItIsFound) {
  for (const std::uint32_t ahead : {1U, 2U}) {
    EngineHarness harness(limits_with(ahead), with_prefixes());
    const Tokens prompt = some_tokens(1, 14);
    const Tokens expected = answer_to(harness.executor, prompt, 20);
    harness.engine.submit(endless(1, prompt, 20));
    harness.run();
    ASSERT_EQ(harness.answer(1).tokens, expected);
    harness.executor.spoil(page_of(harness, prompt, 1));
    harness.now += kLater;
    harness.engine.submit(endless(2, prompt, 20));
    harness.engine.submit(endless(3, some_tokens(2, 9), 20));
    harness.run();
    EXPECT_EQ(harness.answer(2).tokens, expected);
    EXPECT_EQ(harness.answer(3).tokens, answer_to(harness.executor, some_tokens(2, 9), 20));
    EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 1);
    EXPECT_EQ(figure(harness, "kv_pages_quarantined"), 1);
    EXPECT_EQ(figure(harness, "requests_computed_again_total"), 1);
    EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 1U) << "the one that is left out";
    // The tokens are computed again in other pages, and found there.
    harness.engine.submit(endless(4, prompt, 20));
    harness.run();
    EXPECT_EQ(harness.answer(4).tokens, expected);
    EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 1);
  }
}

// The comparisons of all pages are fresh, then two pages change and the background finds one of them.
TEST(SpoiltPages, OneThatWasComparedJustNowIsComparedAgainOnceAnotherIsFound) {
  EngineHarness harness(limits_with(1), with_prefixes(std::chrono::seconds(1)));
  const Tokens first = some_tokens(1, 14), second = some_tokens(2, 14);
  const Tokens expected = answer_to(harness.executor, second, 20);
  harness.engine.submit(endless(1, first, 20));
  harness.engine.submit(endless(2, second, 20));
  harness.run();
  ASSERT_EQ(harness.answer(2).tokens, expected);
  const auto turn_until = [&](auto done) {
    for (int i = 0; i < 20 && !done(); ++i) {
      harness.now += std::chrono::milliseconds(300);
      harness.turn();
    }
    return done();
  };
  const std::uint32_t cached = harness.engine.scheduler().pool().cached_pages();
  ASSERT_TRUE(turn_until([&] { return figure(harness, "kv_pages_checked_total") >= cached; }));
  harness.executor.spoil(page_of(harness, first, 1));
  harness.executor.spoil(page_of(harness, second, 1));
  ASSERT_TRUE(turn_until([&] { return figure(harness, "kv_pages_damaged_total") > 0; }));
  ASSERT_EQ(figure(harness, "kv_pages_damaged_total"), 1) << "the background has found only one";
  harness.engine.submit(endless(3, first, 20));
  harness.engine.submit(endless(4, second, 20));
  harness.run();
  EXPECT_EQ(harness.answer(3).tokens, harness.answer(1).tokens);
  EXPECT_EQ(harness.answer(4).tokens, expected);
  EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 2);
}

// The device compares the page at the beginning of a long step, and the page changes before the step's end.
TEST(SpoiltPages, OneThatChangesDuringItsComparisonIsNotTakenForFresh) {
  EngineHarness harness(limits_with(1), with_prefixes());
  const Tokens prompt = some_tokens(1, 14);
  harness.engine.submit(endless(1, prompt, 20));
  harness.run();
  harness.turn();
  harness.now += kLater;
  harness.executor.while_waiting = [&] {
    harness.executor.spoil(page_of(harness, prompt, 1));
    harness.now += kLater;
  };
  harness.engine.submit(endless(2, prompt, 20));
  harness.turn();
  harness.executor.while_waiting = {};
  harness.engine.cancel(RequestId{2});
  harness.engine.submit(endless(3, prompt, 20));
  harness.run();
  EXPECT_EQ(harness.answer(3).tokens, harness.answer(1).tokens);
  EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 1);
}

TEST(SpoiltPages, TheBackgroundFindsThemAndWhatFollowsThemGoes) {
  EngineHarness harness(limits_with(1), with_prefixes(std::chrono::seconds(10)));
  const Tokens prompt = some_tokens(1, 30);
  harness.engine.submit(endless(1, prompt, 4));
  harness.run();
  const std::uint32_t cached = harness.engine.scheduler().pool().cached_pages();
  ASSERT_GT(cached, 6U);
  harness.executor.spoil(page_of(harness, prompt, 3));
  for (int i = 0; i < 25; ++i) {
    harness.now += std::chrono::milliseconds(500);
    EXPECT_FALSE(harness.turn());
  }
  EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 1);
  EXPECT_EQ(harness.engine.scheduler().pool().cached_pages(), 3U);
  EXPECT_GE(harness.executor.weight_bytes_looked_at, 1000U);
  EXPECT_LE(harness.executor.weight_bytes_looked_at, 1300U) << "at a low rate";
  EXPECT_LE(figure(harness, "kv_pages_checked_total"), cached * 1.3);
}

TEST(SpoiltPages, AnyPageAtAnyTimeWhileNobodyComputesChangesNoToken) {
  std::mt19937 random(5);
  EngineHarness harness(limits_with(2), with_prefixes(std::chrono::seconds(30)));
  const Tokens trunk = some_tokens(1, 40);
  std::uint64_t id = 0;
  std::uint32_t spoilt = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::pair<std::uint64_t, Tokens>> asked;
    for (std::uint32_t i = 0; i < 1 + random() % 4; ++i) {
      Tokens prompt(trunk.begin(), trunk.begin() + 1 + random() % 39);
      if (random() % 2 == 0) prompt.push_back(static_cast<TokenId>(random() % 200));
      asked.emplace_back(++id, prompt);
      harness.engine.submit(endless(id, prompt, 12));
    }
    harness.run();
    for (const auto& [request, prompt] : asked)
      ASSERT_EQ(harness.answer(request).tokens, answer_to(harness.executor, prompt, 12)) << round;
    harness.turn();  // the pages that were filled last get their checksums
    harness.now += kLater;
    const auto& pool = harness.engine.scheduler().pool();
    const auto page = static_cast<PageIndex>(random() % pool.total_pages());
    if (spoilt < 40 && pool.index().contains(page)) {
      harness.executor.spoil(page);
      ++spoilt;
    }
  }
  EXPECT_GT(spoilt, 5U);
  EXPECT_GT(figure(harness, "kv_pages_damaged_total"), 3);
}

// A sequence goes on from a changed page and loses all its pages before the first step with them has ended.
TEST(SpoiltPages, OneOfASequenceThatWaitsForPagesChangesNoToken) {
  const Tokens common = some_tokens(1, 9), first = some_tokens(2, 8);
  const Tokens second = common + some_tokens(3, 3);
  double damaged = 0, preemptions = 0;
  for (std::uint32_t pages = 16; pages < 21; ++pages) {
    for (std::uint32_t begin = 4; begin < 40; ++begin) {
      SCOPED_TRACE(testing::Message() << pages << " pages, after " << begin << " tokens");
      engine::ExecutorLimits limits = limits_with(3);
      limits.total_pages = pages;
      limits.context = 60;
      EngineHarness harness(limits, with_prefixes());
      harness.engine.submit(endless(1, common, 1));
      harness.run();
      harness.turn();
      harness.executor.spoil(page_of(harness, common, 1));
      harness.now += kLater;
      harness.engine.submit(endless(2, first, 50));
      harness.run_until_tokens(2, begin);
      harness.engine.submit(endless(3, second, 12));
      harness.run();
      EXPECT_EQ(harness.answer(2).tokens, answer_to(harness.executor, first, 50));
      EXPECT_EQ(harness.answer(3).tokens, answer_to(harness.executor, second, 12));
      damaged += figure(harness, "kv_pages_damaged_total");
      preemptions += figure(harness, "preemptions_total");
    }
  }
  EXPECT_GT(damaged, 50);
  EXPECT_GT(preemptions, 10);
}

// Answers request 1, and returns the pages that a successor may adopt. `ledger` has their tokens.
std::vector<EnteredPage> pages_left_by(EngineHarness& engine, KeptPages& ledger,
                                       const Tokens& prompt) {
  engine.engine.set_ledger(&ledger);
  engine.engine.submit(endless(1, prompt, 9));
  engine.run();
  engine.turn();
  return ledger.pages();
}

TEST(SpoiltPages, OfAPredecessorAreComputedAnewWithWhatFollowsThem) {
  const Tokens prompt = some_tokens(1, 20);
  EngineHarness first(limits_with(1), with_prefixes());
  KeptPages told;
  const std::vector<EnteredPage> kept = pages_left_by(first, told, prompt);
  ASSERT_EQ(kept.size(), 7U) << "28 positions were computed";
  // The same memory, as a successor gets it.
  EngineHarness second(limits_with(1), with_prefixes());
  second.executor = first.executor;
  second.executor.spoil(kept[3].page);
  KeptPages again;
  again.in = told.in;
  second.engine.set_ledger(&again);
  const auto taken = second.engine.adopt(kept);
  ASSERT_TRUE(taken.ok()) << taken.error().message();
  EXPECT_EQ(*taken, 3U);
  EXPECT_EQ(again.in.size(), 3U) << "the next successor shall not find the others either";
  EXPECT_EQ(figure(second, "kv_pages_damaged_total"), 1);
  EXPECT_EQ(figure(second, "kv_pages_quarantined"), 1);
  second.engine.submit(endless(1, prompt, 9));
  second.run();
  EXPECT_EQ(second.answer(1).tokens, first.answer(1).tokens);
  EXPECT_EQ(figure(second, "prefix_cache_hit_pages_total"), 3);
}

TEST(SpoiltPages, OfAPredecessorThatChangeDuringTheirComparisonAreNotTakenForFresh) {
  const Tokens prompt = some_tokens(1, 20);
  EngineHarness first(limits_with(1), with_prefixes());
  KeptPages told;
  const std::vector<EnteredPage> kept = pages_left_by(first, told, prompt);
  EngineHarness second(limits_with(1), with_prefixes());
  second.executor = first.executor;
  second.executor.while_summing = [&, spoilt = false]() mutable {
    if (!std::exchange(spoilt, true)) second.executor.spoil(kept[1].page);
    second.now += kLater;
  };
  const auto taken = second.engine.adopt(kept);
  ASSERT_TRUE(taken.ok()) << taken.error().message();
  EXPECT_EQ(*taken, kept.size());
  second.executor.while_summing = {};
  second.engine.submit(endless(1, prompt, 9));
  second.run();
  EXPECT_EQ(second.answer(1).tokens, first.answer(1).tokens);
  EXPECT_EQ(figure(second, "kv_pages_damaged_total"), 1);
}

TEST(SpoiltPages, WhereTheCacheIsTooSmallWithoutThemTheWorkerEnds) {
  engine::ExecutorLimits limits = limits_with(1);
  limits.total_pages = 8;
  limits.context = 32;
  EngineHarness harness(limits, with_prefixes());
  const Tokens prompt = some_tokens(1, 14);
  harness.engine.submit(endless(1, prompt, 4));
  harness.run();
  harness.turn();
  harness.executor.spoil(page_of(harness, prompt, 0));
  harness.now += kLater;
  harness.engine.submit(endless(2, prompt, 4));
  const auto turned = harness.engine.turn([] {});
  ASSERT_FALSE(turned.ok());
  EXPECT_EQ(turned.error().code(), ErrorCode::kDeviceLost);
  EXPECT_TRUE(harness.answer(2).tokens.empty());
}

TEST(SpoiltLogits, OnceAreComputedAgainAndNobodyNotices) {
  for (const std::uint32_t ahead : {1U, 2U}) {
    EngineHarness harness(limits_with(ahead), with_prefixes());
    const Tokens prompt = some_tokens(1, 14);
    harness.engine.submit(endless(1, prompt, 20));
    harness.engine.submit(endless(2, some_tokens(2, 5), 20));
    harness.run_until_tokens(1, 7);
    harness.executor.poisoned_outputs = 1;
    harness.run();
    EXPECT_EQ(harness.answer(1).tokens, answer_to(harness.executor, prompt, 20));
    EXPECT_EQ(harness.answer(2).tokens, answer_to(harness.executor, some_tokens(2, 5), 20));
    EXPECT_EQ(figure(harness, "nonfinite_outputs_total"), 1);
    EXPECT_EQ(figure(harness, "requests_computed_again_total"), 1);
  }
}

// The sequence has lost its pages by then, and the next step in flight chooses the token after the missing one.
TEST(SpoiltLogits, OfASequenceThatWaitsForPagesAreComputedAgainInTheirOrder) {
  double again = 0, preemptions = 0;
  for (std::uint32_t spoilt = 1; spoilt < 90; ++spoilt) {
    SCOPED_TRACE(spoilt);
    engine::ExecutorLimits limits = limits_with(3);
    limits.total_pages = 20;
    limits.context = 80;
    EngineHarness harness(limits, with_prefixes());
    std::uint32_t waited = 0;
    harness.executor.while_waiting = [&] {
      if (++waited == spoilt)
        harness.executor.poisoned_outputs = harness.executor.steps[waited - 1].outputs;
    };
    for (std::uint64_t id = 1; id <= 3; ++id)
      harness.engine.submit(endless(id, some_tokens(id, 10 + id), 50));
    harness.run();
    for (std::uint64_t id = 1; id <= 3; ++id)
      EXPECT_EQ(harness.answer(id).tokens,
                answer_to(harness.executor, some_tokens(id, 10 + id), 50));
    again += figure(harness, "requests_computed_again_total");
    preemptions += figure(harness, "preemptions_total");
  }
  EXPECT_GT(again, 50);
  EXPECT_GT(preemptions, 50);
}

// A page that an equal request left in the cache may be the cause now, or may become one later. The request is computed
// again before it fills a page of four tokens, and after that.
TEST(SpoiltLogits, AreComputedAgainWithoutPagesOfTheCache) {
  for (const std::size_t tokens : {1U, 6U}) {
    SCOPED_TRACE(tokens);
    EngineHarness harness(limits_with(1), with_prefixes());
    const Tokens prompt = some_tokens(1, 2);
    harness.engine.submit(endless(1, prompt, 14));
    harness.run();
    Tokens all = prompt;
    all.insert(all.end(), harness.answer(1).tokens.begin(), harness.answer(1).tokens.end());
    harness.engine.submit(endless(2, prompt, 14));
    harness.run_until_tokens(2, tokens);
    harness.executor.spoil(page_of(harness, all, 0));
    harness.executor.poisoned_outputs = 1;
    harness.run();
    EXPECT_EQ(figure(harness, "requests_computed_again_total"), 1);
    EXPECT_EQ(harness.answer(2).tokens, harness.answer(1).tokens);
  }
}

TEST(SpoiltLogits, TwiceFailTheRequestAndAreAReasonToLookAtTheWeights) {
  EngineHarness harness(limits_with(1), with_prefixes());
  harness.engine.submit(endless(1, some_tokens(1, 14), 20));
  harness.executor.poisoned_outputs = 2;
  harness.run();
  ASSERT_TRUE(harness.answer(1).failed.has_value());
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kInternal);
  harness.turn();
  EXPECT_EQ(harness.executor.weight_bytes_looked_at, 1000U);
  harness.engine.submit(endless(2, some_tokens(1, 14), 20));
  harness.run();
  EXPECT_EQ(harness.answer(2).tokens, answer_to(harness.executor, some_tokens(1, 14), 20));
}

}  // namespace
}  // namespace bulkhead::test
