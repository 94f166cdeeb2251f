// With two steps in flight, tokens, draws, rows of logits and log-probabilities go from step to step
// without the host. A steady step allocates nothing.
#include <span>
#include <string>
#include <vector>

#include "transformer_harness.hpp"
#include "worker/engine/sampler.hpp"

namespace bulkhead::forward {
namespace {

class StepsInFlight : public TransformerTest {
 protected:
  void expect_computed_again(const std::string& name, std::size_t prompt_tokens,
                             std::uint32_t broken_link, config::ChainedKernels setting,
                             bool adjusted = false);
};

TEST_F(StepsInFlight, SteadyDecodingAllocatesNothingOnTheDevice) {
  const Loaded model = load(or_builtin("tiny-qwen2-Q4_0"));
  ASSERT_NE(model.executor, nullptr);
  generate(*model.executor, some_prompt(20), 3, 32);
  const auto counter = [&](const char* name) { return counter_of(*model.executor, name); };
  const double allocations = counter("device_allocations"), recordings = counter("ring_recordings");
  generate(*model.executor, some_prompt(20), 20, 32);
  EXPECT_EQ(counter("device_allocations"), allocations);
  EXPECT_EQ(counter("ring_recordings"), recordings);
}

// Two sequences side by side, each step submitted before the one before it is waited for: their
// tokens never go through the host.
TEST_F(StepsInFlight, TokensGoFromStepToStepOnTheDevice) {
  struct Way {
    bool lanes;
    std::uint32_t depth;
  };
  for (const auto [lanes, depth] : {Way{false, 2}, Way{true, 2}, Way{false, 3}}) {
    SCOPED_TRACE(depth);
    Options options;
    options.lanes = lanes;
    options.gpu = [depth = depth](config::GpuOptimizations& gpu) {
      gpu.command_buffer_ring.steps_in_flight = depth;
    };
    const bool dear = lanes && on_cpu();
    const Loaded model = load(or_builtin(dear ? kCheapest : "tiny-qwen3-Q4_K_M"), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    ASSERT_EQ(executor.limits().steps_in_flight, depth);
    const std::size_t tokens = 12;
    const std::vector<std::vector<TokenId>> prompts{some_prompt(5), some_prompt(20)};
    std::vector<std::vector<Row>> want;
    std::vector<ColumnOutput> got;
    for (const auto& prompt : prompts)
      want.push_back(generate(executor, prompt, tokens, 64));

    std::vector<std::vector<PageIndex>> tables;
    for (std::uint32_t s = 0; s < 2; ++s)
      tables.push_back(pages_for(executor, 40, s));
    const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
    const auto take = [&](Executor& from) {
      const auto outputs = from.wait();
      ASSERT_TRUE(outputs.ok()) << outputs.error().message();
      ASSERT_EQ(outputs->size(), 2U);
      got.insert(got.end(), outputs->begin(), outputs->end());
    };
    std::vector<Column> columns;
    for (std::uint32_t s = 0; s < 2; ++s) {
      const auto prompt = columns_of(prompts[s], s, Output::kGreedy);
      columns.insert(columns.end(), prompt.begin(), prompt.end());
    }
    const auto before = [&](const char* name) { return counter_of(executor, name); };
    const double begun = before("command_buffers_begun"), made = before("device_allocations");
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    for (std::uint32_t n = 1; n < tokens; ++n) {
      columns.clear();
      for (std::uint32_t s = 0; s < 2; ++s) {
        Column column;
        column.position = static_cast<std::uint32_t>(prompts[s].size()) + n - 1;
        column.sequence = s;
        column.output = Output::kGreedy;
        column.chosen_by = s;
        columns.push_back(column);
      }
      ASSERT_TRUE(executor.submit({columns, sequences}).ok());
      if (n + 1 < depth) continue;
      EXPECT_FALSE(executor.submit({columns, sequences}).ok()) << "one more in flight";
      take(executor);
    }
    for (std::uint32_t left = 1; left < depth; ++left)
      take(executor);
    ASSERT_EQ(got.size(), 2 * tokens);
    for (std::size_t n = 0; n < tokens; ++n) {
      for (std::size_t s = 0; s < 2; ++s) {
        EXPECT_EQ(got[2 * n + s].best, want[s][n].best) << s << ", token " << n;
        EXPECT_EQ(got[2 * n + s].best_logprob, want[s][n].logprob);
      }
    }
    EXPECT_EQ(before("device_allocations"), made);
    EXPECT_LE(before("command_buffers_begun") - begun, 2 * depth) << "copies of this step's sizes";
  }
}

TEST_F(StepsInFlight, RunningAheadIsSwitchedByItself) {
  Options options;
  options.gpu = [](config::GpuOptimizations& gpu) { gpu.command_buffer_ring.steps_in_flight = 1; };
  const Loaded ahead = load("builtin"), model = load("builtin", options);
  ASSERT_NE(ahead.executor, nullptr);
  ASSERT_NE(model.executor, nullptr);
  EXPECT_EQ(model.executor->limits().steps_in_flight, 1U);
  for (const auto& part : model.executor->optimizations())
    EXPECT_TRUE(part.active) << part.name;
  expect_same_bits(generate(*model.executor, some_prompt(9), 4, 64, Output::kLogits),
                   generate(*ahead.executor, some_prompt(9), 4, 64, Output::kLogits), "in turn");
}

TEST_F(StepsInFlight, RowsOfLogitsComeWhileTheNextStepIsComputed) {
  const Loaded model = load("builtin");
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const auto prompt = some_prompt(9);
  const auto want = generate(executor, prompt, 6, 64, Output::kLogits);
  // A second sequence computes in the steps between, so the logits' buffer is used all the time.
  const std::vector<std::vector<PageIndex>> tables{pages_for(executor, 40, 0),
                                                   pages_for(executor, 40, 1)};
  const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
  const std::vector<Column> columns = columns_of(prompt, 0, Output::kLogits);
  ASSERT_TRUE(executor.submit({columns, sequences}).ok());
  for (std::uint32_t n = 0; n < want.size(); ++n) {
    const Column other{7 * n, n, 1, Output::kLogits};
    ASSERT_TRUE(executor.submit({std::span(&other, 1), sequences}).ok());
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok());
    ASSERT_EQ(outputs->size(), 1U);
    const std::vector<float> logits((*outputs)[0].logits.begin(), (*outputs)[0].logits.end());
    EXPECT_EQ(logits, want[n].logits) << "token " << n;
    ASSERT_TRUE(executor.wait().ok());
    if (n + 1 == want.size()) break;
    const Column next{want[n].best, static_cast<std::uint32_t>(prompt.size()) + n, 0,
                      Output::kLogits};
    ASSERT_TRUE(executor.submit({std::span(&next, 1), sequences}).ok());
  }
}

// Compares the device's log-probabilities with those that the CPU computes from the same row: for greedy choices and
// draws, with the next step in flight, alone and beside a sequence that asks for other ones.
TEST_F(StepsInFlight, TheDeviceComputesLogprobabilities) {
  const std::string name = or_builtin("tiny-qwen3-Q4_K_M");
  const Loaded model = load(name);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  ASSERT_EQ(executor.limits().most_logprobs, 20);
  const auto prompt = some_prompt(9);
  const auto rows = generate(executor, prompt, 10, 64, Output::kLogits);
  engine::Sampler sampler(executor.limits().vocabulary);
  const std::vector<std::vector<PageIndex>> tables{pages_for(executor, 40, 0),
                                                   pages_for(executor, 40, 1)};
  const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
  const engine::Choice choice;
  for (const bool company : {false, true}) {
    std::vector<Column> columns = columns_of(prompt, 0, Output::kGreedy);
    columns.back().logprobs = 5;
    if (company) columns.push_back({3, 0, 1, Output::kSampled, engine::kByHost, &choice, 20});
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    for (std::uint32_t n = 0; n < rows.size(); ++n) {
      columns.assign(1, {0, static_cast<std::uint32_t>(prompt.size()) + n, 0, Output::kGreedy, 0});
      columns[0].logprobs = 5;
      if (company) columns.push_back({0, n + 1, 1, Output::kSampled, 1, &choice, 0});
      if (n + 1 < rows.size()) {
        ASSERT_TRUE(executor.submit({columns, sequences}).ok());
      }
      const auto outputs = executor.wait();
      ASSERT_TRUE(outputs.ok()) << outputs.error().message();
      const ColumnOutput& made = (*outputs)[0];
      const auto want = sampler.logprobs(rows[n].logits, rows[n].best, 5);
      EXPECT_EQ(made.best, rows[n].best);
      EXPECT_NEAR(made.logprob, want.chosen, 1e-5);
      ASSERT_EQ(made.top.size(), 5U);
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(made.top[i].token, want.best[i].token) << n << " rank " << i;
        EXPECT_NEAR(made.top[i].value, want.best[i].value, 1e-5);
      }
      if (company) {
        EXPECT_EQ((*outputs)[1].top.size(), n == 0 ? 20U : 0U);
      }
    }
  }
  Column bad{1, 0, 0, Output::kLogits};
  bad.logprobs = 1;
  EXPECT_FALSE(executor.submit({std::span<const Column>(&bad, 1), sequences}).ok());
  bad.output = Output::kGreedy;
  bad.logprobs = 21;
  EXPECT_FALSE(executor.submit({std::span<const Column>(&bad, 1), sequences}).ok());
}

// A link of a model's chain that waits in vain, with two steps in flight, of which the second works
// with what the first one left.
void StepsInFlight::expect_computed_again(const std::string& name, std::size_t prompt_tokens,
                                          std::uint32_t broken_link, config::ChainedKernels setting,
                                          bool adjusted) {
  const auto prompt = some_prompt(prompt_tokens);
  const std::size_t tokens = 6;
  Options options;
  options.broken_link = broken_link;
  options.gpu = [&](config::GpuOptimizations& gpu) { gpu.chained_kernels = setting; };
  const Loaded model = load(name, options);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  if (!has_units(executor))
    GTEST_SKIP() << "only products by matrix units are chained (BULKHEAD_TEST_DEVICE=auto)";
  const Loaded other = load(name);
  ASSERT_NE(other.executor, nullptr);
  const auto want = generate(*other.executor, prompt, tokens, 64);

  const std::vector<PageIndex> table = pages_for(executor, 32);
  const std::vector<std::span<const PageIndex>> sequences{table};
  std::vector<Column> columns = columns_of(prompt, 0, Output::kGreedy);
  // Every token may come.
  const std::vector<std::uint32_t> words((executor.limits().vocabulary + 31) / 32, 0xFFFFFFFF);
  const engine::Adjustment mask{.mask = words};
  const auto choose = [&] {
    if (!adjusted) return;
    ASSERT_TRUE(executor.choose(std::span(&mask, 1)).ok());
  };
  columns.back().adjusted = adjusted;
  ASSERT_TRUE(executor.submit({columns, sequences}).ok());
  choose();
  std::vector<ColumnOutput> got;
  const auto take = [&] {
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok()) << outputs.error().message();
    got.insert(got.end(), outputs->begin(), outputs->end());
  };
  for (std::uint32_t n = 1; n < tokens; ++n) {
    Column column;
    column.position = static_cast<std::uint32_t>(prompt_tokens) - 1 + n;
    column.output = Output::kGreedy;
    column.chosen_by = 0;
    column.adjusted = adjusted;
    columns = {column};
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    take();
    choose();
  }
  take();
  ASSERT_EQ(got.size(), tokens);
  for (std::size_t n = 0; n < tokens; ++n) {
    EXPECT_EQ(got[n].best, want[n].best) << "token " << n;
    EXPECT_EQ(got[n].best_logprob, want[n].logprob);
  }
  EXPECT_EQ(counter_of(executor, "steps_computed_again"), 2);
}

