#include "worker/engine/scheduler.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fake_executor.hpp"

namespace bulkhead::engine {
namespace {

using test::small_limits;

std::unique_ptr<Sequence> sequence_of(std::size_t prompt, std::uint32_t most = 0) {
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens.assign(prompt, 1);
  sequence->most_tokens = most;
  return sequence;
}

// Runs the planned step as an executor would: each sequence that asked for an output gets a token.
bool run_step(Scheduler& scheduler) {
  const Step* step = scheduler.plan();
  if (step == nullptr) return false;
  std::vector<Sequence*> extended;
  for (std::uint32_t i = 0; i < step->columns.size(); ++i) {
    if (step->columns[i].output != Output::kNone) extended.push_back(scheduler.sequence_of(i));
  }
  scheduler.complete();
  for (Sequence* sequence : extended) {
    if (sequence != nullptr) sequence->tokens.push_back(2);
  }
  return true;
}

std::uint32_t columns_of(const Scheduler& scheduler, const Sequence& sequence) {
  for (const Scheduler::Member& member : scheduler.members()) {
    if (member.sequence == &sequence) return member.columns;
  }
  return 0;
}

// If the executor hands no tokens on, the sequences take turns: one part of them is computed while the other part is
// planned, and none waits for long.
TEST(Scheduler, SharesSequencesOutToStepsInFlight) {
  ExecutorLimits limits = small_limits();
  limits.steps_in_flight = 2;
  limits.hands_tokens_on = false;
  Scheduler scheduler(limits, {.max_batch = 4, .prefill_chunk = 10});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back(sequence_of(2));
    scheduler.add(*sequences.back());
  }
  ASSERT_TRUE(run_step(scheduler));  // all prompts
  std::map<const Sequence*, int> tokens;
  const auto end_step = [&] {
    scheduler.complete();
    for (const Scheduler::Member& member : scheduler.members()) {
      member.sequence->tokens.push_back(2);
      ++tokens[member.sequence];
    }
  };
  for (int round = 0; round < 6; ++round) {
    while (scheduler.in_flight() < 2) {
      const Step* const step = scheduler.plan();
      ASSERT_NE(step, nullptr);
      EXPECT_LE(step->sequences.size(), 2U);
      for (const Column& column : step->columns)
        EXPECT_EQ(column.chosen_by, kByHost);
    }
    end_step();
  }
  for (const auto& sequence : sequences)
    EXPECT_EQ(tokens[sequence.get()], 3);
}

// The columns of an encoder see their whole sequence. Sequences end while others wait, and steps overlap.
TEST(Scheduler, PutsWholeSequencesIntoStepsWhereColumnsSeeAllOfThem) {
  ExecutorLimits limits = small_limits();
  limits.both_ways = true;
  limits.steps_in_flight = 2;
  limits.context = limits.max_columns = 64;
  limits.total_pages = 200;
  limits.step_us = 20'000;
  Scheduler scheduler(limits, {.max_batch = 4,
                               .prefill_chunk = 10,
                               .prefix_cache = true,
                               .max_token_gap = std::chrono::milliseconds(50)});
  constexpr std::size_t kLengths[] = {1, 64, 5, 63, 1, 1, 40, 30, 33, 2, 64, 64, 7, 20, 1, 64};
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int round = 0; round < 8; ++round) {
    for (const std::size_t length : kLengths) {
      sequences.push_back(sequence_of(length, static_cast<std::uint32_t>(length)));
      sequences.back()->output = Output::kHidden;
      scheduler.add(*sequences.back());
    }
  }
  std::size_t ended = 0, steps = 0;
  while (ended < sequences.size()) {
    ASSERT_LT(++steps, 2 * sequences.size());
    while (scheduler.in_flight() < 2) {
      const Step* const step = scheduler.plan();
      if (step == nullptr) break;
      ASSERT_LE(step->columns.size(), limits.max_columns);
      for (const Scheduler::Member& member : scheduler.planned_members())
        ASSERT_EQ(member.columns, member.sequence->tokens.size());
    }
    scheduler.complete();
    std::vector<Sequence*> whole;
    for (const Scheduler::Member& member : scheduler.members())
      whole.push_back(member.sequence);
    for (Sequence* const each : whole) {
      scheduler.remove(*each);
      ++ended;
    }
  }
  EXPECT_LT(steps, sequences.size()) << "short ones share steps";
  EXPECT_EQ(scheduler.pool().used_pages(), 0U);
}

