// A cache that grows by slabs and gives them back. No request may get another token because of that.
#include <chrono>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::test {
namespace {

using engine::EnteredPage;
using engine::ExecutorLimits;
using engine::PageIndex;
using engine::PageKind;
using engine::PageList;
using engine::PagePool;
using engine::Sharing;

constexpr std::chrono::seconds kKept{60};  // how long a slab stays that nobody uses
constexpr std::uint32_t kAnswer = 60;

// 23 pages from the beginning, of which the longest sequence takes 20, and slabs of 8 pages.
ExecutorLimits growing(std::uint32_t slabs, std::uint32_t steps_in_flight = 2) {
  ExecutorLimits limits = small_limits();
  limits.context = 80;
  limits.first_pages = 23;
  limits.slab_pages = 8;
  limits.total_pages = 23 + 8 * slabs;
  limits.steps_in_flight = steps_in_flight;
  return limits;
}

engine::EngineOptions with_slabs() {
  engine::EngineOptions options;
  options.scheduler.prefix_cache = true;
  options.scheduler.max_batch = 8;
  options.keep_slabs = kKept;
  return options;
}

Tokens prompt_of(std::uint64_t id) {
  return some_tokens(id, 5 + id % 7);
}

void submit_requests(EngineHarness& harness, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t id = first; id < first + count; ++id)
    harness.engine.submit(endless(id, prompt_of(id), kAnswer));
}

void expect_answers(EngineHarness& harness, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t id = first; id < first + count; ++id)
    EXPECT_EQ(harness.answer(id).tokens, answer_to(harness.executor, prompt_of(id), kAnswer)) << id;
}

// Lets time pass for a worker that has nothing to do.
void wait_idle(EngineHarness& harness, std::chrono::seconds time) {
  for (const auto end = harness.now + time; harness.now < end;) {
    harness.now += std::chrono::seconds(1);
    harness.turn();
  }
}

TEST(Slabs, TheirPagesAreHandedOutOnlyWhileTheyArePresent) {
  PagePool pool(growing(2), Sharing::kPrefixes);
  EXPECT_EQ(pool.total_pages(), 39U);
  EXPECT_EQ(pool.present_pages(), 23U);
  EXPECT_EQ(pool.total_positions(), 23U * 4) << "positions that are always there";
  PageList first(pool), second(pool);
  ASSERT_TRUE(first.cover(23 * 4));
  EXPECT_FALSE(second.cover(1));
  ASSERT_EQ(pool.absent_slab(PageKind::kFull), 0U);
  pool.add_slab(0);
  EXPECT_EQ(pool.present_pages(), 31U);
  ASSERT_TRUE(second.cover(8 * 4));
  EXPECT_FALSE(second.cover(9 * 4));
  for (const PageIndex page : second.pages())
    EXPECT_TRUE(page >= 23 && page < 31) << page;
  EXPECT_FALSE(pool.is_present(31));
  pool.add_slab(*pool.absent_slab(PageKind::kFull));
  EXPECT_EQ(pool.absent_slab(PageKind::kFull), std::nullopt);
  pool.let_slab_leave(PageKind::kFull);
  EXPECT_EQ(pool.slab_that_left(), 1U) << "the other is in use";
  EXPECT_EQ(pool.present_pages(), 31U);
  EXPECT_EQ(pool.free_pages(), 0U);
  EXPECT_FALSE(second.cover(9 * 4));
  EXPECT_EQ(pool.absent_slab(PageKind::kFull), 1U);
}

TEST(Slabs, OneThatIsInUseLeavesWhenItsPagesAreReleased) {
  PagePool pool(growing(1), Sharing::kPrefixes);
  const Tokens tokens = some_tokens(3, 40);
  PageList filler(pool), list(pool), other(pool);
  ASSERT_TRUE(filler.cover(23 * 4));
  pool.add_slab(0);
  ASSERT_TRUE(list.cover(3 * 4));
  list.publish(std::span(tokens).first(12));
  pool.let_slab_leave(PageKind::kFull);
  EXPECT_EQ(pool.slabs(PageKind::kFull).leaving(), 0U);
  EXPECT_EQ(pool.slab_that_left(), std::nullopt);
  EXPECT_EQ(pool.free_pages(), 0U) << "its other pages are not handed out";
  filler.clear();
  EXPECT_EQ(other.reuse(tokens), 3U) << "what is in use can be found";
  list.clear();
  EXPECT_EQ(pool.slab_that_left(), std::nullopt);
  ASSERT_TRUE(other.cover(5 * 4));
  other.publish(std::span(tokens).first(20));
  EXPECT_EQ(pool.cached_pages(), 5U);
  other.clear();
  EXPECT_EQ(pool.cached_pages(), 0U) << "two pages follow pages of the slab";
  EXPECT_EQ(pool.free_pages(), 23U);
  EXPECT_EQ(pool.slab_that_left(), 0U);
  EXPECT_EQ(pool.slabs(PageKind::kFull).leaving(), std::nullopt);
}

