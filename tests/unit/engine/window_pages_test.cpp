// Window pages: which ones a sequence releases, which ones others find, and that no token depends on this.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/kv_cache.hpp"
#include "worker/engine/scheduler.hpp"

namespace bulkhead::test {
namespace {

using engine::ExecutorLimits;
using engine::PageIndex;
using engine::PageList;
using engine::PagePool;
using engine::Sharing;
using ipc::TokenId;

engine::EngineOptions sharing(bool cache = true, std::uint32_t chunk = 16) {
  engine::EngineOptions options;
  options.scheduler = {.max_batch = 4, .prefill_chunk = chunk, .prefix_cache = cache};
  return options;
}

// ---- the pool ----

TEST(WindowReserve, HoldsWhatAnyPositionSeesAndSomePagesMore) {
  for (const std::uint32_t page : {1U, 4U, 32U}) {
    for (std::uint32_t window = 1; window < 200; ++window) {
      for (std::uint32_t at = 0; at < 300; ++at) {
        const std::uint32_t first = (at + 1 - std::min(at + 1, window)) / page;
        ASSERT_LE(at / page - first + 1 + engine::kPagesBehindWindow,
                  engine::window_reserve(window, page))
            << "window " << window << ", position " << at;
      }
    }
  }
}

// Returns a list whose first tokens.size() positions have been computed, as for a sequence.
PageList computed(PagePool& pool, const Tokens& tokens) {
  PageList list(pool);
  const auto end = static_cast<std::uint32_t>(tokens.size());
  for (std::uint32_t at = list.reuse(tokens) * kPageTokens; at < end; ++at) {
    EXPECT_TRUE(list.cover_all(at + 1));
    list.publish(std::span(tokens).first(at + 1));
    const std::uint32_t ends[] = {end / kPageTokens};
    list.slide(at + 1, ends);
  }
  return list;
}

std::uint32_t found(PagePool& pool, const Tokens& tokens) {
  PageList list(pool);
  return list.reuse(tokens);
}

TEST(WindowPages, AListHoldsThoseOfItsWindowAlone) {
  PagePool pool(with_windows(kReserve), Sharing::kPrefixes);
  const Tokens tokens = some_tokens(1, 100);
  const PageList list = computed(pool, tokens);
  EXPECT_EQ(list.pages().size(), 25U);
  // Position 100 sees from 91 on, in page 22; the list keeps two pages before that one.
  EXPECT_EQ(list.windows().first, 20U);
  EXPECT_EQ(list.windows().pages.size(), 5U);
  EXPECT_EQ(pool.windows().used_pages(), 5U);
  EXPECT_EQ(pool.used_pages(), 25U);
}

TEST(WindowPages, APrefixIsFoundOnlyWhereItsWindowIsThere) {
  PagePool pool(with_windows(kReserve), Sharing::kPrefixes);
  const Tokens tokens = some_tokens(1, 100);
  computed(pool, tokens).clear();
  EXPECT_EQ(found(pool, tokens), 25U);
  EXPECT_EQ(found(pool, Tokens(tokens.begin(), tokens.begin() + 96)), 24U);
  EXPECT_EQ(found(pool, Tokens(tokens.begin(), tokens.begin() + 60)), 0U)
      << "the pages before it are there, but no window";
  EXPECT_EQ(pool.cached_pages(), 25U);

  // A second list that computes the same positions continues with the pages that the pool already
  // has.
  const PageList branch = computed(pool, Tokens(tokens.begin(), tokens.begin() + 60));
  EXPECT_EQ(pool.cached_pages(), 25U);
  EXPECT_EQ(found(pool, Tokens(tokens.begin(), tokens.begin() + 60)), 15U);
}

TEST(WindowPages, SharedOnesAreFreeOnceNobodySeesThem) {
  PagePool pool(with_windows(40), Sharing::kPrefixes);
  const Tokens tokens = some_tokens(1, 40);
  PageList one = computed(pool, tokens), two(pool);
  ASSERT_EQ(two.reuse(tokens), 10U);
  EXPECT_EQ(two.windows().first, 7U) << "position 40 sees from 31 on";
  for (std::uint32_t at = two.windows().first; at < 10; ++at)
    EXPECT_EQ(pool.windows().users(two.windows().pages[at - two.windows().first]), 2U);
  one.clear();
  EXPECT_EQ(pool.windows().used_pages(), 3U);
  two.clear();
  EXPECT_EQ(pool.windows().used_pages(), 0U);
  EXPECT_EQ(found(pool, tokens), 10U);
}

TEST(WindowPages, PassedOnesMakeRoomBeforeThoseAtAnEnd) {
  PagePool pool(with_windows(12), Sharing::kPrefixes);
  const Tokens old = some_tokens(1, 20), young = some_tokens(2, 60);
  computed(pool, old).clear();
  computed(pool, young).clear();
  EXPECT_GT(pool.windows().evictions(), 0U);
  EXPECT_EQ(found(pool, old), 5U) << "an older end outlives what a younger sequence passed";
  EXPECT_EQ(found(pool, young), 15U);
}

TEST(WindowPages, LeaveWithTheirFullPage) {
  ExecutorLimits limits = with_windows(40);
  limits.total_pages = 10;
  PagePool pool(limits, Sharing::kPrefixes);
  computed(pool, some_tokens(1, 40)).clear();
  EXPECT_EQ(pool.windows().cached_pages(), 10U);
  PageList hungry(pool);
  ASSERT_TRUE(hungry.cover(7 * kPageTokens));
  EXPECT_EQ(pool.cached_pages(), 3U);
  EXPECT_EQ(pool.windows().cached_pages(), 3U);
  EXPECT_EQ(pool.windows().free_pages(), 40U);
}

// A model that consists only of the rules: what a page of either kind holds, and who uses it.
struct WindowRules {
  static constexpr std::uint32_t kLists = 8;
  struct Known {
    PageList list;
    Tokens tokens;
    std::uint32_t computed = 0;
  };

