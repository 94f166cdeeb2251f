// Sharing pages between sequences that begin alike: who finds what, when, for how long; and that no
// token ever depends on it.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "worker/engine/kv_cache.hpp"
#include "worker/engine/scheduler.hpp"

namespace bulkhead::test {
namespace {

using engine::ExecutorLimits;
using engine::PageIndex;
using engine::PageList;
using engine::PagePool;
using engine::Scheduler;
using engine::Sequence;
using engine::Sharing;
using ipc::TokenId;
using testing::ElementsAre;
using Tokens = std::vector<TokenId>;

Tokens operator+(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// ---- the pool ----

constexpr std::uint32_t kPageTokens = 4;

// A list whose first tokens.size() positions have been computed.
PageList computed(PagePool& pool, const Tokens& tokens) {
  PageList list(pool);
  list.adopt(tokens);
  EXPECT_TRUE(list.cover(static_cast<std::uint32_t>(tokens.size())));
  list.publish(tokens);
  return list;
}

std::uint32_t found(PagePool& pool, const Tokens& tokens) {
  PageList list(pool);
  return list.adopt(tokens);
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
  EXPECT_EQ(other.adopt(tokens), 2U);
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

// Against a model that knows the rules alone: what a page holds, and who uses it.
TEST(PrefixPages, RandomUseKeepsEveryRule) {
  constexpr std::uint32_t kPages = 40, kLists = 8;
  std::mt19937 random(11);
  PagePool pool(kPages, kPageTokens, Sharing::kPrefixes);
  struct Known {
    PageList list;
    Tokens tokens;               // of its sequence
    std::uint32_t computed = 0;  // of those
  };
  std::vector<Known> lists(kLists);
  for (Known& known : lists)
    known.list = PageList(pool);
  std::map<PageIndex, Tokens> holds;  // a page that was filled: all tokens up to its end
  std::uint64_t adopted = 0;

  for (int round = 0; round < 20000; ++round) {
    Known& known = lists[random() % kLists];
    if (known.tokens.empty()) {
      // Few different tokens, so that beginnings are often alike.
      known.tokens.resize(1 + random() % 40);
      for (TokenId& token : known.tokens)
        token = random() % 20 == 0 ? 1 : 0;
      const std::uint32_t pages = known.list.adopt(known.tokens);
      adopted += pages;
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
  EXPECT_GT(adopted, 1000U);
  EXPECT_GT(pool.evictions(), 1000U);
}

// ---- the scheduler ----

engine::SchedulerOptions sharing(std::uint32_t chunk = 256) {
  return {.max_batch = 16, .prefill_chunk = chunk, .prefix_cache = true};
}

std::unique_ptr<Sequence> sequence_of(Tokens tokens) {
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(tokens);
  sequence->most_tokens = 100;
  return sequence;
}

std::size_t step(Scheduler& scheduler) {
  const engine::Step* planned = scheduler.plan();
  if (planned == nullptr) return 0;
  const std::size_t columns = planned->columns.size();
  scheduler.complete();
  for (const Scheduler::Member& member : scheduler.members()) {
    if (member.sequence != nullptr && member.sequence->pending() == 0)
      member.sequence->tokens.push_back(7);
  }
  return columns;
}

TEST(PrefixScheduling, TheLastTokenIsAlwaysComputed) {
  for (const std::size_t length : {7U, 8U, 9U, 12U, 13U}) {
    Scheduler scheduler(small_limits(), sharing());
    const auto first = sequence_of(some_tokens(3, length));
    const auto second = sequence_of(some_tokens(3, length));
    scheduler.add(*first);
    EXPECT_EQ(step(scheduler), length);
    scheduler.remove(*first);
    scheduler.add(*second);
    const std::size_t pages = (length - 1) / 4;
    EXPECT_EQ(step(scheduler), length - pages * 4) << length;
    EXPECT_EQ(second->tokens.size(), length + 1) << "it has its next token";
    EXPECT_EQ(second->adopted, pages * 4);
    EXPECT_EQ(scheduler.prefix_figures().hit_tokens, pages * 4);
    EXPECT_EQ(scheduler.prefix_figures().hit_pages, pages);
    EXPECT_EQ(scheduler.prefix_figures().miss_tokens, 2 * length - pages * 4);
    EXPECT_EQ(scheduler.prefix_figures().miss_pages, length / 4 + length / 4 - pages);
  }
}

TEST(PrefixScheduling, PromptsThatComeTogetherAreComputedOnce) {
  Scheduler scheduler(small_limits(), sharing(10));
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 4; ++i) {
    sequences.push_back(sequence_of(some_tokens(4, 41)));
    scheduler.add(*sequences.back());
  }
  std::size_t columns = 0;
  for (int i = 0; i < 5; ++i)
    columns += step(scheduler);
  EXPECT_EQ(columns, 41U + 3U) << "the first of them, and the last token of each other one";
  for (const auto& sequence : sequences)
    EXPECT_EQ(sequence->tokens.size(), 42U);
}

TEST(PrefixScheduling, WhoWaitsForAnotherGoesOnWhenThatOneIsGone) {
  Scheduler scheduler(small_limits(), sharing(10));
  const auto first = sequence_of(some_tokens(4, 41)), second = sequence_of(some_tokens(4, 41));
  scheduler.add(*first);
  scheduler.add(*second);
  EXPECT_EQ(step(scheduler), 10U);
  EXPECT_EQ(second->computed, 0U);
  scheduler.plan();
  EXPECT_EQ(second->computed, 8U) << "what the first one has finished";
  scheduler.remove(*first);
  scheduler.complete();
  EXPECT_EQ(second->computed, 8U);
  EXPECT_EQ(step(scheduler), 10U);
  EXPECT_EQ(second->computed, 18U);
}

TEST(PrefixScheduling, APageIsFoundOnlyAfterTheStepThatFilledIt) {
  Scheduler scheduler(small_limits(), sharing());
  const auto cancelled = sequence_of(some_tokens(5, 20)), next = sequence_of(some_tokens(5, 20));
  scheduler.add(*cancelled);
  ASSERT_NE(scheduler.plan(), nullptr);
  scheduler.remove(*cancelled);  // while its step is under way
  scheduler.add(*next);
  scheduler.complete();
  EXPECT_EQ(scheduler.pool().cached_pages(), 0U);
  EXPECT_EQ(step(scheduler), 20U);
  EXPECT_EQ(next->adopted, 0U);
}

TEST(PrefixScheduling, APreemptedSequenceComputesOnlyWhatOthersTook) {
  ExecutorLimits limits = small_limits();
  limits.total_pages = 9;
  Scheduler scheduler(limits, sharing());
  const auto old = sequence_of(some_tokens(1, 11)), young = sequence_of(some_tokens(2, 17));
  scheduler.add(*old);
  scheduler.add(*young);
  while (young->preemptions == 0)
    ASSERT_GT(step(scheduler), 0U);
  scheduler.remove(*old);
  const std::size_t had = young->tokens.size();
  const std::size_t columns = step(scheduler);
  EXPECT_LT(columns, 9U) << "of " << had;
  EXPECT_EQ(young->tokens.size(), had + 1);
  EXPECT_EQ(young->adopted, 0U) << "nobody else's work";
}

// ---- the engine ----

engine::EngineOptions options(bool cache, std::uint32_t chunk = 32) {
  engine::EngineOptions made;
  made.scheduler = {.max_batch = 8, .prefill_chunk = chunk, .prefix_cache = cache};
  return made;
}

double counter(const EngineHarness& harness, const std::string& name) {
  for (const ipc::Counter& each : harness.engine.stats().counters) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "there is no counter " << name;
  return 0;
}

TEST(PrefixCache, ARepeatedPromptCostsOneColumnsWorth) {
  EngineHarness harness(small_limits(), options(true));
  const Tokens prompt = some_tokens(1, 65);
  harness.engine.submit(greedy_request(1, prompt, 5));
  harness.run();
  EXPECT_EQ(harness.answer(1).finished->cached_tokens, 0U);
  EXPECT_EQ(counter(harness, "prefix_cache_miss_tokens_total"), 65);
  harness.engine.submit(greedy_request(2, prompt, 5));
  harness.run();
  EXPECT_EQ(harness.answer(2).finished->cached_tokens, 64U);
  EXPECT_EQ(harness.answer(2).tokens, harness.answer(1).tokens);
  EXPECT_EQ(counter(harness, "prefix_cache_miss_tokens_total"), 66);
  EXPECT_EQ(counter(harness, "prefix_cache_hit_tokens_total"), 64);
  EXPECT_EQ(counter(harness, "prefix_cache_hit_pages_total"), 16);
  EXPECT_EQ(counter(harness, "prefix_cache_pages"), 17) << "the prompt's, and one of the answer";
  EXPECT_NEAR(counter(harness, "prefix_cache_hit_ratio"), 64.0 / 130, 1e-9);
}

TEST(PrefixCache, TheNextTurnOfAChatFindsTheAnswerToo) {
  EngineHarness harness(small_limits(), options(true));
  const Tokens question = some_tokens(1, 21);
  harness.engine.submit(greedy_request(1, question, 30));
  harness.run();
  const Tokens next = question + harness.answer(1).tokens + some_tokens(2, 9);
  harness.engine.submit(greedy_request(2, next, 5));
  harness.run();
  // The answer's last token was never computed: 50 positions are, 12 pages.
  EXPECT_EQ(harness.answer(2).finished->cached_tokens, 48U);
}

TEST(PrefixCache, ACancelledRequestsPagesStayUseful) {
  EngineHarness harness(small_limits(), options(true, 16));
  const Tokens prompt = some_tokens(1, 90);
  harness.engine.submit(greedy_request(1, prompt, 5));
  harness.turn();
  harness.turn();
  harness.engine.cancel(RequestId{1});
  EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
  harness.engine.submit(greedy_request(2, prompt, 5));
  harness.run();
  EXPECT_EQ(harness.answer(2).finished->cached_tokens, 32U);
}

TEST(PrefixCache, AResumedRequestFindsItsPromptAndItsAnswer) {
  // One worker: the successor of a dead one begins with an empty cache, but may have had the same
  // prompt from another client already.
  EngineHarness harness(small_limits(), options(true));
  const ipc::Submit request = sampled_request(1, some_tokens(1, 30), 40, 99);
  harness.engine.submit(request);
  harness.run();
  const Answer whole = harness.answer(1);
  for (const std::uint32_t sent : {1U, 2U, 17U, 39U}) {
    ipc::Submit again = request;
    again.request = RequestId{100 + sent};
    again.accepted_tokens.assign(whole.tokens.begin(), whole.tokens.begin() + sent);
    harness.engine.submit(again);
    harness.run();
    const Answer& rest = harness.answer(100 + sent);
    EXPECT_EQ(again.accepted_tokens + rest.tokens, whole.tokens);
    EXPECT_EQ(rest.finished->completion_tokens, 40U);
    EXPECT_EQ(rest.finished->cached_tokens, sent == 1 ? 28U : std::min(30U, (29 + sent) / 4 * 4))
        << "of the prompt, at most the prompt";
  }
  EXPECT_EQ(counter(harness, "draws_below_accepted_total"), 0);
}

TEST(PrefixCache, SwitchedOffItDoesNothing) {
  EngineHarness harness(small_limits(), options(false));
  for (const std::uint64_t id : {1, 2}) {
    harness.engine.submit(greedy_request(id, some_tokens(1, 65), 5));
    harness.run();
    EXPECT_EQ(harness.answer(id).finished->cached_tokens, 0U);
  }
  EXPECT_EQ(counter(harness, "prefix_cache_miss_tokens_total"), 130);
  EXPECT_EQ(counter(harness, "prefix_cache_hit_tokens_total"), 0);
  EXPECT_EQ(counter(harness, "prefix_cache_pages"), 0);
}

// Conversations that branch and go on, in a cache that is always too small, with requests that are
// cancelled at any time.
struct Traffic {
  std::uint64_t seed = 0;
  std::uint32_t pages = 0;
  std::uint32_t chunk = 0;
  std::uint32_t depth = 1;  // steps in flight
};

// What each request generated, and whether it was let finish.
std::map<std::uint64_t, std::pair<Tokens, bool>> serve(const Traffic& traffic, bool cache) {
  ExecutorLimits limits = small_limits();
  limits.total_pages = traffic.pages;
  limits.steps_in_flight = traffic.depth;
  EngineHarness harness(limits, options(cache, traffic.chunk));
  std::mt19937_64 random(traffic.seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  std::vector<ipc::Submit> asked;
  constexpr std::uint64_t kRequests = 120;
  std::uint64_t cancelled = 0;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    // One of three system prompts, and by chance one of a few questions behind it.
    Tokens prompt = some_tokens(1000 + below(3), 4 + below(3) * 9);
    for (std::uint64_t more = below(4); more > 0; --more)
      prompt = prompt + some_tokens(2000 + below(4), 1 + below(12));
    const std::uint64_t seed = random();
    const auto tokens = static_cast<std::uint32_t>(1 + below(25));
    asked.push_back(below(2) == 0 ? greedy_request(id, prompt, tokens)
                                  : sampled_request(id, prompt, tokens, seed));
    harness.engine.submit(asked.back());
    for (std::uint64_t turns = below(4); turns > 0; --turns) {
      const std::uint64_t victim = below(6) == 0 ? id - below(std::min<std::uint64_t>(id, 8)) : 0;
      harness.meanwhile = [&harness, &cancelled, victim] {
        if (victim == 0 || harness.answer(victim).ended()) return;
        harness.engine.cancel(RequestId{victim});
        ++cancelled;
      };
      harness.turn();
    }
    harness.meanwhile = [] {};
  }
  harness.run();
  while (harness.turn()) {
  }
  const engine::PagePool& pool = harness.engine.scheduler().pool();
  EXPECT_EQ(pool.used_pages(), 0U) << "a page was lost";
  for (PageIndex page = 0; page < pool.total_pages(); ++page)
    EXPECT_EQ(pool.users(page), 0U);
  EXPECT_GT(harness.engine.scheduler().preemptions(), 0U);
  EXPECT_GT(cancelled, 0U);
  if (cache) {
    EXPECT_GT(counter(harness, "prefix_cache_hit_pages_total"), 30);
    EXPECT_GT(pool.evictions(), 30U);
  }
  std::map<std::uint64_t, std::pair<Tokens, bool>> all;
  for (const ipc::Submit& request : asked) {
    const Answer& answer = harness.answer(request.request.value);
    EXPECT_TRUE(answer.finished.has_value());
    all[request.request.value] = {
        answer.tokens, answer.finished && answer.finished->reason == ipc::FinishReason::kLength};
  }
  return all;
}

TEST(PrefixCache, NoTokenDependsOnIt) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const auto small = static_cast<std::uint32_t>(seed);
    const Traffic traffic{.seed = seed,
                          .pages = 28 + small % 4 * 6,
                          .chunk = small % 3 == 0 ? 7U : 32U,
                          .depth = 1 + small / 2 % 3};
    SCOPED_TRACE(seed);
    const auto with = serve(traffic, true), without = serve(traffic, false);
    std::size_t whole = 0;
    for (const auto& [id, answer] : with) {
      const auto& other = without.at(id);
      // A cancelled one ends where it was, which is not the same place in both.
      const std::size_t common = std::min(answer.first.size(), other.first.size());
      if (answer.second && other.second) {
        EXPECT_EQ(answer.first.size(), other.first.size()) << id;
        ++whole;
      }
      EXPECT_TRUE(std::equal(answer.first.begin(),
                             answer.first.begin() + static_cast<std::ptrdiff_t>(common),
                             other.first.begin()))
          << "request " << id;
    }
    EXPECT_GT(whole, 60U);
  }
}

}  // namespace
}  // namespace bulkhead::test