TEST(Slabs, OneThatLeavesCanStayInstead) {
  PagePool pool(growing(1), Sharing::kPrefixes);
  PageList filler(pool), list(pool);
  ASSERT_TRUE(filler.cover(23 * 4));
  pool.add_slab(0);
  ASSERT_TRUE(list.cover(3 * 4));
  pool.let_slab_leave(PageKind::kFull);
  pool.add_slab(0);
  EXPECT_EQ(pool.present_pages(), 31U);
  EXPECT_EQ(pool.free_pages(), 5U);
  list.clear();
  EXPECT_EQ(pool.free_pages(), 8U);
}

TEST(Slabs, EmptyPagesOfLowerSlabsComeFirst) {
  PagePool pool(growing(2), Sharing::kNone);
  pool.add_slab(0);
  pool.add_slab(1);
  PageList all(pool), one(pool);
  ASSERT_TRUE(all.cover(39 * 4));
  all.clear();
  ASSERT_TRUE(one.cover(24 * 4));
  EXPECT_EQ(one.pages()[22], 22U);
  EXPECT_EQ(one.pages()[23], 23U);
}

TEST(Slabs, TheIdlePagesOfARemovedOneAndTheirFollowersAreForgotten) {
  PagePool pool(growing(1), Sharing::kPrefixes);
  pool.add_slab(0);
  const Tokens tokens = some_tokens(3, 40);
  PageList filler(pool), list(pool);
  ASSERT_TRUE(filler.cover(22 * 4));
  ASSERT_TRUE(list.cover(3 * 4));  // one page of the first part, then two of the slab
  filler.clear();
  ASSERT_TRUE(list.cover(4 * 4));
  ASSERT_LT(list.pages().back(), 23U);
  list.publish(std::span(tokens).first(16));
  list.clear();
  EXPECT_EQ(pool.cached_pages(), 4U);
  pool.let_slab_leave(PageKind::kFull);
  EXPECT_EQ(pool.slab_that_left(), 0U);
  EXPECT_EQ(pool.cached_pages(), 1U);
  EXPECT_EQ(pool.free_pages(), 23U);
  EXPECT_EQ(list.reuse(tokens), 1U);
}

TEST(Slabs, TheCacheGrowsBeforeASequenceLosesItsPages) {
  for (const std::uint32_t ahead : {1U, 2U}) {
    EngineHarness harness(growing(20, ahead), with_slabs());
    submit_requests(harness, 1, 8);
    harness.run();
    expect_answers(harness, 1, 8);
    EXPECT_EQ(figure(harness, "preemptions_total"), 0);
    EXPECT_GT(harness.executor.slabs.size(), 8U);
    EXPECT_EQ(figure(harness, "kv_slabs"), harness.executor.slabs.size());
    EXPECT_EQ(figure(harness, "kv_slabs_added_total"), harness.executor.slabs.size());
    EXPECT_EQ(figure(harness, "kv_pages_present"), 23 + 8 * figure(harness, "kv_slabs"));
  }
}

TEST(Slabs, WithoutMemoryForThemSequencesLosePagesAsEver) {
  EngineHarness harness(growing(20), with_slabs());
  harness.executor.has_memory = [&] { return harness.executor.slabs.size() < 2; };
  submit_requests(harness, 1, 8);
  harness.run();
  expect_answers(harness, 1, 8);
  EXPECT_GT(figure(harness, "preemptions_total"), 0);
  EXPECT_GT(figure(harness, "kv_slabs_refused_total"), 0);
  EXPECT_EQ(harness.executor.slabs.size(), 2U);
}

TEST(Slabs, ASequenceThatFillsThePagesThatAreAlwaysThereNeedsNoSlab) {
  ExecutorLimits limits = growing(4);
  limits.context = 1000;
  EngineHarness harness(limits, with_slabs());
  harness.executor.has_memory = [] { return false; };
  harness.engine.submit(endless(1, some_tokens(1, 23 * 4 - 3), 100));
  harness.run();
  ASSERT_TRUE(harness.answer(1).finished) << "its length was judged by these pages";
  EXPECT_EQ(harness.answer(1).tokens.size(), 3U);
}