  WindowRules() : pool(limits(), Sharing::kPrefixes), lists(kLists) {
    for (Known& known : lists)
      known.list = PageList(pool);
  }
  static ExecutorLimits limits() {
    ExecutorLimits made = with_windows(44);
    made.total_pages = 60;
    return made;
  }

  void act(Known& known) {
    if (known.tokens.empty()) {
      // There are few different tokens, so that beginnings are often alike.
      known.tokens.resize(1 + random() % 70);
      for (TokenId& token : known.tokens)
        token = random() % 25 == 0 ? 1 : 0;
      find(known);
    } else if (random() % 12 == 0) {
      known.list.clear();
      known.tokens.clear();
      known.computed = 0;
    } else if (random() % 12 == 0 && known.computed == known.list.shared_positions()) {
      find(known);
    } else {
      compute(known);
    }
  }
  void find(Known& known) {
    reused += known.list.reuse(known.tokens);
    known.computed = known.list.shared_positions();
  }
  void compute(Known& known) {
    const auto size = static_cast<std::uint32_t>(known.tokens.size());
    const std::uint32_t next =
        std::min(size, static_cast<std::uint32_t>(known.computed + 1 + random() % 9));
    if (!known.list.cover_all(next)) return;
    const auto windows = known.list.windows();
    for (std::uint32_t at = known.computed; at < next; ++at) {
      const PageIndex page = known.list.pages()[at / kPageTokens];
      const PageIndex window = windows.pages[at / kPageTokens - windows.first];
      ASSERT_EQ(pool.users(page), 1U) << "a write to a page of several";
      ASSERT_EQ(pool.windows().users(window), 1U) << "a write to a window page of several";
      ASSERT_FALSE(pool.can_be_found(page) || pool.can_be_found(window));
      if ((at + 1) % kPageTokens != 0) continue;
      holds[page] = holds[window] = Tokens(known.tokens.begin(), known.tokens.begin() + at + 1);
    }
    known.computed = next;
    known.list.publish(std::span(known.tokens).first(next));
    const std::uint32_t ends[] = {static_cast<std::uint32_t>(random() % 12)};
    known.list.slide(next, ends);
    slid += known.list.windows().first > windows.first ? 1 : 0;
  }

