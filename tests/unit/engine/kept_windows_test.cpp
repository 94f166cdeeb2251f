// What a successor does with the window pages of a process that died: its streams go on without reading their prompts
// again.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/page_ledger.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/kv_cache.hpp"
#include "worker/engine/scheduler.hpp"

namespace bulkhead::test {
namespace {

using engine::EnteredPage;
using engine::ExecutorLimits;
using engine::PageIndex;
using engine::PageList;
using engine::PagePool;
using engine::Sharing;

engine::EngineOptions sharing() {
  engine::EngineOptions options;
  options.scheduler = {.max_batch = 4, .prefill_chunk = 16, .prefix_cache = true};
  return options;
}

// The process dies at each moment of a stream that is far past its window, with the fewest pages.
TEST(KeptWindows, AStreamGoesOnWithoutReadingItsPromptAgain) {
  for (std::size_t sent = 1; sent <= 40; ++sent) {
    SCOPED_TRACE(sent);
    ExecutorLimits limits = with_windows(kReserve);
    limits.steps_in_flight = 1 + sent % 2;
    KeptPages ledger;
    EngineHarness dead(limits, sharing());
    dead.engine.set_ledger(&ledger);
    const Tokens prompt = some_tokens(1, 50);
    dead.engine.submit(endless(1, prompt, 60));
    dead.run_until_tokens(1, sent);
    const Tokens accepted = dead.answer(1).tokens;

    EngineHarness heir(dead.executor, sharing());
    KeptPages again = ledger;
    heir.engine.set_ledger(&again);
    const auto taken = heir.engine.adopt(ledger.pages());
    ASSERT_TRUE(taken.ok()) << taken.error().message();
    ipc::Submit resumed = endless(1, prompt, 60);
    resumed.accepted_tokens = accepted;
    heir.engine.submit(resumed);
    heir.run();
    EXPECT_EQ(accepted + heir.answer(1).tokens, answer_to(heir.executor, prompt, 60));
    if (sent < 8) continue;  // the prompt's last pages have no checksums yet
    EXPECT_LE(figure(heir, "prefix_cache_miss_tokens_total"), 3 * kPageTokens)
        << "of " << prompt.size() + accepted.size();
  }
}

enum class Return : std::uint8_t {
  kTogether,  // while the device may still write to some pages
  kOneByOne,  // some steps after each other
};

// Sixteen streams use nearly all window pages when their process dies. Those that come back first must not take what
// the others need.
void expect_that_streams_go_on(ExecutorLimits limits, std::size_t sent, Return back) {
  constexpr std::uint64_t kStreams = 16;
  constexpr std::uint32_t kAnswer = 300;
  engine::EngineOptions options = sharing();
  options.scheduler.max_batch = kStreams;
  limits.max_outputs = limits.max_sequences = kStreams;
  const auto prompt_of_stream = [](std::uint64_t id) { return some_tokens(id, 70 + 3 * id); };
  KeptPages ledger;
  EngineHarness dead(limits, options);
  dead.engine.set_ledger(&ledger);
  for (std::uint64_t id = 1; id <= kStreams; ++id)
    dead.engine.submit(endless(id, prompt_of_stream(id), kAnswer));
  dead.run_until_tokens(kStreams, sent);
  const engine::WindowPool& windows = dead.engine.scheduler().pool().windows();
  EXPECT_EQ(figure(dead, "preemptions_total"), 0);

  EngineHarness heir(dead.executor, options);
  KeptPages again = ledger;
  heir.engine.set_ledger(&again);
  const auto taken = heir.engine.adopt(ledger.pages());
  ASSERT_TRUE(taken.ok()) << taken.error().message();
  EXPECT_EQ(heir.engine.scheduler().pool().windows().present_pages(), windows.present_pages());
  if (back == Return::kTogether)
    heir.engine.withhold(std::vector<PageIndex>(ledger.open.begin(), ledger.open.end()));
  std::map<std::uint64_t, Tokens> accepted;
  for (std::uint64_t id = 1; id <= kStreams; ++id) {
    accepted[id] = dead.answer(id).tokens;
    ipc::Submit resumed = endless(id, prompt_of_stream(id), kAnswer);
    resumed.accepted_tokens = accepted[id];
    heir.engine.submit(resumed);
    for (int turns = back == Return::kOneByOne ? 2 : 0; turns > 0; --turns)
      heir.turn();
  }
  heir.run_until_tokens(1, 2);
  heir.engine.settle();
  for (std::uint64_t id = 1; id <= kStreams; ++id)
    heir.run_until_tokens(id, 1);
  EXPECT_LE(figure(heir, "prefix_cache_miss_tokens_total"), kStreams * 3 * kPageTokens);
  heir.run();
  for (std::uint64_t id = 1; id <= kStreams; ++id) {
    EXPECT_EQ(accepted[id] + heir.answer(id).tokens,
              answer_to(heir.executor, prompt_of_stream(id), kAnswer))
        << id;
  }
}

// Windows of 40 positions take 14 pages of a sequence.
ExecutorLimits with_long_windows(std::uint32_t window_pages) {
  ExecutorLimits limits = with_windows(window_pages);
  limits.window = 40;
  limits.context = 600;
  limits.total_pages = 2000;
  return limits;
}

TEST(KeptWindows, ManyStreamsGoOnInAFixedCache) {
  for (std::size_t sent = 16; sent <= 22; sent += 3) {
    SCOPED_TRACE(sent);
    for (const Return back : {Return::kTogether, Return::kOneByOne})
      expect_that_streams_go_on(with_long_windows(13 * 16 + 8), sent, back);
  }
}

TEST(KeptWindows, ManyStreamsGoOnInACacheThatHasGrown) {
  for (std::size_t sent = 16; sent <= 22; sent += 3) {
    SCOPED_TRACE(sent);
    ExecutorLimits limits = with_long_windows(24 + 12 * 120);
    limits.first_pages = 120;
    limits.slab_pages = 18;
    limits.window_first_pages = 24;
    limits.window_slab_pages = 12;
    limits.total_pages = 120 + 18 * 120;
    for (const Return back : {Return::kTogether, Return::kOneByOne})
      expect_that_streams_go_on(limits, sent, back);
  }
}

// Requests come and are cancelled at random moments of two processes, of which the second one adopts what the first one
// left. The device has no memory for another slab now and then, and some steps are lost.
class RandomLife {
 public:
  explicit RandomLife(std::uint32_t seed) : random_(seed) {
    limits_.steps_in_flight = 1 + seed % 3;
    limits_.first_pages = 32;
    limits_.slab_pages = 8;
    limits_.total_pages = 32 + 8 * 20;
    limits_.eager_pages = seed % 2 == 0 ? 64 : 0;
    limits_.window_first_pages = kReserve;
    limits_.window_slab_pages = 4;
    limits_.window_eager_pages = seed % 2 == 0 ? 3 * kReserve : 0;
    limits_.window_pages = kReserve + 4 * 20;
    limits_.states = seed % 3 == 0 ? 12 : 0;
    options_.scheduler.max_batch = 8;
    options_.keep_slabs = std::chrono::seconds(1);
    options_.check_memory = std::chrono::seconds(10);
  }