TEST(Slabs, TheyGoBackAfterAnIdleTimeAndComeAgain) {
  EngineHarness harness(growing(20), with_slabs());
  submit_requests(harness, 1, 8);
  harness.run();
  const std::size_t grown = harness.executor.slabs.size();
  wait_idle(harness, kKept / 2);
  EXPECT_EQ(harness.executor.slabs.size(), grown);
  wait_idle(harness, kKept);
  EXPECT_TRUE(harness.executor.slabs.empty());
  EXPECT_EQ(figure(harness, "kv_slabs_returned_total"), grown);
  EXPECT_EQ(figure(harness, "kv_pages_present"), 23);
  submit_requests(harness, 9, 8);
  harness.run();
  expect_answers(harness, 9, 8);
  EXPECT_EQ(figure(harness, "preemptions_total"), 0);
}

// Another stream runs at the same time, with steps in flight and sums of its pages.
TEST(Slabs, TheyGoBackWhileOthersCompute) {
  ExecutorLimits limits = growing(20);
  limits.context = 90;
  engine::EngineOptions options = with_slabs();
  options.check_memory = std::chrono::seconds(10);
  EngineHarness harness(limits, options);
  submit_requests(harness, 1, 8);
  harness.run();
  const std::size_t grown = harness.executor.slabs.size();
  ASSERT_GT(grown, 2U);
  std::uint64_t id = 20;
  for (int i = 0; i < 300 && !harness.executor.slabs.empty(); ++i) {
    if (harness.engine.outstanding() == 0) {
      ++id;
      submit_requests(harness, id, 1);
    }
    harness.now += std::chrono::milliseconds(400);
    harness.turn();
  }
  EXPECT_TRUE(harness.executor.slabs.empty());
  harness.run();
  expect_answers(harness, 21, id - 20);
}

// The scheduler keeps a page free for each of the streams, which are all at the same position.
TEST(Slabs, TheyStayForThePagesThatRunningSequencesTakeNext) {
  EngineHarness harness(growing(20), with_slabs());
  for (std::uint64_t id = 1; id <= 8; ++id)
    harness.engine.submit(endless(id, some_tokens(id, 8), kAnswer));
  while (harness.engine.outstanding() > 0) {
    harness.now += kKept / 2;
    harness.turn();
  }
  EXPECT_EQ(figure(harness, "kv_slabs_returned_total"), 0);
  EXPECT_EQ(figure(harness, "kv_slabs_added_total"), harness.executor.slabs.size())
      << "none was taken away and given again";
}

TEST(Slabs, BelowTheEagerSizeTheCacheGrowsRatherThanForgets) {
  ExecutorLimits limits = growing(20);
  limits.eager_pages = 23 + 8 * 4;
  EngineHarness harness(limits, with_slabs());
  for (std::uint64_t id = 1; id <= 2; ++id) {  // one after another, so that few pages are in use
    submit_requests(harness, id, 1);
    harness.run();
  }
  EXPECT_EQ(figure(harness, "prefix_cache_evictions_total"), 0);
  EXPECT_GT(harness.executor.slabs.size(), 0U);
  for (std::uint64_t id = 3; id <= 9; ++id) {
    submit_requests(harness, id, 1);
    harness.run();
  }
  EXPECT_EQ(harness.executor.slabs.size(), 4U) << "beyond, only for pages in use";
  EXPECT_GT(figure(harness, "prefix_cache_evictions_total"), 0);
  expect_answers(harness, 1, 9);
}

TEST(Slabs, AChangedPageInOneIsNoticedAndItsSlabStays) {
  EngineHarness harness(growing(20), with_slabs());
  submit_requests(harness, 1, 8);
  harness.run();
  const auto& index = harness.engine.scheduler().pool().index();
  PageIndex spoilt = 0;
  std::uint64_t owner = 0;
  for (std::uint64_t id = 1; id <= 8 && owner == 0; ++id) {
    PageIndex page = engine::PrefixIndex::kRoot;
    const Tokens tokens = prompt_of(id) + harness.answer(id).tokens;
    for (std::size_t at = 0; at + 4 < tokens.size(); at += 4) {
      const auto found = index.find(page, std::span(tokens).subspan(at, 4));
      if (!found) break;
      page = *found;
      if (page < 23) continue;
      spoilt = page;
      owner = id;
    }
  }
  ASSERT_NE(owner, 0U);
  harness.turn();  // ends the sums of the last pages
  harness.executor.spoil(spoilt);
  harness.now += std::chrono::seconds(2);
  const Tokens prompt = prompt_of(owner) + harness.answer(owner).tokens;
  harness.engine.submit(endless(30, prompt, 10));
  harness.run();
  EXPECT_EQ(harness.answer(30).tokens, answer_to(harness.executor, prompt, 10));
  EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 1);
  wait_idle(harness, 2 * kKept);
  EXPECT_EQ(harness.executor.slabs.size(), 1U) << "its memory must not come back as another page's";
}