  void expect_window(const Known& known) const {
    const auto windows = known.list.windows();
    ASSERT_LE(windows.first, pool.windows().first_seen(known.computed));
    for (std::uint32_t at = windows.first; at < known.computed / kPageTokens; ++at) {
      const auto end = known.tokens.begin() + (at + 1) * kPageTokens;
      ASSERT_EQ(holds.at(windows.pages[at - windows.first]), Tokens(known.tokens.begin(), end));
    }
  }
  void expect_rules() {
    std::map<PageIndex, std::uint32_t> users;
    for (const Known& each : lists) {
      for (const PageIndex page : each.list.windows().pages)
        ++users[page];
    }
    ASSERT_EQ(pool.windows().used_pages(), users.size());
    std::uint32_t cached = 0;
    for (PageIndex page = limits().total_pages; page < pool.all_pages(); ++page) {
      ASSERT_EQ(pool.windows().users(page), users.contains(page) ? users[page] : 0);
      if (!pool.can_be_found(page)) continue;
      ++cached;
      const PageIndex full = pool.windows().full_page(page);
      ASSERT_TRUE(pool.index().contains(full));
      ASSERT_EQ(pool.windows().of(full), page);
      ASSERT_EQ(holds.at(full), holds.at(page));
    }
    ASSERT_EQ(pool.windows().cached_pages(), cached);
  }