TEST_F(StepsInFlight, AStepThatWaitedInVainIsComputedAgain) {
  expect_computed_again(or_builtin("tiny-qwen2-Q4_K_M"), 9, 7, config::ChainedKernels::kOn);
}
// Two steps are computed again: the first step has its masks by then, and the second step does not.
TEST_F(StepsInFlight, AStepWithMasksThatWaitedInVainIsComputedAgain) {
  expect_computed_again(or_builtin("tiny-qwen2-Q4_K_M"), 9, 7, config::ChainedKernels::kOn, true);
}
// The prompt is too wide to be chained.
TEST_F(StepsInFlight, AStepOfOneColumnThatWaitedInVainIsComputedAgain) {
  expect_computed_again(or_builtin("tiny-qwen2-Q8_0"), 20, 8, config::ChainedKernels::kOn);
}

// A model with states can't compute a step again that has changed them: both steps are lost, and later ones work.
TEST_F(StepsInFlight, StepsWithStatesThatWaitedInVainAreLost) {
  const std::string name = "tiny-qwen35-Q4_K_M";
  if (!std::filesystem::exists(model_file(name))) GTEST_SKIP() << "no " << model_file(name);
  Options options;
  options.broken_link = 9;
  options.gpu = [](config::GpuOptimizations& gpu) {
    gpu.chained_kernels = config::ChainedKernels::kOn;
  };
  const Loaded model = load(name, options), other = load(name);
  ASSERT_NE(model.executor, nullptr);
  ASSERT_NE(other.executor, nullptr);
  Executor& executor = *model.executor;
  if (!has_units(executor))
    GTEST_SKIP() << "only products by matrix units are chained (BULKHEAD_TEST_DEVICE=auto)";
  const auto prompt = some_prompt(9);
  const auto want = generate(*other.executor, prompt, 1, 64);
  const std::vector<PageIndex> table = pages_for(executor, 32);
  const std::vector<std::span<const PageIndex>> sequences{table};
  const std::vector<engine::StateUse> states{{}};
  const std::vector<Column> columns = columns_of(prompt, 0, Output::kGreedy);
  Column next;
  next.position = static_cast<std::uint32_t>(prompt.size());
  next.output = Output::kGreedy;
  next.chosen_by = 0;
  ASSERT_TRUE(executor.submit({columns, sequences, states}).ok());
  ASSERT_TRUE(executor.submit({std::span<const Column>(&next, 1), sequences, states}).ok());
  for (int step = 0; step < 2; ++step) {
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok()) << outputs.error().message();
    EXPECT_TRUE(executor.lost());
    EXPECT_TRUE(outputs->empty());
  }
  ASSERT_TRUE(executor.submit({columns, sequences, states}).ok());
  const auto outputs = executor.wait();
  ASSERT_TRUE(outputs.ok()) << outputs.error().message();
  EXPECT_FALSE(executor.lost());
  ASSERT_EQ(outputs->size(), 1U);
  EXPECT_EQ(outputs->front().best, want.front().best);
  EXPECT_EQ(outputs->front().best_logprob, want.front().logprob);
  EXPECT_EQ(counter_of(executor, "steps_computed_again"), 2);
}

}  // namespace
}  // namespace bulkhead::forward