TEST(Slabs, ASuccessorAdoptsNothingFromSlabsThatItDoesNotHave) {
  EngineHarness harness(growing(4), with_slabs());
  const Tokens tokens = some_tokens(5, 16);
  // Pages 1 and 30 in turn: page 30 belongs to a slab.
  std::vector<EnteredPage> pages = {
      {1, engine::PrefixIndex::kRoot, std::span(tokens).subspan(0, 4), {}},
      {30, 1, std::span(tokens).subspan(4, 4), {}},
      {2, 30, std::span(tokens).subspan(8, 4), {}}};
  // The device's sum of a page to which no step has written.
  ASSERT_TRUE(harness.executor.start_sums(std::vector<PageIndex>{1}, 0).ok());
  pages[0].sum = harness.executor.finish_sums()->front();
  const auto taken = harness.engine.adopt(pages);
  ASSERT_TRUE(taken.ok()) << taken.error().message();
  EXPECT_EQ(*taken, 1U);
  EXPECT_EQ(harness.engine.scheduler().pool().cached_pages(), 1U);
}

// The windows of 5 positions take 5 pages of a sequence (window_reserve), and slabs of window pages have 4.
ExecutorLimits growing_with_windows(std::uint32_t slabs, std::uint32_t steps_in_flight = 2) {
  ExecutorLimits limits = growing(slabs, steps_in_flight);
  limits.window = 5;
  limits.window_first_pages = 7;
  limits.window_slab_pages = 4;
  limits.window_pages = 7 + 4 * slabs;
  return limits;
}

TEST(Slabs, WindowPagesHaveTheirOwn) {
  PagePool pool(growing_with_windows(2), Sharing::kPrefixes);
  EXPECT_EQ(pool.windows().total_pages(), 15U);
  EXPECT_EQ(pool.windows().present_pages(), 7U);
  PageList list(pool);
  ASSERT_TRUE(list.cover(8 * 4));
  EXPECT_FALSE(list.cover_windows(8 * 4));
  ASSERT_EQ(pool.absent_slab(PageKind::kWindow), 2U) << "its number follows those of full pages";
  pool.add_slab(2);
  ASSERT_TRUE(list.cover_windows(8 * 4));
  EXPECT_EQ(list.windows().pages.back(), pool.total_pages() + 7);
  EXPECT_EQ(pool.windows().present_pages(), 11U);
  EXPECT_EQ(pool.present_pages(), 23U);
  pool.add_slab(0);
  EXPECT_EQ(pool.slabs_present(), 2U);
  EXPECT_EQ(pool.absent_slab(PageKind::kWindow), std::nullopt) << "two have memory already";
  EXPECT_EQ(pool.absent_slab(PageKind::kFull), std::nullopt);
  pool.let_slab_leave(PageKind::kFull);
  EXPECT_EQ(pool.slab_that_left(), 0U);
  EXPECT_EQ(pool.absent_slab(PageKind::kWindow), 3U);
}

TEST(Slabs, WindowPagesOfOneThatLeavesCantBeFound) {
  PagePool pool(growing_with_windows(1), Sharing::kPrefixes);
  const Tokens tokens = some_tokens(3, 40);
  pool.add_slab(1);
  PageList list(pool), other(pool);
  ASSERT_TRUE(list.cover_all(9 * 4));
  list.publish(std::span(tokens).first(36));
  EXPECT_EQ(pool.windows().cached_pages(), 9U);
  pool.let_slab_leave(PageKind::kWindow);
  EXPECT_EQ(pool.slab_that_left(), std::nullopt) << "two of its pages are in use";
  list.clear();
  EXPECT_EQ(pool.windows().cached_pages(), 7U);
  EXPECT_EQ(pool.slab_that_left(), 1U);
  EXPECT_EQ(pool.windows().free_pages(), 7U);
  std::uint32_t known = 0;
  EXPECT_EQ(other.reuse(tokens, nullptr, known), 7U) << "the window after page 7 is there";
  EXPECT_EQ(known, 9U);
  // Idle pages of a slab are forgotten at once.
  pool.add_slab(1);
  other.clear();
  ASSERT_TRUE(list.cover_all(11 * 4));
  list.publish(tokens);
  list.clear();
  pool.let_slab_leave(PageKind::kWindow);
  EXPECT_EQ(pool.slab_that_left(), 1U);
  EXPECT_EQ(pool.windows().free_pages(), 7U);
  EXPECT_EQ(pool.windows().used_pages(), 0U);
}

