// A model that is split over devices computes the same bits as on one device. Here all devices are the test
// device.
#include <string>
#include <vector>

#include "transformer_harness.hpp"

namespace bulkhead::forward {
namespace {

using SplitModel = TransformerTest;

// Steps have few shapes, because a CPU compiles each of them, in every stage.
Options narrow() {
  Options options;
  options.chunk = 4;
  options.max_batch = 2;
  return options;
}

// A prompt in chunks, then tokens one by one.
std::vector<Row> answer(Executor& executor) {
  std::vector<TokenId> prompt = some_prompt(37);
  for (TokenId& token : prompt)
    token %= executor.limits().vocabulary;
  return generate(executor, prompt, 3, 4, Output::kLogits);
}

void expect_same_answers(const Loaded& split, const Loaded& whole, const std::string& what) {
  ASSERT_NE(whole.executor, nullptr) << what;
  ASSERT_NE(split.executor, nullptr) << what;
  expect_same_bits(answer(*split.executor), answer(*whole.executor), what);
}

// The residual stream alone; window pages beside others; experts; states; a row of the cache for all heads; a stream
// that an operation besides products makes.
TEST_F(SplitModel, ComputesTheSameBits) {
  for (const char* const name :
       {"tiny-qwen2-Q4_0", "tiny-gemma2-Q5_K_M", "tiny-qwen3moe-Q4_K_M", "tiny-qwen35-Q4_K_M",
        "tiny-deepseek2-Q8_0", "tiny-gpt-oss-MXFP4", "tiny-gemma4moe-Q8_0"}) {
    const std::string model = or_builtin(name);
    Options options = narrow();
    const Loaded whole = load(model, options);
    options.stages = 2;
    expect_same_answers(load(model, options), whole, name);
  }
}

TEST_F(SplitModel, ComputesTheSameBitsWithGpusKernels) {
  for (const char* const name : {"tiny-qwen2-Q4_0", "tiny-gemma4moe-Q8_0"}) {
    const std::string model = or_builtin(name);
    Options options = narrow();
    options.lanes = true;
    const Loaded whole = load(model, options);
    options.stages = 2;
    expect_same_answers(load(model, options), whole, name);
  }
}

// While the second device computes one sequence's step, the first one computes the other's. Sums of pages are made
// between the same steps on both.
TEST_F(SplitModel, KeepsAStepInFlightForEachStage) {
  Options options = narrow();
  options.stages = 2;
  const Loaded model = load("builtin", options);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  EXPECT_EQ(executor.limits().steps_in_flight, 2U);
  EXPECT_FALSE(executor.limits().hands_tokens_on);
  const auto first = some_prompt(4);
  std::vector<TokenId> second = first;
  second[0] += 1;
  std::vector<std::vector<Row>> alone, together(2);
  for (const auto& prompt : {first, second})
    alone.push_back(step(executor, columns_of(prompt, 0, Output::kGreedy), {{5}}));
  const auto sums_of = [&] {
    const PageIndex page = 5;
    EXPECT_TRUE(executor.start_sums(std::span(&page, 1), 4096).ok());
  };
  sums_of();
  const std::vector<PageIndex> pages[] = {{5}, {6}};
  for (std::size_t s = 0; s < 2; ++s) {
    const auto columns = columns_of(s == 0 ? first : second, 0, Output::kGreedy);
    const std::span<const PageIndex> sequence = pages[s];
    const Status submitted = executor.submit({columns, std::span(&sequence, 1)});
    ASSERT_TRUE(submitted.ok()) << submitted.error().message();
    if (s == 0) sums_of();
  }
  for (std::size_t s = 0; s < 2; ++s) {
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok()) << outputs.error().message();
    ASSERT_EQ(outputs->size(), 1U);
    together[s].push_back({outputs->front().best, outputs->front().best_logprob, {}, {}});
    expect_same_bits(together[s], alone[s], "sequence " + std::to_string(s));
  }
  // The page held the second sequence's tokens before, and holds the first one's from now on.
  const auto before = executor.finish_sums();
  ASSERT_TRUE(before.ok()) << before.error().message();
  const engine::PageSum old = before->front();
  const auto after = executor.finish_sums();
  ASSERT_TRUE(after.ok()) << after.error().message();
  EXPECT_NE(after->front(), old);
  // A token that a step in flight chooses is on the wrong device.
  const std::span<const PageIndex> sequence = pages[0];
  const Column column{.position = 4, .output = Output::kGreedy, .chosen_by = 0};
  EXPECT_FALSE(executor.submit({std::span(&column, 1), std::span(&sequence, 1)}).ok());
}

// The guard of pages may need sums before it can wait for the steps in flight, of which later stages know nothing yet.
TEST_F(SplitModel, SumsOfPagesThatNoStepWritesComeBesideStepsInFlight) {
  Options options = narrow();
  options.stages = 2;
  const Loaded model = load("builtin", options);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const auto columns = columns_of(some_prompt(4), 0, Output::kGreedy);
  const std::vector<Row> alone = step(executor, columns, {{5}});
  const auto sum_of_page = [&] {
    const PageIndex page = 5;
    EXPECT_TRUE(executor.start_sums(std::span(&page, 1), 4096).ok());
    const auto sums = executor.finish_sums();
    EXPECT_TRUE(sums.ok()) << sums.error().message();
    return sums.ok() ? sums->front() : engine::PageSum{};
  };
  const engine::PageSum before = sum_of_page();
  const std::vector<PageIndex> pages[] = {{6}, {7}};
  for (const std::vector<PageIndex>& each : pages) {
    const std::span<const PageIndex> sequence = each;
    const Status submitted = executor.submit({columns, std::span(&sequence, 1)});
    ASSERT_TRUE(submitted.ok()) << submitted.error().message();
    EXPECT_EQ(sum_of_page(), before);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok()) << outputs.error().message();
    ASSERT_EQ(outputs->size(), 1U);
    expect_same_bits({{outputs->front().best, outputs->front().best_logprob, {}, {}}}, alone,
                     "step " + std::to_string(i));
  }
  EXPECT_EQ(sum_of_page(), before);
}

