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

// Compares the pool with a model that consists only of the rules: every page is free or in one list, at the place
// where it was put.
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

// ---- pages that an earlier process left ----

struct Ledger : PageLedger {
  std::vector<PageIndex> in, out;
  void entered(const EnteredPage& page) override { in.push_back(page.page); }
  void left(PageIndex page) override { out.push_back(page); }
};

TEST(AdoptedPages, AreFoundByTheirTokensAndEvictedFollowersFirst) {
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5, 6, 7, 8};
  const std::span all(tokens);
  PagePool pool(4, 4, Sharing::kPrefixes);
  Ledger ledger;
  pool.set_ledger(&ledger);
  const std::vector<EnteredPage> kept{{2, PrefixIndex::kRoot, all.first(4)},
                                      {0, 2, all.subspan(4)}};
  EXPECT_EQ(pool.adopt(kept), 2U);
  EXPECT_EQ(pool.free_pages(), 4U);
  EXPECT_EQ(pool.cached_pages(), 2U);
  {
    PageList list(pool);
    EXPECT_EQ(list.reuse(tokens), 2U);
    EXPECT_EQ(std::vector<PageIndex>(list.pages().begin(), list.pages().end()),
              (std::vector<PageIndex>{2, 0}));
  }
  PageList greedy(pool);
  ASSERT_TRUE(greedy.cover(12));  // two empty pages, and one of those
  EXPECT_EQ(ledger.out, (std::vector<PageIndex>{1, 3, 0}));
  EXPECT_TRUE(ledger.in.empty());
  greedy.publish(tokens);
  EXPECT_EQ(ledger.in.size(), 1U) << "the beginning is known already: page 2";
}

TEST(AdoptedPages, EachPageIsReportedBeforeItIsHandedOut) {
  PagePool pool(3, 2, Sharing::kPrefixes);
  Ledger ledger;
  pool.set_ledger(&ledger);
  PageList list(pool);
  ASSERT_TRUE(list.cover(3));
  EXPECT_EQ(ledger.out, (std::vector<PageIndex>{0, 1}));
  list.clear();
  ASSERT_TRUE(list.cover(1));  // a page is reported again when it is handed out again
  EXPECT_EQ(ledger.out.size(), 3u);
}

TEST(AdoptedPages, WithheldOnesAreHandedOutOnlyOnceSettled) {
  PagePool pool(4, 2, Sharing::kPrefixes);
  const std::vector<TokenId> tokens{1, 2};
  const EnteredPage kept{2, PrefixIndex::kRoot, tokens};
  ASSERT_EQ(pool.adopt(std::span(&kept, 1)), 1u);
  // Of these one is kept, and one is none of the pool's.
  const std::vector<PageIndex> open{0, 2, 3, 9};
  EXPECT_EQ(pool.withhold(open), 2u);
  EXPECT_EQ(pool.free_pages(), 2u);
  PageList list(pool), other(pool);
  ASSERT_TRUE(list.cover(4));
  EXPECT_EQ(std::vector<PageIndex>(list.pages().begin(), list.pages().end()),
            (std::vector<PageIndex>{1, 2}));
  EXPECT_FALSE(other.cover(1));
  pool.settle();
  EXPECT_EQ(pool.free_pages(), 2u);
  EXPECT_TRUE(other.cover(4));
  pool.settle();
  EXPECT_EQ(pool.free_pages(), 0u);
}

TEST(AdoptedPages, UnsoundOnesAreLeftOutAndReportedToTheLedger) {
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5, 6, 7, 8};
  const std::span all(tokens);
  PagePool pool(4, 4, Sharing::kPrefixes);
  Ledger ledger;
  pool.set_ledger(&ledger);
  const std::vector<EnteredPage> kept{{2, PrefixIndex::kRoot, all.first(4)},
                                      {3, PrefixIndex::kRoot, all.first(4)},  // known by then
                                      {1, 3, all.subspan(4)},                 // follows nobody
                                      {9, 2, all.subspan(4)},                 // no such page
                                      {0, 77, all.subspan(4)},
                                      {0, 2, all.first(3)}};
  EXPECT_EQ(pool.adopt(kept), 1U);
  EXPECT_EQ(pool.cached_pages(), 1U);
  EXPECT_EQ(pool.free_pages(), 4U);
  EXPECT_EQ(ledger.out, (std::vector<PageIndex>{3, 1, 0, 0}));
  PageList list(pool);
  ASSERT_TRUE(list.cover(16)) << "each page is there once";
  EXPECT_EQ(pool.adopt(kept), 0U) << "not while pages are in use";
}

}  // namespace
}  // namespace bulkhead::engine
