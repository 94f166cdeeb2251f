// Masks and edits of logits that come while the step whose outputs they adjust is computed.
#include <span>
#include <string>
#include <vector>

#include "transformer_harness.hpp"
#include "worker/engine/sampler.hpp"

namespace bulkhead::forward {
namespace {

using AdjustedSteps = TransformerTest;

// Masks and edits come after their step was submitted. The sequence runs alone and beside one without adjustments,
// with greedy choices and draws, with every part of the GPU layer on and off. The tokens are those that the host
// chooses with the same adjustments. The log-probabilities are those of the logits before the adjustments.
TEST_F(AdjustedSteps, AdjustmentsComeWhileTheirStepIsComputed) {
  for (const bool parts_on : {true, false}) {
    Options options;
    options.gpu = [&](config::GpuOptimizations& gpu) {
      gpu.memory_pool.enabled = gpu.blit_queue.enabled = gpu.command_buffer_ring.enabled = parts_on;
    };
    const Loaded model = load(or_builtin("tiny-qwen3-Q4_K_M"), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    ASSERT_TRUE(executor.limits().adjusts);
    ASSERT_TRUE(executor.reserve_adjustments(0).ok());
    const bool ahead = executor.limits().steps_in_flight > 1;
    const auto prompt = some_prompt(9);
    const std::uint32_t vocabulary = executor.limits().vocabulary;
    const std::vector<std::vector<PageIndex>> tables{pages_for(executor, 40, 0),
                                                     pages_for(executor, 40, 1)};
    const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
    const engine::Choice choice{.temperature = 1, .top_p = 0.9F, .seed = 7, .first = 9};
    ipc::Sampling sampling{.temperature = 1, .top_p = 0.9F, .seed = 7};
    engine::Sampler sampler(vocabulary);
    // Allows a third of the tokens, and others after each token; changes half of the logits.
    std::vector<std::uint32_t> words;
    std::vector<engine::LogitEdit> list, replacing;
    const auto behind = [&](TokenId token, bool masks, bool edits) {
      words.assign(masks ? (vocabulary + 31) / 32 : 0, 0);
      list.clear();
      replacing.clear();
      for (TokenId id = 0; id < vocabulary; ++id) {
        if (masks && (id + token) % 3 == 0) words[id / 32] |= 1U << (id % 32);
        if (edits && (id * 7 + token) % 2 == 0)
          list.push_back({id, static_cast<float>(id % 5), 0.5F, id % 2});
        if (edits && id % 500 == token % 500 && replacing.size() < 15)
          replacing.push_back({id, 4, 0, 1});
      }
      return engine::Adjustment{words, {list, replacing, 1.3F}};
    };
    constexpr std::uint32_t kTokens = 8;
    for (const bool drawn : {false, true}) {
      // Each `way` runs alone or beside another sequence, and has a mask, edits, or both; with edits it has
      // log-probabilities.
      for (int way = 2; way < 8; ++way) {
        const bool company = way % 2 != 0, masks = way / 2 != 2, edits = way / 2 != 1;
        SCOPED_TRACE(testing::Message() << parts_on << drawn << company << masks << edits);
        std::vector<engine::Sampler::Logprobs> told;
        std::vector<std::vector<engine::RankedToken>> tops;
        sampling.temperature = drawn ? 1 : 0;
        const Output output = drawn ? Output::kSampled : Output::kGreedy;
        std::vector<TokenId> want;
        std::vector<Column> columns = columns_of(prompt, 0, Output::kLogits);
        TokenId last = prompt.back();
        for (std::uint32_t n = 0; n < kTokens; ++n) {
          ASSERT_TRUE(executor.submit({columns, sequences}).ok());
          const auto outputs = executor.wait();
          ASSERT_TRUE(outputs.ok());
          const auto& row = (*outputs)[0].logits;
          const auto token = sampler.sample(row, sampling, n, behind(last, masks, edits));
          ASSERT_TRUE(token.ok());
          want.push_back(last = *token);
          told.push_back(sampler.logprobs(row, last, 3));
          tops.emplace_back(told.back().best.begin(), told.back().best.end());
          columns.assign(1, {last, 9 + n, 0, Output::kLogits});
        }
        std::vector<TokenId> got;
        const auto submit = [&](std::uint32_t n) {
          if (n == 0) {
            columns = columns_of(prompt, 0, output);
          } else if (ahead) {
            columns.assign(1, {0, 8 + n, 0, output, 0});
          } else {
            columns.assign(1, {got.back(), 8 + n, 0, output});
          }
          columns.back().adjusted = true;
          columns.back().edited = edits;
          columns.back().choice = drawn ? &choice : nullptr;
          columns.back().logprobs = edits ? 3 : -1;
          if (company) columns.push_back({n, n, 1, Output::kGreedy});
          ASSERT_TRUE(executor.submit({columns, sequences}).ok());
        };
        const auto choose = [&](TokenId token) {
          const engine::Adjustment adjustment = behind(token, masks, edits);
          EXPECT_FALSE(executor.choose({}).ok());
          EXPECT_FALSE(executor.submit({columns, sequences}).ok());
          ASSERT_TRUE(executor.choose(std::span(&adjustment, 1)).ok());
          EXPECT_FALSE(executor.choose(std::span(&adjustment, 1)).ok());
        };
        submit(0);
        EXPECT_FALSE(executor.wait().ok());
        choose(prompt.back());
        for (std::uint32_t n = 1; n <= kTokens; ++n) {
          if (ahead && n < kTokens) submit(n);
          const auto outputs = executor.wait();
          ASSERT_TRUE(outputs.ok()) << outputs.error().message();
          const ColumnOutput& given = (*outputs)[0];
          got.push_back(given.best);
          if (edits) {
            EXPECT_NEAR(given.logprob, told[n - 1].chosen, 1e-5);
            ASSERT_EQ(given.top.size(), 3U);
            for (std::size_t rank = 0; rank < 3; ++rank)
              EXPECT_EQ(given.top[rank].token, tops[n - 1][rank].token);
          }
          if (!ahead && n < kTokens) submit(n);
          if (n < kTokens) choose(got.back());
        }
        EXPECT_EQ(got, want);
      }
    }
    Column bad{1, 0, 0, Output::kLogits};
    bad.adjusted = true;
    EXPECT_FALSE(executor.submit({std::span<const Column>(&bad, 1), sequences}).ok());
  }
}

// There are more outputs than the kernels take at once: some without adjustments, some with empty ones, some with
// a mask or edits. Unchanged outputs keep the bits that they have in a step without adjustments.
TEST_F(AdjustedSteps, AdjustmentsOfOthersChangeNoBit) {
  Options options;
  options.max_batch = 24;
  const Loaded model = load(or_builtin("tiny-qwen3-Q4_K_M"), options);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const std::uint32_t vocabulary = executor.limits().vocabulary;
  const std::uint32_t count = std::min(executor.limits().max_outputs, 24U);
  ASSERT_GT(count, 16U);
  std::vector<std::vector<PageIndex>> tables;
  for (std::uint32_t s = 0; s < count; ++s)
    tables.push_back(pages_for(executor, 8, s));
  const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
  const engine::Choice plain{.temperature = 1, .seed = 3},
      cut{.temperature = 1, .top_p = 0.8F, .seed = 4},
      ranked{.temperature = 1, .top_k = 9, .seed = 5};
  const engine::Choice* const choices[] = {nullptr, &plain, &cut, &ranked};
  std::vector<std::uint32_t> words((vocabulary + 31) / 32, 0x11111111);
  std::vector<engine::LogitEdit> list;
  for (TokenId id = 0; id < vocabulary; id += 3)
    list.push_back({id, 2, 0, 0});
  ASSERT_TRUE(executor.reserve_adjustments(list.size() * count).ok());
  for (const bool logprobs : {false, true}) {
    std::vector<Column> columns;
    for (std::uint32_t s = 0; s < count; ++s) {
      const engine::Choice* const choice = choices[s % 4];
      Column column{s * 5 + 1, 0, s, choice == nullptr ? Output::kGreedy : Output::kSampled};
      column.choice = choice;
      column.logprobs = logprobs && s % 3 != 0 ? 4 : -1;
      columns.push_back(column);
    }
    struct Told {
      TokenId best;
      float best_logprob, logprob;
      std::vector<float> top;
      bool operator==(const Told&) const = default;
    };
    const auto take = [&] {
      std::vector<Told> told;
      const auto outputs = executor.wait();
      EXPECT_TRUE(outputs.ok());
      if (!outputs.ok()) return told;
      for (const ColumnOutput& output : *outputs) {
        Told& one = told.emplace_back(output.best, output.best_logprob, output.logprob);
        for (const auto& each : output.top) {
          one.top.push_back(static_cast<float>(each.token));
          one.top.push_back(each.value);
        }
      }
      return told;
    };
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    const std::vector<Told> want = take();
    // From the third round on all adjustments are empty, but the memory still holds masks of an
    // earlier step.
    for (int round = 0; round < 4; ++round) {
      std::vector<engine::Adjustment> adjustments;
      std::vector<bool> changes(count);
      for (std::uint32_t s = 0; s < count; ++s) {
        columns[s].adjusted = s % 5 != 1;
        columns[s].edited = s % 5 >= 3;
        if (!columns[s].adjusted) continue;
        const bool masked = round < 2 && s % 5 == 2, edited = round < 2 && s % 5 == 3;
        changes[s] = masked || edited;
        adjustments.emplace_back();
        if (masked) adjustments.back().mask = words;
        if (edited) adjustments.back().edits = {list, {}, 1};
      }
      ASSERT_TRUE(executor.submit({columns, sequences}).ok());
      ASSERT_TRUE(executor.choose(adjustments).ok());
      const std::vector<Told> got = take();
      ASSERT_EQ(got.size(), want.size());
      for (std::uint32_t s = 0; s < count; ++s) {
        if (changes[s] && s % 5 == 2) {
          EXPECT_EQ(got[s].best % 4, 0U) << "a token that the mask excludes";
        }
        if (changes[s]) {
          EXPECT_EQ(got[s].top, want[s].top) << "log-probabilities are those before the changes";
          continue;
        }
        EXPECT_EQ(got[s], want[s]) << round << ", output " << s;
      }
    }
  }
}

// Only columns that announce edits may have them, because steps without such columns leave out the
// kernel for edits.
TEST_F(AdjustedSteps, EditsThatWereNotAnnouncedAreRefused) {
  const Loaded model = load(any_model());
  ASSERT_NE(model.executor, nullptr);
  std::vector<Column> columns = columns_of(some_prompt(9), 0, Output::kGreedy);
  columns.back().adjusted = true;
  const std::vector<PageIndex> table = pages_for(*model.executor, 32);
  const std::vector<std::span<const PageIndex>> sequences{table};
  ASSERT_TRUE(model.executor->submit({columns, sequences}).ok());
  const engine::LogitEdit edit{1, 2, 0, 0};
  const engine::Adjustment adjustment{{}, {std::span(&edit, 1), {}, 1}};
  EXPECT_FALSE(model.executor->choose(std::span(&adjustment, 1)).ok());
}

}  // namespace
}  // namespace bulkhead::forward