  std::mt19937 random{11};
  PagePool pool;
  std::vector<Known> lists;
  std::map<PageIndex, Tokens> holds;  // a full page: all tokens up to its end
  std::uint64_t reused = 0, slid = 0;
};

TEST(WindowPages, RandomUseKeepsEveryRule) {
  WindowRules rules;
  for (int round = 0; round < 20000; ++round) {
    WindowRules::Known& known = rules.lists[rules.random() % WindowRules::kLists];
    ASSERT_NO_FATAL_FAILURE(rules.act(known));
    ASSERT_NO_FATAL_FAILURE(rules.expect_window(known));
    ASSERT_NO_FATAL_FAILURE(rules.expect_rules());
  }
  EXPECT_GT(rules.reused, 1000U);
  EXPECT_GT(rules.slid, 1000U);
  EXPECT_GT(rules.pool.evictions(), 1000U);
  EXPECT_GT(rules.pool.windows().evictions(), 1000U);
}

// ---- the engine ----

TEST(Windows, ALongSequenceGoesOnInFewPages) {
  for (const bool cache : {false, true}) {
    for (const std::uint32_t in_flight : {1U, 2U, 3U}) {
      ExecutorLimits limits = with_windows(kReserve);
      limits.steps_in_flight = in_flight;
      EngineHarness harness(limits, sharing(cache));
      EXPECT_EQ(harness.engine.scheduler().sequence_limit(), limits.context);
      const Tokens prompt = some_tokens(1, 60);
      harness.engine.submit(endless(1, prompt, 60));
      harness.run();
      EXPECT_EQ(harness.answer(1).tokens, answer_to(harness.executor, prompt, 60));
      EXPECT_EQ(harness.engine.scheduler().preemptions(), 0U);
      EXPECT_EQ(figure(harness, "window_pages_used"), 0);
    }
  }
}

TEST(Windows, WithTooFewPagesToGoOnSequencesAreShort) {
  const EngineHarness harness(with_windows(kReserve - 1), sharing());
  EXPECT_EQ(harness.engine.scheduler().sequence_limit(), (kReserve - 1) * kPageTokens);
}

// Prompts that together have all window pages, so that none of them could continue.
TEST(Windows, PromptsThatTakeEachOthersPagesAllEnd) {
  for (const std::uint32_t pages : {kReserve, 2 * kReserve - 1, 2 * kReserve, 3 * kReserve - 2}) {
    for (const std::uint32_t in_flight : {1U, 2U}) {
      SCOPED_TRACE(pages);
      ExecutorLimits limits = with_windows(pages);
      limits.steps_in_flight = in_flight;
      EngineHarness harness(limits, sharing());
      for (std::uint64_t id = 1; id <= 6; ++id)
        harness.engine.submit(endless(id, some_tokens(id, 50 + id * 7), 20));
      harness.run();
      for (std::uint64_t id = 1; id <= 6; ++id) {
        EXPECT_EQ(harness.answer(id).tokens,
                  answer_to(harness.executor, some_tokens(id, 50 + id * 7), 20));
      }
    }
  }
}

TEST(Windows, TheNextTurnOfAChatFindsTheEndOfTheLastOne) {
  EngineHarness harness(with_windows(24), sharing());
  Tokens chat = some_tokens(1, 21);
  std::uint32_t cached = 0;
  for (std::uint64_t turn = 1; turn <= 4; ++turn) {
    harness.engine.submit(endless(turn, chat, 16));
    harness.run();
    const Answer& answer = harness.answer(turn);
    EXPECT_EQ(answer.tokens, answer_to(harness.executor, chat, 16));
    EXPECT_EQ(answer.finished->cached_tokens, cached);
    chat = chat + answer.tokens;
    // The answer's last token was never computed.
    cached = static_cast<std::uint32_t>((chat.size() - 1) / kPageTokens * kPageTokens);
    chat = chat + some_tokens(10 + turn, 5);
  }
}

// The template drops parts of an answer, so the next prompt differs from the end of the last prompt
// on, which the answer's window has passed.
TEST(Windows, APromptsEndStaysWhileItsAnswerGoesOn) {
  EngineHarness harness(with_windows(20), sharing());
  const Tokens prompt = some_tokens(1, 40);
  harness.engine.submit(endless(1, prompt, 60));
  harness.run();
  harness.engine.submit(endless(2, prompt + some_tokens(2, 9), 5));
  harness.run();
  EXPECT_EQ(harness.answer(2).finished->cached_tokens, 40U);
  EXPECT_EQ(harness.answer(2).tokens, answer_to(harness.executor, prompt + some_tokens(2, 9), 5));
}

// Conversations branch and continue in pools that are always too small.
TEST(Windows, NoTokenDependsOnThem) {
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    ExecutorLimits limits = with_windows(kReserve + seed % 4 * 4);
    limits.total_pages = 34 + seed % 3 * 8;
    limits.steps_in_flight = 1 + seed / 2 % 3;
    limits.max_drafts = seed % 2 == 0 ? 8 : 0;
    engine::EngineOptions options = sharing(seed % 5 != 0, seed % 3 == 0 ? 7 : 32);
    if (seed % 2 == 0) options.speculation = engine::Speculation::kAlways;
    EngineHarness harness(limits, options);
    std::mt19937_64 random(seed);
    std::map<std::uint64_t, std::pair<Tokens, std::uint32_t>> asked;
    for (std::uint64_t id = 1; id <= 60; ++id) {
      Tokens prompt = some_tokens(1000 + random() % 3, 4 + random() % 3 * 13);
      for (std::uint64_t more = random() % 4; more > 0; --more)
        prompt = prompt + some_tokens(2000 + random() % 4, 1 + random() % 16);
      const auto tokens = static_cast<std::uint32_t>(1 + random() % 30);
      asked[id] = {prompt, tokens};
      harness.engine.submit(endless(id, prompt, tokens));
      for (std::uint64_t turns = random() % 4; turns > 0; --turns) {
        const bool cancels = random() % 8 == 0;
        if (cancels && !harness.answer(id).ended()) {
          harness.engine.cancel(RequestId{id});
          asked.erase(id);
        }
        harness.turn();
      }
    }
    harness.run();
    while (harness.turn()) {
    }
    for (const auto& [id, request] : asked)
      ASSERT_EQ(harness.answer(id).tokens,
                answer_to(harness.executor, request.first, request.second))
          << id;
    const PagePool& pool = harness.engine.scheduler().pool();
    EXPECT_EQ(pool.used_pages(), 0U) << "a page was lost";
    EXPECT_EQ(pool.windows().used_pages(), 0U) << "a window page was lost";
  }
}

TEST(Windows, ASpoiltPageIsNotBelieved) {
  EngineHarness harness(with_windows(40), sharing());
  const Tokens prompt = some_tokens(1, 30);
  harness.engine.submit(endless(1, prompt, 6));
  harness.run();
  harness.turn();  // the last full page gets its checksum
  const PagePool& pool = harness.engine.scheduler().pool();
  PageIndex full = engine::PrefixIndex::kRoot;
  for (std::uint32_t i = 0; i < 6; ++i)
    full = pool.index().find(full, std::span(prompt).subspan(i * kPageTokens, kPageTokens)).value();
  const PageIndex window = pool.windows().of(full);
  ASSERT_NE(window, engine::kNoPage);
  harness.executor.spoil(window);
  harness.now += std::chrono::seconds(5);
  harness.engine.submit(endless(2, prompt, 6));
  harness.run();
  EXPECT_EQ(harness.answer(2).tokens, answer_to(harness.executor, prompt, 6));
  EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 1);
  EXPECT_EQ(figure(harness, "kv_pages_quarantined"), 1);
  EXPECT_EQ(figure(harness, "requests_computed_again_total"), 1);
  EXPECT_EQ(pool.windows().used_pages(), 1U) << "the one that is left out";
  EXPECT_EQ(pool.used_pages(), 0U) << "the full page's memory is as good as before";
}

}  // namespace
}  // namespace bulkhead::test
