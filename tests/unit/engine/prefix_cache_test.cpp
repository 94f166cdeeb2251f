// How sequences with the same beginning share pages, in the scheduler and the engine: what is computed only once, and
// that no token depends on it. prefix_pages_test.cpp tests the pages themselves.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/scheduler.hpp"

namespace bulkhead::test {
namespace {

using engine::ExecutorLimits;
using engine::PageIndex;
using engine::Scheduler;
using engine::Sequence;

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
    EXPECT_EQ(second->reused, pages * 4);
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
  EXPECT_EQ(next->reused, 0U);
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
  EXPECT_EQ(young->reused, 0U) << "nobody else's work";
}

TEST(PrefixScheduling, NobodyWaitsForASequenceThatIsComputedAgain) {
  Scheduler scheduler(small_limits(), sharing());
  const auto doubted = sequence_of(some_tokens(6, 20)), next = sequence_of(some_tokens(6, 20));
  scheduler.add(*doubted);
  step(scheduler);
  scheduler.compute_again(*doubted);
  scheduler.add(*next);
  EXPECT_EQ(step(scheduler), 41U) << "both prompts, and the first one's token";
  EXPECT_EQ(doubted->tokens.size(), 22U);
  EXPECT_EQ(next->tokens.size(), 21U);
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
  // The answer's last token was never computed, so there are 50 positions, which fill 12 pages.
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
  // One worker plays both: a dead worker's successor begins with an empty cache, but may have had the same prompt
  // from another client already.
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

TEST(PrefixCache, AnAnswerWhoseLogitsWereNoNumbersHoldsNobodyUp) {
  EngineHarness harness(small_limits(), options(true));
  const Tokens prompt = some_tokens(6, 20);
  harness.engine.submit(greedy_request(1, prompt, 60));
  harness.executor.poisoned_outputs = 1;
  harness.run_until_tokens(1, 2);
  harness.engine.submit(greedy_request(2, prompt, 3));
  while (!harness.answer(2).ended())
    ASSERT_TRUE(harness.turn());
  EXPECT_FALSE(harness.answer(1).ended());
  harness.run();
  EXPECT_EQ(Tokens(harness.answer(1).tokens.begin(), harness.answer(1).tokens.begin() + 3),
            harness.answer(2).tokens);
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

// Conversations that branch and continue, in a cache that is always too small, with requests that are cancelled at
// any time.
struct Traffic {
  std::uint64_t seed = 0;
  std::uint32_t pages = 0;
  std::uint32_t chunk = 0;
  std::uint32_t depth = 1;  // steps in flight
};

// Returns what each request generated, and whether it was allowed to finish.
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
    // One of three system prompts, sometimes with one of a few questions after it.
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
      // A cancelled answer ends at any place, which can differ between the two runs.
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