  void act(EngineHarness& harness, int turns) {
    harness.executor.has_memory = [this] { return random_() % 4 != 0; };
    for (; turns > 0; --turns) {
      if (random_() % 3 == 0) {
        const Tokens prompt = some_tokens(random_() % 5, 1 + random_() % 60);
        harness.engine.submit(endless(++last_, prompt, 1 + random_() % 60));
      }
      if (limits_.states > 0 && random_() % 10 == 0) harness.executor.steps_to_lose = 1;
      harness.now += std::chrono::milliseconds(random_() % 400);
      if (last_ > 0 && random_() % 4 == 0) {
        harness.cancel_during_a_step(1 + random_() % last_);
      } else {
        harness.turn();
      }
    }
  }

  void expect_nothing_kept(EngineHarness& harness) {
    harness.run();
    for (int i = 0; i < 100; ++i) {
      harness.now += std::chrono::seconds(1);
      harness.turn();
    }
    const PagePool& pool = harness.engine.scheduler().pool();
    EXPECT_EQ(pool.used_pages(), 0U);
    EXPECT_EQ(pool.windows().used_pages(), 0U);
    EXPECT_TRUE(harness.executor.slabs.empty());
    EXPECT_EQ(pool.present_pages(), limits_.first_pages);
    EXPECT_EQ(pool.windows().present_pages(), limits_.window_first_pages);
    slabs_returned += harness.executor.slabs_returned;
  }