TEST(Scheduler, PrefillsInChunksThenGenerates) {
  Scheduler scheduler(small_limits(), {.max_batch = 4, .prefill_chunk = 10});
  const auto sequence = sequence_of(25);
  scheduler.add(*sequence);
  std::vector<std::uint32_t> columns;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(run_step(scheduler));
    columns.push_back(columns_of(scheduler, *sequence));
  }
  EXPECT_EQ(columns, (std::vector<std::uint32_t>{10, 10, 5, 1, 1}));
  EXPECT_EQ(sequence->tokens.size(), 28U);
  scheduler.remove(*sequence);
  EXPECT_EQ(scheduler.pool().used_pages(), 0U);
  EXPECT_FALSE(run_step(scheduler));
}

TEST(Scheduler, PromptsGetWiderStepsWhileNobodyGenerates) {
  ExecutorLimits limits = small_limits();
  limits.context = limits.total_pages = 2048;
  limits.max_columns = 24;
  Scheduler scheduler(limits, {.max_batch = 4, .prefill_chunk = 10, .prefill_chunk_alone = 24});
  const auto first = sequence_of(60), second = sequence_of(50);
  first->output = Output::kLogits;
  scheduler.add(*first);
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *first), 24U);
  ASSERT_TRUE(run_step(scheduler));
  scheduler.add(*second);
  // Both have prompts to read, so no sequence is delayed by a wide step, and they share it.
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *first), 12U);
  EXPECT_EQ(columns_of(scheduler, *second), 12U);
  // The first sequence generates.
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *first), 1U);
  EXPECT_EQ(columns_of(scheduler, *second), 9U) << "ten columns together";
  scheduler.remove(*first);
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *second), 24U);
  // A limit holds for either kind of step.
  scheduler.limit_prefill(3);
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *second), 3U);
  scheduler.remove(*second);
}

TEST(Scheduler, ManyWhoGenerateLeaveHalfAChunkForPrompts) {
  ExecutorLimits limits = small_limits();
  limits.context = limits.total_pages = 2048;
  limits.max_columns = limits.max_outputs = limits.max_sequences = 24;
  Scheduler scheduler(limits, {.max_batch = 20, .prefill_chunk = 8});
  std::vector<std::unique_ptr<Sequence>> talking;
  for (int i = 0; i < 6; ++i) {
    scheduler.add(*talking.emplace_back(sequence_of(1)));
    ASSERT_TRUE(run_step(scheduler));
  }
  const auto prompt = sequence_of(50);
  scheduler.add(*prompt);
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *prompt), 4U);
  scheduler.remove(*talking[0]);
  scheduler.remove(*talking[1]);
  scheduler.remove(*talking[2]);
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *prompt), 5U);
}

// The step leaves it out, but it still counts as a sequence that waits for its next token.
TEST(Scheduler, OneWhoseTokenTheHostIsStillToChooseCountsAsGenerating) {
  ExecutorLimits limits = small_limits();
  limits.context = limits.total_pages = 2048;
  limits.max_columns = 24;
  limits.steps_in_flight = 2;
  Scheduler scheduler(limits, {.max_batch = 4, .prefill_chunk = 10, .prefill_chunk_alone = 24});
  const auto talking = sequence_of(5), prompt = sequence_of(50);
  talking->output = Output::kLogits;
  scheduler.add(*talking);
  ASSERT_NE(scheduler.plan(), nullptr);
  scheduler.add(*prompt);
  const Step* const step = scheduler.plan();  // while the first step is in flight
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->columns.size(), 10U);
  scheduler.complete();
  scheduler.remove(*talking);
  scheduler.complete();
  scheduler.remove(*prompt);
}