TEST(Slabs, BothKindsGrowBeforeASequenceLosesItsPages) {
  for (const std::uint32_t ahead : {1U, 2U}) {
    EngineHarness harness(growing_with_windows(40, ahead), with_slabs());
    submit_requests(harness, 1, 8);
    harness.run();
    expect_answers(harness, 1, 8);
    EXPECT_EQ(figure(harness, "preemptions_total"), 0);
    EXPECT_GT(figure(harness, "window_pages_present"), 7);
    EXPECT_GT(figure(harness, "kv_pages_present"), 23);
    EXPECT_EQ(figure(harness, "kv_slabs"), harness.executor.slabs.size());
    wait_idle(harness, 2 * kKept);
    wait_idle(harness, 2 * kKept);
    EXPECT_TRUE(harness.executor.slabs.empty());
    EXPECT_EQ(figure(harness, "window_pages_present"), 7);
    submit_requests(harness, 9, 8);
    harness.run();
    expect_answers(harness, 9, 8);
    EXPECT_EQ(figure(harness, "preemptions_total"), 0);
  }
}

// First the prefix cache takes both slabs for full pages, one request after another. Then requests that run together
// lack window pages.
TEST(Slabs, OneOfTheOtherKindLeavesIfItIsSpare) {
  for (const std::chrono::seconds kept : {std::chrono::seconds(0), kKept}) {
    ExecutorLimits limits = growing_with_windows(2);
    limits.eager_pages = limits.total_pages;
    engine::EngineOptions options = with_slabs();
    options.keep_slabs = kept;
    EngineHarness harness(limits, options);
    for (std::uint64_t id = 1; id <= 6; ++id) {
      submit_requests(harness, id, 1);
      harness.run();
    }
    EXPECT_EQ(figure(harness, "kv_pages_present"), limits.total_pages);
    EXPECT_EQ(figure(harness, "window_pages_present"), 7);
    for (std::uint64_t id = 11; id <= 18; ++id)
      harness.engine.submit(endless(id, prompt_of(id), 6));
    harness.run();
    EXPECT_GT(figure(harness, "window_pages_present"), 7);
    EXPECT_LT(figure(harness, "kv_pages_present"), limits.total_pages);
    expect_answers(harness, 1, 6);
    for (std::uint64_t id = 11; id <= 18; ++id)
      EXPECT_EQ(harness.answer(id).tokens, answer_to(harness.executor, prompt_of(id), 6)) << id;
  }
}

// The device gives memory at some times only, so either kind lacks pages now and then.
TEST(Slabs, WithLittleMemoryForBothKindsEveryAnswerEnds) {
  for (std::size_t most = 0; most <= 6; ++most) {
    engine::EngineOptions options = with_slabs();
    options.check_memory = std::chrono::seconds(10);
    options.keep_slabs = std::chrono::seconds(1);
    EngineHarness harness(growing_with_windows(40), options);
    harness.executor.has_memory = [&harness, most] { return harness.executor.slabs.size() < most; };
    for (std::uint64_t id = 1; id <= 24; id += 8) {
      submit_requests(harness, id, 8);
      while (harness.engine.outstanding() > 0) {
        harness.now += std::chrono::milliseconds(60);
        harness.turn();
      }
      wait_idle(harness, std::chrono::seconds(5));
    }
    expect_answers(harness, 1, 24);
  }
}

TEST(Slabs, SlabsComeAndGoBesideStates) {
  ExecutorLimits limits = growing(20);
  limits.states = 20;
  EngineHarness harness(limits, with_slabs());
  submit_requests(harness, 1, 8);
  harness.run();
  expect_answers(harness, 1, 8);
  EXPECT_EQ(figure(harness, "preemptions_total"), 0);
  EXPECT_GT(harness.executor.slabs.size(), 8U);
  wait_idle(harness, 3 * kKept);
  EXPECT_TRUE(harness.executor.slabs.empty());
  // Each prompt continues an answer, whose pages and states are partly forgotten.
  for (std::uint64_t id = 1; id <= 8; ++id) {
    const Tokens prompt = prompt_of(id) + harness.answer(id).tokens;
    harness.engine.submit(endless(100 + id, prompt, 8));
  }
  harness.run();
  for (std::uint64_t id = 1; id <= 8; ++id) {
    const Tokens prompt = prompt_of(id) + harness.answer(id).tokens;
    EXPECT_EQ(harness.answer(100 + id).tokens, answer_to(harness.executor, prompt, 8)) << id;
  }
}

}  // namespace
}  // namespace bulkhead::test
