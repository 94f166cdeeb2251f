// A page whose memory has changed is never used again. Apart from that the cache works as before: the largest request
// still fits, slabs still go back, and the engine's figures show what has happened.
#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::test {
namespace {

using engine::MemoryFigures;
using engine::PageIndex;

constexpr std::uint32_t kFirstPages = 23, kSlabPages = 8, kSlabs = 8;

engine::EngineOptions checking() {
  engine::EngineOptions options;
  options.scheduler = {.max_batch = 8, .prefix_cache = true};
  options.check_memory = std::chrono::seconds(10);
  options.keep_slabs = std::chrono::seconds(60);
  return options;
}

// A cache that grows. The longest sequence takes all pages of its first part but `spare`.
engine::ExecutorLimits growing_beyond(std::uint32_t spare) {
  engine::ExecutorLimits limits = small_limits();
  limits.context = (kFirstPages - spare) * limits.page_tokens;
  limits.first_pages = kFirstPages;
  limits.slab_pages = kSlabPages;
  limits.total_pages = kFirstPages + kSlabPages * kSlabs;
  return limits;
}

void wait_idle_for(EngineHarness& harness, std::chrono::seconds time) {
  for (const auto end = harness.now + time; harness.now < end;) {
    harness.now += std::chrono::seconds(1);
    harness.turn();
  }
}

void run_requests(EngineHarness& harness, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t id = first; id < first + count; ++id)
    harness.engine.submit(endless(id, some_tokens(id, 9), 60));
  harness.run();
}

// Changes a page below `end` that waits in the prefix cache, and waits until the background has found that.
void spoil_page(EngineHarness& harness, PageIndex begin, PageIndex end) {
  const auto& pool = harness.engine.scheduler().pool();
  PageIndex page = begin;
  while (page < end && !pool.can_be_found(page))
    ++page;
  ASSERT_LT(page, end);
  harness.turn();  // ends the sums of the last pages
  harness.executor.spoil(page);
  wait_idle_for(harness, std::chrono::seconds(15));
  ASSERT_EQ(figure(harness, "kv_pages_quarantined"), 1);
}

// All 24 pages but one are left, and a request of the longest length takes 23.
TEST(LeftOutPages, ARequestThatTakesAllOthersBegins) {
  engine::ExecutorLimits limits = small_limits();
  limits.total_pages = 24;
  limits.context = 23 * limits.page_tokens;
  EngineHarness harness(limits, checking());
  run_requests(harness, 1, 1);
  spoil_page(harness, 0, limits.total_pages);
  const Tokens prompt = some_tokens(2, limits.context - 2);
  harness.engine.submit(endless(2, prompt, 2));
  for (int turns = 0; turns < 100 && !harness.answer(2).ended(); ++turns)
    harness.turn();
  EXPECT_EQ(harness.answer(2).tokens, answer_to(harness.executor, prompt, 2));
}

TEST(LeftOutPages, SlabsUpToTheEagerSizeGoBackBesideThem) {
  engine::ExecutorLimits limits = growing_beyond(1);
  limits.eager_pages = kFirstPages + 4 * kSlabPages;
  EngineHarness harness(limits, checking());
  run_requests(harness, 1, 8);
  ASSERT_GT(harness.executor.slabs.size(), 4U);
  spoil_page(harness, 0, kFirstPages);
  wait_idle_for(harness, std::chrono::seconds(120));
  EXPECT_TRUE(harness.executor.slabs.empty()) << "no sequence runs that the prefix cache is for";
}

// The longest sequence takes all full pages that are always there. There are more window pages than it needs.
TEST(LeftOutPages, AWindowPageKeepsNoSlabOfFullPages) {
  engine::ExecutorLimits limits = growing_beyond(0);
  limits.window = kWindow;
  limits.window_first_pages = 3 * kReserve;
  limits.window_slab_pages = kSlabPages;
  limits.window_pages = 3 * kReserve + kSlabPages * kSlabs;
  EngineHarness harness(limits, checking());
  run_requests(harness, 1, 8);
  ASSERT_FALSE(harness.executor.slabs.empty());
  spoil_page(harness, limits.total_pages, limits.total_pages + limits.window_first_pages);
  wait_idle_for(harness, std::chrono::seconds(120));
  EXPECT_TRUE(harness.executor.slabs.empty());
}

TEST(MemoryFigures, AreOthersWhenASlabOfWindowPagesGoesBack) {
  engine::ExecutorLimits limits = growing_beyond(0);
  limits.first_pages = limits.total_pages = 184;
  limits.slab_pages = kSlabPages;
  limits.total_pages += kSlabPages * kSlabs;
  limits.window = kWindow;
  limits.window_first_pages = kReserve;
  limits.window_slab_pages = kSlabPages;
  limits.window_pages = kReserve + kSlabPages * kSlabs;
  EngineHarness harness(limits, checking());
  run_requests(harness, 1, 8);
  ASSERT_EQ(figure(harness, "kv_pages_present"), 184);
  const MemoryFigures before = harness.engine.memory_figures();
  ASSERT_GT(before.windows.present, kReserve);
  harness.turn();
  EXPECT_EQ(harness.engine.memory_figures(), before) << "nothing has happened";
  wait_idle_for(harness, std::chrono::seconds(120));
  EXPECT_TRUE(harness.executor.slabs.empty());
  EXPECT_EQ(harness.engine.memory_figures().full.present, before.full.present);
  EXPECT_NE(harness.engine.memory_figures(), before);
}

TEST(MemoryFigures, AreOthersWhenTheBackgroundFindsDamageAndWhenPagesSettle) {
  EngineHarness harness(small_limits(), checking());
  run_requests(harness, 1, 1);
  MemoryFigures before = harness.engine.memory_figures();
  spoil_page(harness, 0, 100);
  EXPECT_NE(harness.engine.memory_figures(), before);
  EXPECT_EQ(harness.engine.memory_figures().damaged, 1U);
  const PageIndex open[] = {100, 101};
  ASSERT_EQ(harness.engine.withhold(open), 2U);
  before = harness.engine.memory_figures();
  harness.engine.settle();
  EXPECT_NE(harness.engine.memory_figures(), before);
}

}  // namespace
}  // namespace bulkhead::test