TEST(Scheduler, OnlyTheLastPromptTokenAsksForAnOutput) {
  Scheduler scheduler(small_limits(), {.max_batch = 4, .prefill_chunk = 10});
  const auto sequence = sequence_of(12);
  sequence->output = Output::kLogits;
  scheduler.add(*sequence);
  const Step* step = scheduler.plan();
  for (const Column& column : step->columns)
    EXPECT_EQ(column.output, Output::kNone);
  scheduler.complete();
  step = scheduler.plan();
  ASSERT_EQ(step->columns.size(), 2U);
  EXPECT_EQ(step->columns[0].output, Output::kNone);
  EXPECT_EQ(step->columns[1].output, Output::kLogits);
  EXPECT_EQ(step->columns[1].position, 11U);
}

TEST(Scheduler, LongPromptNeverDelaysGenerationAndShortPromptByTwoChunksAtMost) {
  ExecutorLimits limits = small_limits();
  limits.context = 2048;
  limits.total_pages = 2048;
  limits.max_columns = 512;
  Scheduler scheduler(limits, {.max_batch = 16, .prefill_chunk = 256});
  const auto talking = sequence_of(5), long_prompt = sequence_of(1500), newcomer = sequence_of(20);
  scheduler.add(*talking);
  ASSERT_TRUE(run_step(scheduler));
  scheduler.add(*long_prompt);
  ASSERT_TRUE(run_step(scheduler));
  ASSERT_TRUE(run_step(scheduler));
  scheduler.add(*newcomer);
  int steps_until_newcomer = 0;
  while (long_prompt->tokens.size() == 1500) {
    const std::size_t before = talking->tokens.size();
    ASSERT_TRUE(run_step(scheduler));
    EXPECT_EQ(talking->tokens.size(), before + 1) << "generation skipped a step";
    if (newcomer->tokens.size() == 20) ++steps_until_newcomer;
    std::uint32_t prefilled = 0;
    for (const Scheduler::Member& member : scheduler.members()) {
      if (member.sequence != talking.get()) prefilled += member.columns;
    }
    EXPECT_LE(prefilled, 256U + 1U);
  }
  EXPECT_LE(steps_until_newcomer, 2);
}

TEST(Scheduler, PromptsTakeTurns) {
  Scheduler scheduler(small_limits(), {.max_batch = 16, .prefill_chunk = 8});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 4; ++i) {
    sequences.push_back(sequence_of(64));
    scheduler.add(*sequences.back());
  }
  for (int i = 0; i < 16; ++i)
    ASSERT_TRUE(run_step(scheduler));
  for (const auto& sequence : sequences)
    EXPECT_EQ(sequence->computed, 32U);
}

TEST(Scheduler, KeepsToEveryLimit) {
  ExecutorLimits limits = small_limits();
  limits.max_columns = 6;
  limits.max_outputs = 4;
  limits.max_sequences = 8;
  Scheduler scheduler(limits, {.max_batch = 16, .prefill_chunk = 256});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 9; ++i) {
    sequences.push_back(sequence_of(9));
    scheduler.add(*sequences.back());
  }
  for (int i = 0; i < 200; ++i) {
    const Step* step = scheduler.plan();
    ASSERT_NE(step, nullptr);
    ASSERT_LE(step->columns.size(), 6U);
    ASSERT_LE(step->sequences.size(), 4U);
    scheduler.complete();
    for (const Scheduler::Member& member : scheduler.members()) {
      if (member.sequence->pending() == 0) member.sequence->tokens.push_back(2);
    }
    // An answer is ten tokens long.
    for (const auto& sequence : sequences) {
      if (sequence->tokens.size() == 19) scheduler.remove(*sequence);
    }
    if (scheduler.running() + scheduler.waiting() == 0) break;
  }
  for (const auto& sequence : sequences)
    EXPECT_EQ(sequence->tokens.size(), 19U);
}

