// The pages of the pool that sequences with the same beginning share: which can be found, when, and
// for how long.
#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::test {
namespace {

using engine::PageIndex;
using engine::PageList;
using engine::PagePool;
using engine::Sharing;
using ipc::TokenId;

// Returns a list whose first tokens.size() positions have been computed.
PageList computed(PagePool& pool, const Tokens& tokens) {
  PageList list(pool);
  list.reuse(tokens);
  EXPECT_TRUE(list.cover(static_cast<std::uint32_t>(tokens.size())));
  list.publish(tokens);
  return list;
}

std::uint32_t found(PagePool& pool, const Tokens& tokens) {
  PageList list(pool);
  return list.reuse(tokens);
}

TEST(PrefixPages, FullOnesAreFoundOncePublished) {
  PagePool pool(8, kPageTokens, Sharing::kPrefixes);
  const Tokens tokens = some_tokens(1, 10);
  PageList list(pool);
  ASSERT_TRUE(list.cover(10));
  EXPECT_EQ(found(pool, tokens), 0U) << "nothing has been computed";
  list.publish(std::span(tokens).first(7));
  EXPECT_EQ(found(pool, tokens), 1U);
  list.publish(tokens);
  EXPECT_EQ(found(pool, tokens), 2U) << "the third page is not full";
  EXPECT_EQ(pool.cached_pages(), 2U);

  PageList other(pool);
  EXPECT_EQ(other.reuse(tokens), 2U);
  ASSERT_TRUE(other.cover(10));
  EXPECT_EQ(other.pages()[0], list.pages()[0]);
  EXPECT_EQ(other.pages()[1], list.pages()[1]);
  EXPECT_NE(other.pages()[2], list.pages()[2]) << "what is still written to is nobody else's";
  EXPECT_EQ(pool.users(list.pages()[0]), 2U);
  EXPECT_EQ(pool.used_pages(), 4U);
}

TEST(PrefixPages, TheSameTokensAfterOtherTokensAreAnotherPage) {
  PagePool pool(16, kPageTokens, Sharing::kPrefixes);
  const Tokens page = some_tokens(1, 4), other = some_tokens(2, 4);
  const PageList list = computed(pool, page + other + page);
  EXPECT_EQ(found(pool, other + page), 0U);
  EXPECT_EQ(found(pool, page + page), 1U);
  EXPECT_EQ(found(pool, page + other + page), 3U);
  EXPECT_EQ(found(pool, page + other + other), 2U);
}

TEST(PrefixPages, WithoutSharingNothingIsFound) {
  PagePool pool(8, kPageTokens, Sharing::kNone);
  const Tokens tokens = some_tokens(1, 8);
  PageList list = computed(pool, tokens);
  EXPECT_EQ(found(pool, tokens), 0U);
  list.clear();
  EXPECT_EQ(found(pool, tokens), 0U);
  EXPECT_EQ(pool.cached_pages(), 0U);
}

TEST(PrefixPages, StayAfterTheirUserUntilRoomIsNeededOldestAndLastFirst) {
  PagePool pool(6, kPageTokens, Sharing::kPrefixes);
  const Tokens old = some_tokens(1, 12), young = some_tokens(2, 8);
  computed(pool, old).clear();
  computed(pool, young).clear();
  EXPECT_EQ(pool.free_pages(), 6U) << "what nobody uses is free";
  EXPECT_EQ(pool.cached_pages(), 5U);
  EXPECT_EQ(pool.evictions(), 0U);

  PageList hungry(pool);
  ASSERT_TRUE(hungry.cover(3 * kPageTokens));  // the empty one, and two
  EXPECT_EQ(pool.evictions(), 2U);
  EXPECT_EQ(found(pool, old), 1U) << "the end goes before the beginning";
  EXPECT_EQ(found(pool, young), 2U);
  ASSERT_TRUE(hungry.cover(4 * kPageTokens));
  // Looking for `old` and then `young` has made `young` the one used last.
  EXPECT_EQ(found(pool, old), 0U);
  EXPECT_EQ(found(pool, young), 2U);
  EXPECT_FALSE(hungry.cover(7 * kPageTokens));
  ASSERT_TRUE(hungry.cover(6 * kPageTokens));
  EXPECT_EQ(pool.cached_pages(), 0U);
}

TEST(PrefixPages, UsedOnesAreNeverGivenAway) {
  PagePool pool(4, kPageTokens, Sharing::kPrefixes);
  const Tokens tokens = some_tokens(1, 8);
  const PageList list = computed(pool, tokens);
  PageList hungry(pool);
  EXPECT_FALSE(hungry.cover(3 * kPageTokens));
  ASSERT_TRUE(hungry.cover(2 * kPageTokens));
  EXPECT_EQ(found(pool, tokens), 2U);
  EXPECT_EQ(pool.free_pages(), 0U);
}

TEST(PrefixPages, TwoOfTheSameBecomeOne) {
  PagePool pool(8, kPageTokens, Sharing::kPrefixes);
  const Tokens tokens = some_tokens(1, 8);
  PageList one(pool), two(pool);
  ASSERT_TRUE(one.cover(8) && two.cover(8));
  one.publish(tokens);
  EXPECT_EQ(pool.used_pages(), 4U);
  two.publish(tokens);
  EXPECT_EQ(pool.used_pages(), 2U);
  EXPECT_TRUE(std::ranges::equal(one.pages(), two.pages()));
  one.clear();
  EXPECT_EQ(pool.used_pages(), 2U);
  two.clear();
  EXPECT_EQ(pool.used_pages(), 0U);
}

// The test compares the pool with a model that consists only of the rules: what a page holds, and
// who uses it.
TEST(PrefixPages, RandomUseKeepsEveryRule) {
  constexpr std::uint32_t kPages = 40, kLists = 8;
  std::mt19937 random(11);
  PagePool pool(kPages, kPageTokens, Sharing::kPrefixes);
  struct Known {
    PageList list;
    Tokens tokens;               // of this sequence
    std::uint32_t computed = 0;  // how many of them
  };
  std::vector<Known> lists(kLists);
  for (Known& known : lists)
    known.list = PageList(pool);
  std::map<PageIndex, Tokens> holds;  // a full page: all tokens up to its end
  std::uint64_t reused = 0;

  for (int round = 0; round < 20000; ++round) {
    Known& known = lists[random() % kLists];
    if (known.tokens.empty()) {
      // There are few different tokens, so that beginnings are often alike.
      known.tokens.resize(1 + random() % 40);
      for (TokenId& token : known.tokens)
        token = random() % 20 == 0 ? 1 : 0;
      const std::uint32_t pages = known.list.reuse(known.tokens);
      reused += pages;
      known.computed = pages * kPageTokens;
      for (std::uint32_t i = 0; i < pages; ++i) {
        const auto end = known.tokens.begin() + (i + 1) * kPageTokens;
        ASSERT_EQ(holds.at(known.list.pages()[i]), Tokens(known.tokens.begin(), end));
      }
    } else if (random() % 8 == 0) {
      known.list.clear();
      known.tokens.clear();
    } else {
      const auto size = static_cast<std::uint32_t>(known.tokens.size());
      const std::uint32_t next =
          std::min(size, static_cast<std::uint32_t>(known.computed + 1 + random() % 9));
      if (!known.list.cover(next)) continue;
      for (std::uint32_t at = known.computed; at < next; ++at) {
        const PageIndex page = known.list.pages()[at / kPageTokens];
        ASSERT_EQ(pool.users(page), 1U) << "a write to a page of several";
        ASSERT_FALSE(pool.index().contains(page)) << "a write to a page that can be found";
        if ((at + 1) % kPageTokens == 0)
          holds[page] = Tokens(known.tokens.begin(), known.tokens.begin() + at + 1);
      }
      known.computed = next;
      known.list.publish(std::span(known.tokens).first(next));
    }

    std::map<PageIndex, std::uint32_t> users;
    for (const Known& each : lists) {
      for (const PageIndex page : each.list.pages())
        ++users[page];
      ASSERT_EQ(each.list.shared(), each.tokens.empty() ? 0 : each.computed / kPageTokens);
    }
    ASSERT_EQ(pool.used_pages(), users.size());
    std::uint32_t cached = 0;
    for (PageIndex page = 0; page < kPages; ++page) {
      ASSERT_EQ(pool.users(page), users.contains(page) ? users[page] : 0);
      if (!pool.index().contains(page)) continue;
      ++cached;
      const PageIndex before = pool.index().before(page);
      if (before == engine::PrefixIndex::kRoot) continue;
      ASSERT_TRUE(pool.index().contains(before)) << "a page is found behind one that is gone";
      ASSERT_GE(pool.users(before), pool.users(page));
    }
    ASSERT_EQ(pool.cached_pages(), cached);
  }
  EXPECT_GT(reused, 1000U);
  EXPECT_GT(pool.evictions(), 1000U);
}

}  // namespace
}  // namespace bulkhead::test
