// Saved states that layers carry from position to position: which sequence continues from which state, what makes
// room, what a successor takes over; and that no token depends on it.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/scheduler.hpp"

namespace bulkhead::test {
namespace {

using engine::EnteredPage;
using engine::ExecutorLimits;
using engine::PageIndex;
using engine::Scheduler;
using engine::Sequence;
using engine::StateSlot;

constexpr std::uint32_t kRunning = 4;

ExecutorLimits with_states(std::uint32_t saved) {
  ExecutorLimits limits = small_limits();
  limits.states = kRunning + saved;
  return limits;
}

engine::EngineOptions sharing(std::chrono::seconds check_memory = {}) {
  engine::EngineOptions options;
  options.check_memory = check_memory;
  options.scheduler = {.max_batch = kRunning, .prefill_chunk = 32, .prefix_cache = true};
  return options;
}

// Returns the answer without any earlier request.
Tokens expected(const Tokens& prompt, std::uint32_t count) {
  EngineHarness harness(with_states(0), sharing());
  harness.engine.submit(greedy_request(1, prompt, count));
  harness.run();
  return harness.answer(1).tokens;
}

// Sends one request after another to one engine.
struct Chats {
  EngineHarness harness;
  std::uint64_t last = 0;
  explicit Chats(std::uint32_t saved, std::chrono::seconds check_memory = {})
      : harness(with_states(saved), sharing(check_memory)) {}
  // The answer, and how many of the prompt's tokens were not computed.
  struct Turn {
    Tokens answer;
    std::uint32_t cached = 0;
  };
  Turn ask(const Tokens& prompt, std::uint32_t count) {
    harness.engine.submit(greedy_request(++last, prompt, count));
    harness.run();
    const Answer& answer = harness.answer(last);
    EXPECT_TRUE(answer.finished.has_value());
    EXPECT_EQ(answer.tokens, expected(prompt, count));
    return {answer.tokens, answer.finished ? answer.finished->cached_tokens : 0};
  }
};

TEST(StateCache, TheSecondTurnOfAChatReadsOnlyWhatIsNew) {
  Chats chats(8);
  const Tokens prompt = some_tokens(1, 41);
  const Chats::Turn first = chats.ask(prompt, 30);
  EXPECT_EQ(first.cached, 0U);
  // 70 positions were computed; a page has four.
  const Chats::Turn second = chats.ask(prompt + first.answer + some_tokens(2, 9), 10);
  EXPECT_EQ(second.cached, 68U);
}

// A lost step leaves pages and states undefined, and so does the one after it that was in flight.
TEST(StateCache, SequencesOfALostStepAreComputedAgain) {
  constexpr std::uint32_t kTokens = 25;
  for (const std::uint32_t lose_in : {1U, 2U, 5U, 9U}) {
    for (const std::uint32_t count : {1U, 2U}) {
      SCOPED_TRACE(testing::Message() << count << " steps, in step " << lose_in);
      ExecutorLimits limits = with_states(8);
      limits.steps_in_flight = 2;
      EngineHarness harness(limits, sharing());
      const std::vector<Tokens> prompts{some_tokens(1, 41), some_tokens(2, 7), some_tokens(3, 18)};
      std::uint32_t waited = 0;
      harness.executor.while_waiting = [&] {
        if (++waited == lose_in) harness.executor.steps_to_lose = count;
      };
      for (std::size_t i = 0; i < prompts.size(); ++i)
        harness.engine.submit(greedy_request(i + 1, prompts[i], kTokens));
      harness.run();
      for (std::size_t i = 0; i < prompts.size(); ++i)
        EXPECT_EQ(harness.answer(i + 1).tokens, expected(prompts[i], kTokens)) << i;
      // No sequence finds what the lost steps wrote.
      harness.engine.submit(greedy_request(9, prompts[0] + some_tokens(4, 9), kTokens));
      harness.run();
      EXPECT_EQ(harness.answer(9).tokens, expected(prompts[0] + some_tokens(4, 9), kTokens));
      EXPECT_EQ(harness.executor.steps_to_lose, 0U);
    }
  }
}

// A sequence that has lost its pages still gets the tokens that steps in flight choose, but none after one that was
// lost.
TEST(StateCache, ASequenceThatWaitsForPagesGetsNoTokenAfterALostOne) {
  constexpr std::uint32_t kTokens = 50;
  const std::vector<Tokens> prompts{some_tokens(1, 30), some_tokens(2, 30), some_tokens(3, 30)};
  double preemptions = 0;
  for (std::uint32_t lose_in = 1; lose_in < 100; ++lose_in) {
    SCOPED_TRACE(lose_in);
    ExecutorLimits limits = with_states(0);
    limits.steps_in_flight = 3;
    limits.total_pages = limits.context / limits.page_tokens;
    EngineHarness harness(limits, sharing());
    std::uint32_t waited = 0;
    harness.executor.while_waiting = [&] {
      if (++waited == lose_in) harness.executor.steps_to_lose = 1;
    };
    for (std::size_t i = 0; i < prompts.size(); ++i)
      harness.engine.submit(greedy_request(i + 1, prompts[i], kTokens));
    harness.run();
    for (std::size_t i = 0; i < prompts.size(); ++i)
      EXPECT_EQ(harness.answer(i + 1).tokens, expected(prompts[i], kTokens)) << i;
    preemptions += figure(harness, "preemptions_total");
  }
  EXPECT_GT(preemptions, 100);
}

TEST(StateCache, ATurnWhoseTemplateEndsThePromptOtherwiseGoesOnBeforeThatEnd) {
  Chats chats(8);
  const Tokens said = some_tokens(1, 40);
  chats.ask(said + some_tokens(2, 6), 10);
  EXPECT_EQ(chats.ask(said + some_tokens(3, 20), 10).cached, 36U);
}

TEST(StateCache, ABeginningThatSeveralHaveIsSavedOnceTheSecondHasIt) {
  Chats chats(8);
  const Tokens common = some_tokens(1, 40);
  EXPECT_EQ(chats.ask(common + some_tokens(2, 30), 5).cached, 0U);
  EXPECT_EQ(chats.ask(common + some_tokens(3, 30), 5).cached, 0U);
  EXPECT_EQ(chats.ask(common + some_tokens(4, 30), 5).cached, 40U);
}

TEST(StateCache, EqualPromptsThatComeTogetherAreComputedOnce) {
  EngineHarness harness(with_states(4), sharing());
  const Tokens prompt = some_tokens(1, 40);
  for (std::uint64_t id = 1; id <= kRunning; ++id)
    harness.engine.submit(sampled_request(id, prompt, 12, id));
  harness.run();
  EXPECT_EQ(harness.engine.scheduler().prefix_figures().miss_tokens, 40U + 3 * 8U);
  for (std::uint64_t id = 1; id <= kRunning; ++id) {
    EngineHarness alone(with_states(0), sharing());
    alone.engine.submit(sampled_request(id, prompt, 12, id));
    alone.run();
    EXPECT_EQ(harness.answer(id).tokens, alone.answer(id).tokens);
  }
}

TEST(StateCache, TheBudgetHoldsAndWhatWasWantedLastStays) {
  Chats chats(3);
  const Tokens wanted = some_tokens(1, 40);
  chats.ask(wanted, 1);
  for (std::uint64_t other = 2; other < 10; ++other) {
    chats.ask(some_tokens(other, 50), 1);
    EXPECT_EQ(chats.ask(wanted, 1).cached, 32U);
    EXPECT_LE(chats.harness.engine.scheduler().states().snapshots(), 3U);
  }
  EXPECT_GT(chats.harness.engine.scheduler().states().evictions(), 4U);
}

TEST(StateCache, WithoutABudgetEveryPromptIsComputedWhole) {
  Chats chats(0);
  const Tokens prompt = some_tokens(1, 40);
  chats.ask(prompt, 5);
  EXPECT_EQ(chats.ask(prompt, 5).cached, 0U);
}

// Few slots, few pages, steps in flight, a cancellation; all of it twice, so that many states are found.
TEST(StateCache, NoTokenDependsOnIt) {
  for (const std::uint32_t in_flight : {1U, 2U, 3U}) {
    SCOPED_TRACE(in_flight);
    ExecutorLimits limits = with_states(3 + in_flight);
    limits.total_pages = 34;
    limits.steps_in_flight = in_flight;
    EngineHarness harness(limits, sharing());
    std::vector<ipc::Submit> requests;
    for (std::uint64_t i = 1; i <= 24; ++i) {
      const Tokens prompt = some_tokens(1 + i % 3, 24) + some_tokens(i % 12, 1 + (i * 13) % 30);
      requests.push_back(i % 2 == 0 ? greedy_request(i, prompt, 30)
                                    : sampled_request(i, prompt, 30, 1000 + i));
      harness.engine.submit(requests.back());
    }
    harness.run_until_tokens(3, 5);
    harness.engine.cancel(RequestId{4});
    harness.run();
    EXPECT_GT(harness.engine.scheduler().preemptions(), 0U) << "the cache was never short";
    EXPECT_GT(harness.engine.scheduler().prefix_figures().hit_tokens, 100U);
    for (const ipc::Submit& request : requests) {
      const std::uint64_t id = request.request.value;
      if (id == 4) continue;
      SCOPED_TRACE(id);
      EngineHarness alone(with_states(0), sharing());
      alone.engine.submit(request);
      alone.run();
      EXPECT_EQ(harness.answer(id).tokens, alone.answer(id).tokens);
    }
  }
}

// ---- a successor ----

struct Ledger : engine::PageLedger, engine::StateLedger {
  struct Page {
    PageIndex before;
    Tokens tokens;
    engine::PageSum sum;
  };
  std::vector<PageIndex> order;
  std::map<PageIndex, Page> pages;
  std::map<StateSlot, PageIndex> states;
  std::map<StateSlot, engine::PageSum> sums;
  void entered(const EnteredPage& page) override {
    order.push_back(page.page);
    pages[page.page] = {page.before, {page.tokens.begin(), page.tokens.end()}, page.sum};
  }
  void left(PageIndex page) override {
    std::erase(order, page);
    pages.erase(page);
    for (const auto& [slot, of] : states)
      EXPECT_NE(of, page) << "slot " << slot << " was not told before its page";
  }
  void saved(const engine::EnteredState& state) override {
    states[state.slot] = state.page;
    sums[state.slot] = state.sum;
  }
  void overwritten(StateSlot slot) override {
    states.erase(slot);
    sums.erase(slot);
  }
  std::vector<engine::EnteredState> entered_states() const {
    std::vector<engine::EnteredState> all;
    for (const auto& [slot, page] : states)
      all.push_back({slot, page, sums.at(slot)});
    return all;
  }
};

std::unique_ptr<Sequence> sequence_of(Tokens tokens) {
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(tokens);
  sequence->most_tokens = 100;
  return sequence;
}

std::size_t step(Scheduler& scheduler, const Ledger* ledger = nullptr) {
  const engine::Step* planned = scheduler.plan();
  if (planned == nullptr) return 0;
  const std::size_t columns = planned->columns.size();
  for (const engine::StateUse& use : planned->states) {
    if (ledger == nullptr) continue;
    EXPECT_FALSE(ledger->states.contains(use.to)) << "a snapshot is written to";
    EXPECT_FALSE(use.saved_after > 0 && ledger->states.contains(use.saved));
  }
  scheduler.complete();
  for (const Scheduler::Member& member : scheduler.members()) {
    if (member.sequence != nullptr && member.sequence->pending() == 0)
      member.sequence->tokens.push_back(7);
  }
  return columns;
}

TEST(AdoptedStates, AStreamGoesOnWithoutReadingItsPromptAgain) {
  const ExecutorLimits limits = with_states(4);
  Ledger ledger;
  Tokens tokens;
  {
    Scheduler dead(limits, sharing().scheduler);
    dead.set_ledger(&ledger);
    dead.set_state_ledger(&ledger);
    const auto sequence = sequence_of(some_tokens(1, 41));
    dead.add(*sequence);
    while (sequence->tokens.size() < 60)
      ASSERT_GT(step(dead, &ledger), 0U);
    tokens = sequence->tokens;
    const auto states = ledger.states;
    dead.remove(*sequence);
    EXPECT_EQ(states, ledger.states) << "what is kept outlives its sequence";
  }
  EXPECT_EQ(ledger.states.size(), 2U) << "the prompt's, and the latest of the answer";

  Scheduler heir(limits, sharing().scheduler);
  std::vector<EnteredPage> kept;
  for (const PageIndex page : ledger.order)
    kept.push_back({page, ledger.pages[page].before, ledger.pages[page].tokens});
  EXPECT_EQ(heir.adopt(kept), kept.size());
  for (const auto& [slot, page] : ledger.states)
    EXPECT_TRUE(heir.adopt_state(page, slot));
  EXPECT_FALSE(heir.adopt_state(limits.total_pages - 1, 0)) << "a page that nobody can find";
  EXPECT_FALSE(heir.adopt_state(ledger.order.front(), limits.states)) << "no slot";
  heir.set_ledger(&ledger);
  heir.set_state_ledger(&ledger);
  const auto resumed = sequence_of(tokens);
  heir.add(*resumed);
  EXPECT_LE(step(heir, &ledger), 4U) << "of " << tokens.size();
  // Other sequences never get slots that are kept.
  std::vector<std::unique_ptr<Sequence>> others;
  for (std::uint64_t i = 2; i <= kRunning; ++i) {
    others.push_back(sequence_of(some_tokens(i, 30)));
    heir.add(*others.back());
  }
  std::set<StateSlot> own;
  for (int i = 0; i < 8; ++i)
    ASSERT_GT(step(heir, &ledger), 0U);
  for (const auto& other : others)
    EXPECT_TRUE(own.insert(other->slot).second);
}

// ---- slots whose content has changed ----

// A chat after its first turn, of which two states are saved, with their sums.
struct SavedChat {
  explicit SavedChat(std::chrono::seconds check_memory = {}) : chats(8, check_memory) {
    chats.harness.engine.set_state_ledger(&ledger);
    first = chats.ask(prompt, 30);
    chats.harness.turn();  // the last saved states get their sum
    EXPECT_EQ(ledger.states.size(), 2U);
  }
  Chats chats;
  Ledger ledger;
  const Tokens prompt = some_tokens(1, 41);
  Chats::Turn first;
};

TEST(SpoiltStates, AreNotContinuedFrom) {
  SavedChat saved;
  auto& [chats, ledger, prompt, first] = saved;
  for (const auto& [slot, page] : ledger.states)
    chats.harness.executor.spoil_states(slot);
  chats.harness.now += std::chrono::seconds(2);
  // ask() compares the answer with the undisturbed one.
  const Tokens longer = prompt + first.answer + some_tokens(2, 9);
  chats.ask(longer, 10);
  const double damaged = figure(chats.harness, "kv_pages_damaged_total");
  EXPECT_GE(damaged, 1);
  EXPECT_EQ(figure(chats.harness, "kv_pages_quarantined"), damaged);
  const engine::Scheduler& scheduler = chats.harness.engine.scheduler();
  EXPECT_EQ(scheduler.states().left_out(), damaged) << "the slots' memory changed";
  EXPECT_EQ(scheduler.pool().pages_left_out(engine::PageKind::kFull), 0U)
      << "the pages' memory is as good as before";
  chats.ask(longer + some_tokens(3, 6), 10);
}

// With several steps in flight, a later step saves other states in the slot before the comparison's result is there.
TEST(SpoiltStates, AreNoticedThoughTheSlotHasOtherStatesByThen) {
  const Tokens prompt = some_tokens(1, 41), longer = prompt + some_tokens(2, 50);
  for (std::uint32_t saved = 1; saved <= 4; ++saved) {
    SCOPED_TRACE(saved);
    ExecutorLimits limits = with_states(saved);
    limits.steps_in_flight = 4;
    engine::EngineOptions options = sharing();
    options.scheduler.prefill_chunk = kPageTokens;
    EngineHarness harness(limits, options);
    harness.engine.submit(greedy_request(1, prompt, 1));
    harness.run();
    for (int i = 0; i < 3; ++i)
      harness.turn();  // the saved states get their sums
    for (StateSlot slot = 0; slot < limits.states; ++slot)
      harness.executor.spoil_states(slot);
    harness.now += std::chrono::seconds(2);
    harness.engine.submit(greedy_request(2, longer, 8));
    harness.run();
    EXPECT_EQ(harness.answer(2).tokens, expected(longer, 8));
    EXPECT_EQ(figure(harness, "kv_pages_damaged_total"), 1);
  }
}

TEST(SpoiltStates, AreFoundInTheBackground) {
  SavedChat saved(std::chrono::seconds(10));
  auto& [chats, ledger, prompt, first] = saved;
  const StateSlot spoilt = ledger.entered_states().back().slot;  // of the longer prefix
  chats.harness.executor.spoil_states(spoilt);
  const std::uint32_t cached = chats.harness.engine.scheduler().pool().cached_pages();
  const double checked = figure(chats.harness, "kv_pages_checked_total");
  for (int i = 0; i < 25; ++i) {
    chats.harness.now += std::chrono::milliseconds(500);
    EXPECT_FALSE(chats.harness.turn());
  }
  EXPECT_EQ(figure(chats.harness, "kv_pages_damaged_total"), 1);
  EXPECT_EQ(chats.harness.engine.scheduler().states().left_out(), 1U);
  EXPECT_EQ(ledger.states.size(), 1U) << "a successor shall not find it either";
  EXPECT_FALSE(ledger.states.contains(spoilt));
  EXPECT_LE(figure(chats.harness, "kv_pages_checked_total") - checked, (cached + 2) * 1.3)
      << "at a low rate";
  chats.ask(prompt + first.answer + some_tokens(2, 9), 10);
  EXPECT_EQ(figure(chats.harness, "kv_pages_damaged_total"), 1);
}

TEST(SpoiltStates, OfAPredecessorAreNotTakenOver) {
  const Tokens prompt = some_tokens(1, 41);
  Chats dead(8);
  Ledger ledger;
  dead.harness.engine.set_ledger(&ledger);
  dead.harness.engine.set_state_ledger(&ledger);
  const Chats::Turn first = dead.ask(prompt, 30);
  dead.harness.turn();
  const std::vector<engine::EnteredState> states = ledger.entered_states();
  ASSERT_EQ(states.size(), 2U);
  for (const bool spoilt : {false, true}) {
    SCOPED_TRACE(spoilt);
    Chats heir(8);
    heir.harness.executor = dead.harness.executor;  // the same memory
    std::vector<EnteredPage> pages;
    for (const PageIndex page : ledger.order) {
      const Ledger::Page& kept = ledger.pages.at(page);
      pages.push_back({page, kept.before, kept.tokens, kept.sum});
    }
    Ledger again = ledger;
    heir.harness.engine.set_ledger(&again);
    heir.harness.engine.set_state_ledger(&again);
    if (spoilt) heir.harness.executor.spoil_states(states.back().slot);
    EXPECT_TRUE(heir.harness.engine.adopt(pages).ok());
    const auto taken = heir.harness.engine.adopt_states(states);
    ASSERT_TRUE(taken.ok()) << taken.error().message();
    EXPECT_EQ(*taken, spoilt ? 1U : 2U);
    EXPECT_EQ(again.states.size(), *taken) << "the next successor shall not find the others either";
    EXPECT_EQ(figure(heir.harness, "kv_pages_damaged_total"), spoilt ? 1 : 0);
    EXPECT_EQ(figure(heir.harness, "kv_pages_quarantined"), spoilt ? 1 : 0);
    heir.ask(prompt + first.answer + some_tokens(2, 9), 10);
  }
}

}  // namespace
}  // namespace bulkhead::test