TEST(Scheduler, AFullBatchOfOneColumnEachStillLetsAPromptIn) {
  ExecutorLimits limits = small_limits();
  limits.max_columns = 4;
  Scheduler scheduler(limits, {.max_batch = 4, .prefill_chunk = 256});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back(sequence_of(30));
    scheduler.add(*sequences.back());
  }
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(run_step(scheduler));
  EXPECT_GT(sequences.back()->tokens.size(), 30U);
}

TEST(Scheduler, PreemptsTheYoungestAndLetsItBackIn) {
  ExecutorLimits limits = small_limits();
  limits.total_pages = 8;  // 32 positions
  Scheduler scheduler(limits, {.max_batch = 4, .prefill_chunk = 64});
  const auto old = sequence_of(11), young = sequence_of(11);
  scheduler.add(*old);
  scheduler.add(*young);
  while (young->preemptions == 0) {
    ASSERT_TRUE(run_step(scheduler));
    ASSERT_LT(old->tokens.size(), 32U);
  }
  EXPECT_EQ(old->preemptions, 0U);
  EXPECT_EQ(young->state, Sequence::State::kWaiting);
  EXPECT_TRUE(young->pages.pages().empty());
  const std::size_t had = young->tokens.size();
  EXPECT_GT(had, 11U);
  scheduler.remove(*old);
  ASSERT_TRUE(run_step(scheduler));
  EXPECT_EQ(columns_of(scheduler, *young), had) << "prompt and answer are computed anew";
  EXPECT_EQ(young->tokens.size(), had + 1);
}

TEST(Scheduler, FullCacheNeverGetsStuck) {
  ExecutorLimits limits = small_limits();
  limits.total_pages = 10;
  limits.context = 40;
  Scheduler scheduler(limits, {.max_batch = 8, .prefill_chunk = 16});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (std::size_t i = 0; i < 12; ++i) {
    sequences.push_back(sequence_of(1 + (i * 7) % 38, 40));
    scheduler.add(*sequences.back());
  }
  int steps = 0;
  while (scheduler.running() + scheduler.waiting() > 0) {
    ASSERT_LT(++steps, 5000) << "stuck";
    ASSERT_TRUE(run_step(scheduler));
    for (const auto& sequence : sequences) {
      if (sequence->tokens.size() == scheduler.sequence_limit()) scheduler.remove(*sequence);
    }
  }
  EXPECT_GT(scheduler.preemptions(), 0U);
  EXPECT_EQ(scheduler.pool().used_pages(), 0U);
}

TEST(Scheduler, SequenceLimitIsTheContextOrTheWholeCache) {
  ExecutorLimits limits = small_limits();
  EXPECT_EQ(Scheduler(limits, {}).sequence_limit(), limits.context);
  limits.total_pages = 3;
  const Scheduler tiny(limits, {});
  EXPECT_EQ(tiny.sequence_limit(), 12U);
  EXPECT_TRUE(tiny.fits(12));
  EXPECT_FALSE(tiny.fits(13));
  EXPECT_FALSE(tiny.fits(0));
}

TEST(Scheduler, RemovedInFlightIsNotGivenItsResult) {
  Scheduler scheduler(small_limits(), {});
  const auto kept = sequence_of(3), removed = sequence_of(3);
  scheduler.add(*kept);
  scheduler.add(*removed);
  const Step* step = scheduler.plan();
  ASSERT_EQ(step->sequences.size(), 2U);
  scheduler.remove(*removed);
  EXPECT_EQ(scheduler.sequence_of(0), kept.get());
  EXPECT_EQ(scheduler.sequence_of(3), nullptr);
  scheduler.complete();
  EXPECT_EQ(kept->computed, 3U);
  EXPECT_EQ(removed->computed, 0U);
}

}  // namespace
}  // namespace bulkhead::engine
