#include "worker/engine/kv_cache.hpp"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::engine {
namespace {

TEST(KvCache, PagesForPositionsRoundsUp) {
  const PagePool pool(8, 16);
  EXPECT_EQ(pool.pages_for(0), 0U);
  EXPECT_EQ(pool.pages_for(1), 1U);
  EXPECT_EQ(pool.pages_for(16), 1U);
  EXPECT_EQ(pool.pages_for(17), 2U);
  EXPECT_EQ(pool.pages_for(0xFFFFFFFF), 0x10000000U);
  EXPECT_EQ(pool.total_positions(), 128U);
}

TEST(KvCache, CoverTakesAllOrNothing) {
  PagePool pool(4, 16);
  PageList first(pool), second(pool);
  ASSERT_TRUE(first.cover(33));
  EXPECT_EQ(pool.free_pages(), 1U);
  EXPECT_FALSE(second.cover(17));
  EXPECT_TRUE(second.pages().empty());
  EXPECT_EQ(pool.free_pages(), 1U);
  EXPECT_TRUE(first.cover(48)) << "covered already";
  EXPECT_EQ(first.pages().size(), 3U);
}

TEST(KvCache, MovedListsOwnTheirPagesOnce) {
  PagePool pool(4, 16);
  {
    PageList first(pool);
    ASSERT_TRUE(first.cover(40));
    PageList second(std::move(first));
    EXPECT_EQ(second.pages().size(), 3U);
    PageList third(pool);
    ASSERT_TRUE(third.cover(1));
    third = std::move(second);
    EXPECT_EQ(pool.free_pages(), 1U);
  }
  EXPECT_EQ(pool.free_pages(), 4U);
}

// Against a model that knows only the rules: every page is free or in one list, at the place it was
// put.
TEST(KvCache, RandomUseNeverSharesLosesOrMovesAPage) {
  constexpr std::uint32_t kPages = 50, kPageTokens = 4, kLists = 12;
  std::mt19937 random(7);
  PagePool pool(kPages, kPageTokens);
  std::vector<PageList> lists;
  for (std::uint32_t i = 0; i < kLists; ++i)
    lists.emplace_back(pool);
  std::vector<std::vector<PageIndex>> model(kLists);

  std::uint32_t refusals = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::uint32_t which = random() % kLists;
    if (random() % 5 == 0) {
      lists[which].clear();
      model[which].clear();
    } else {
      const auto before = static_cast<std::uint32_t>(model[which].size());
      const std::uint32_t positions = random() % (kPages * kPageTokens / 3);
      const std::uint32_t needed = (positions + kPageTokens - 1) / kPageTokens;
      const std::uint32_t extra = needed > before ? needed - before : 0;
      const bool fits = extra <= pool.free_pages();
      ASSERT_EQ(lists[which].cover(positions), fits);
      refusals += fits ? 0 : 1;
      const auto pages = lists[which].pages();
      ASSERT_EQ(pages.size(), fits ? std::max(before, needed) : before);
      ASSERT_TRUE(std::equal(model[which].begin(), model[which].end(), pages.begin()));
      model[which].assign(pages.begin(), pages.end());
    }
    std::vector<int> owners(kPages, 0);
    std::uint32_t owned = 0;
    for (const auto& pages : model) {
      for (const PageIndex page : pages) {
        ASSERT_LT(page, kPages);
        ASSERT_EQ(++owners[page], 1) << "page " << page << " is in two lists";
        ++owned;
      }
    }
    ASSERT_EQ(pool.free_pages(), kPages - owned);
  }
  EXPECT_GT(refusals, 100U) << "the test never filled the pool";
}

}  // namespace
}  // namespace bulkhead::engine