// A step's masks come while its first stage computes, and are for the last one.
TEST_F(SplitModel, DrawsUnderMasksAsTheWholeModelDoes) {
  Options options = narrow();
  const Loaded whole = load("builtin", options);
  options.stages = 2;
  const Loaded split = load("builtin", options);
  ASSERT_NE(whole.executor, nullptr);
  ASSERT_NE(split.executor, nullptr);
  const engine::Choice choice{.temperature = 1, .seed = 3, .first = 4};
  const auto tokens_of = [&](Executor& executor) {
    EXPECT_TRUE(executor.limits().adjusts);
    const std::uint32_t vocabulary = executor.limits().vocabulary;
    const std::vector<PageIndex> pages[] = {{5}, {6}};
    std::vector<TokenId> tokens[2];
    std::vector<std::uint32_t> words((vocabulary + 31) / 32);
    for (std::uint32_t n = 0; n < 4; ++n) {
      for (std::uint32_t s = 0; s < 2; ++s) {
        std::vector<Column> columns = columns_of(some_prompt(4), 0, Output::kSampled);
        if (n > 0) columns.assign(1, {tokens[s].back(), 3 + n, 0, Output::kSampled});
        columns.back().choice = &choice;
        columns.back().adjusted = true;
        const std::span<const PageIndex> sequence = pages[s];
        EXPECT_TRUE(executor.submit({columns, std::span(&sequence, 1)}).ok());
        for (TokenId id = 0; id < vocabulary; ++id)
          words[id / 32] =
              (words[id / 32] & ~(1U << (id % 32))) | ((id % 7 == n + s ? 1U : 0U) << (id % 32));
        const engine::Adjustment adjustment{.mask = words};
        const Status chosen = executor.choose(std::span(&adjustment, 1));
        EXPECT_TRUE(chosen.ok()) << chosen.error().message();
      }
      for (std::uint32_t s = 0; s < 2; ++s) {
        const auto outputs = executor.wait();
        EXPECT_TRUE(outputs.ok()) << outputs.error().message();
        if (!outputs.ok()) return std::vector<TokenId>();
        tokens[s].push_back(outputs->front().best);
        EXPECT_EQ(tokens[s].back() % 7, n + s);
      }
    }
    tokens[0].insert(tokens[0].end(), tokens[1].begin(), tokens[1].end());
    return tokens[0];
  };
  EXPECT_EQ(tokens_of(*split.executor), tokens_of(*whole.executor));
}

}  // namespace
}  // namespace bulkhead::forward