  void live(bool unsettled) {
    KeptPages ledger;
    EngineHarness dead(limits_, options_);
    dead.engine.set_ledger(&ledger);
    act(dead, 20 + static_cast<int>(random_() % 60));
    EngineHarness heir(dead.executor, options_);
    KeptPages again = ledger;
    heir.engine.set_ledger(&again);
    const auto taken = heir.engine.adopt(ledger.pages());
    ASSERT_TRUE(taken.ok()) << taken.error().message();
    if (unsettled)
      heir.engine.withhold(std::vector<PageIndex>(ledger.open.begin(), ledger.open.end()));
    act(heir, static_cast<int>(random_() % 30));
    heir.engine.settle();
    act(heir, static_cast<int>(random_() % 60));
    expect_nothing_kept(heir);
    dead.engine.set_ledger(nullptr);
    expect_nothing_kept(dead);
  }

  std::uint32_t slabs_returned = 0;

 private:
  ExecutorLimits limits_ = with_windows(kReserve);
  engine::EngineOptions options_ = sharing();
  std::mt19937 random_;
  std::uint64_t last_ = 0;
};

TEST(KeptWindows, NoPageOrSlabIsKeptOnceASuccessorIsIdle) {
  std::uint32_t slabs_returned = 0;
  for (std::uint32_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomLife life(seed);
    life.live(seed % 2 == 0);
    slabs_returned += life.slabs_returned;
  }
  EXPECT_GT(slabs_returned, 300U);
}

TEST(KeptWindows, WhatAPredecessorMayStillWriteToIsWithheld) {
  const ExecutorLimits limits = with_windows(kReserve);
  PagePool pool(limits, Sharing::kPrefixes);
  const PageIndex window = limits.total_pages + 1;
  const PageIndex open[] = {3, window};
  EXPECT_EQ(pool.withhold(open), 2U);
  PageList list(pool);
  EXPECT_FALSE(list.cover_windows(kReserve * kPageTokens));
  ASSERT_TRUE(list.cover_windows((kReserve - 1) * kPageTokens));
  EXPECT_EQ(std::ranges::count(list.windows().pages, window), 0);
  pool.settle();
  EXPECT_TRUE(list.cover_windows(kReserve * kPageTokens));
}

TEST(KeptWindows, AreTakenOnlyWithTheFullPageThatTheyBelongTo) {
  const ExecutorLimits limits = with_windows(kReserve);
  const Tokens first = some_tokens(1, 4), other = some_tokens(2, 4);
  const PageIndex window = limits.total_pages;
  PagePool pool(limits, Sharing::kPrefixes);
  std::vector<EnteredPage> kept{{5, engine::PrefixIndex::kRoot, first, {}},
                                {window, 5, first, {}},
                                {window + 1, 5, first, {}},
                                {window + 2, 6, first, {}},
                                {window + 3, engine::PrefixIndex::kRoot, first, {}},
                                {6, 5, other, {}},
                                {window + 4, 6, first, {}},
                                {window + 5, window, first, {}},
                                {limits.total_pages + limits.window_pages, 6, other, {}}};
  EXPECT_EQ(pool.adopt(kept), 2U);
  EXPECT_EQ(pool.windows().of(5), window);
  EXPECT_EQ(pool.windows().of(6), engine::kNoPage);
  EXPECT_EQ(pool.windows().cached_pages(), 1U);
  EXPECT_EQ(pool.windows().free_pages(), kReserve);
}

}  // namespace
}  // namespace bulkhead::test
