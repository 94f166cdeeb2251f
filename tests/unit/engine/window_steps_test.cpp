// The scheduler's steps for layers with sliding windows: with steps in flight, wrong drafts, outputs that change
// while steps compute them, a bound on the time of prompts, and always too few pages.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fake_executor.hpp"
#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {
namespace {

using test::FakeExecutor;
using test::kPageTokens;
using test::kReserve;
using Tokens = std::vector<TokenId>;

struct Stream {
  Sequence sequence;
  Tokens all;     // the prompt, and the answer that must follow
  Tokens drafts;  // of the next step
  bool ended() const { return sequence.tokens.size() == all.size(); }
};

// Plans, computes and completes random steps as the engine does.
class Steps {
 public:
  Steps(const ExecutorLimits& limits, const SchedulerOptions& options, std::uint32_t seed)
      : executor(limits), scheduler(limits, options), random_(seed) {
    EXPECT_TRUE(executor.reserve_logits(limits.max_outputs).ok());
  }

  void add(Tokens prompt, std::size_t tokens, Output prompt_output) {
    auto& stream = streams.emplace_back(std::make_unique<Stream>());
    Sequence& sequence = stream->sequence;
    sequence.tokens = stream->all = prompt;
    sequence.prompt_length = static_cast<std::uint32_t>(prompt.size());
    sequence.most_tokens = static_cast<std::uint32_t>(prompt.size() + tokens);
    sequence.may_ask_otherwise = true;
    sequence.prompt_output = prompt_output;
    while (stream->all.size() < sequence.most_tokens) {
      const std::vector<float> row = executor.logits_after(stream->all);
      stream->all.push_back(
          static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
    }
    owners_[&sequence] = stream.get();
    scheduler.add(sequence);
  }

  // Returns false when nothing is left to compute.
  bool turn() {
    while (scheduler.in_flight() < executor.limits().steps_in_flight) {
      guess();
      const Step* const step = scheduler.plan();
      if (step == nullptr) break;
      const Status submitted = executor.submit(*step);
      EXPECT_TRUE(submitted.ok()) << submitted.error().message();
      if (!submitted.ok()) return false;
    }
    if (scheduler.in_flight() == 0) return false;
    const auto outputs = executor.wait();
    EXPECT_TRUE(outputs.ok()) << outputs.error().message();
    if (!outputs.ok()) return false;
    scheduler.complete();
    scheduler.took(std::chrono::milliseconds(1 + random_() % 20));
    for (const ColumnOutput& output : *outputs)
      believe(output);
    return true;
  }

  FakeExecutor executor;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Stream>> streams;
  std::uint64_t asked = 0, drafts_right = 0, drafts_wrong = 0;

 private:
  void guess() {
    std::size_t room = scheduler.draft_room();
    for (Sequence* const sequence : scheduler.running_sequences()) {
      if (room == 0 || !scheduler.generates_next(*sequence)) continue;
      Stream& stream = *owners_.at(sequence);
      const std::size_t from = std::min<std::size_t>(sequence->length(), stream.all.size());
      const std::size_t count = std::min({room, stream.all.size() - from, random_() % 7});
      stream.drafts.assign(stream.all.begin() + static_cast<std::ptrdiff_t>(from),
                           stream.all.begin() + static_cast<std::ptrdiff_t>(from + count));
      for (TokenId& token : stream.drafts)
        token = random_() % 5 == 0 ? 1 : token;
      sequence->drafts = stream.drafts;
      room -= count;
    }
  }

  void believe(const ColumnOutput& output) {
    Sequence* const sequence = scheduler.sequence_of(output.column);
    if (sequence == nullptr) return;
    const bool draft = scheduler.is_draft(output.column);
    const bool right = scheduler.confirm(output.column);
    if (draft) ++(right ? drafts_right : drafts_wrong);
    const bool of_prompt = scheduler.position_of(output.column) + 1 < sequence->prompt_length;
    if (!right || of_prompt) return;
    Stream& stream = *owners_.at(sequence);
    sequence->tokens.push_back(output.best);
    ASSERT_EQ(output.best, stream.all[sequence->tokens.size() - 1]);
    if (stream.ended()) {
      scheduler.remove(*sequence);
    } else if (random_() % 6 == 0) {
      ++asked;
      scheduler.ask(*sequence,
                    sequence->output == Output::kGreedy ? Output::kLogits : Output::kGreedy);
    }
  }

  std::map<const Sequence*, Stream*> owners_;
  std::mt19937_64 random_;
};

TEST(WindowSteps, NoTokenDependsOnWhatIsTakenBack) {
  std::uint64_t asked = 0, right = 0, wrong = 0, preemptions = 0, evictions = 0;
  for (std::uint32_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    ExecutorLimits limits = test::with_windows(kReserve + seed % 4 * 5);
    limits.total_pages = 34 + seed % 3 * 8;
    limits.steps_in_flight = 1 + seed % 3;
    limits.max_drafts = seed % 2 == 0 ? 6 : 0;
    limits.step_us = 1000;
    const SchedulerOptions options{
        .max_batch = 4,
        .prefill_chunk = 16,
        .prefix_cache = seed % 4 != 0,
        .max_token_gap = std::chrono::milliseconds(seed % 5 == 0 ? 0 : 8)};
    Steps steps(limits, options, seed);
    std::mt19937 random(seed);
    for (std::uint32_t i = 0; i < 14; ++i) {
      Tokens prompt(4 + random() % 3 * 13, 3 + random() % 3);
      for (std::uint32_t more = random() % 16; more > 0; --more)
        prompt.push_back(2 + random() % 8);
      steps.add(prompt, 1 + random() % 40, i % 7 == 6 ? Output::kLogits : Output::kNone);
      for (std::uint32_t turns = random() % 4; turns > 0; --turns)
        steps.turn();
    }
    while (steps.turn()) {
    }
    for (const auto& stream : steps.streams)
      ASSERT_TRUE(stream->ended()) << "a sequence never got on";
    EXPECT_EQ(steps.scheduler.pool().used_pages(), 0U);
    EXPECT_EQ(steps.scheduler.pool().windows().used_pages(), 0U);
    asked += steps.asked;
    right += steps.drafts_right;
    wrong += steps.drafts_wrong;
    preemptions += steps.scheduler.preemptions();
    evictions += steps.scheduler.pool().windows().evictions();
  }
  EXPECT_GT(asked, 100U);
  EXPECT_GT(right, 100U);
  EXPECT_GT(wrong, 100U);
  EXPECT_GT(preemptions, 10U);
  EXPECT_GT(evictions, 1000U);
}

}  // namespace
}  // namespace bulkhead::engine
