// Reports about a prompt: its tokens with the log-probabilities from the positions before them, or one
// embedding. Neither depends on the batch, the chunks or the cache, and neither needs an answer.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"

namespace bulkhead::test {
namespace {

using engine::EngineOptions;
using engine::ExecutorLimits;
using ipc::TokenId;

ipc::Submit told_request(std::uint64_t id, std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  ipc::Submit submit = greedy_request(id, std::move(prompt), max_tokens);
  submit.tell_prompt = true;
  submit.prompt_only = max_tokens == 0;
  submit.logprobs = 2;
  return submit;
}

// Computes log-probabilities by their definition from the whole row of each position.
void expect_told(EngineHarness& harness, std::uint64_t id, const std::vector<TokenId>& prompt) {
  const Answer& answer = harness.answer(id);
  ASSERT_EQ(answer.prompt.size(), prompt.size()) << id;
  engine::Sampler sampler(small_limits().vocabulary);
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    EXPECT_EQ(answer.prompt[i].bytes, std::string(1, static_cast<char>(prompt[i])));
    if (i == 0) {
      EXPECT_TRUE(answer.prompt[i].top.empty());
      continue;
    }
    const std::vector<float> logits = harness.executor.logits_after(std::span(prompt).first(i));
    const auto expected = sampler.logprobs(logits, prompt[i], 2);
    EXPECT_EQ(answer.prompt[i].logprob, expected.chosen) << i;
    ASSERT_EQ(answer.prompt[i].top.size(), expected.best.size());
    EXPECT_EQ(answer.prompt[i].top[0].token, expected.best[0].token);
  }
}

TEST(EnginePrompt, IsScoredBesideOthersWhateverTheChunks) {
  for (const std::uint32_t depth : {1U, 2U}) {
    for (const std::uint32_t chunk : {1U, 7U, 60U}) {
      ExecutorLimits limits = small_limits();
      limits.max_outputs = 6;
      limits.steps_in_flight = depth;
      EngineOptions options;
      options.scheduler = {.max_batch = 6, .prefill_chunk = chunk, .prefix_cache = true};
      EngineHarness harness(limits, options);
      const std::vector<TokenId> prompt = some_tokens(1, 50);
      // One request fills the cache with the same beginning, and others generate meanwhile.
      harness.engine.submit(greedy_request(1, prompt, 4));
      harness.run();
      for (std::uint64_t id = 2; id < 6; ++id)
        harness.engine.submit(greedy_request(id, some_tokens(id, 9), 20));
      harness.engine.submit(told_request(6, prompt, 3));
      harness.engine.submit(told_request(7, some_tokens(7, 33), 0));
      harness.run();
      expect_told(harness, 6, prompt);
      expect_told(harness, 7, some_tokens(7, 33));
      EXPECT_EQ(harness.answer(6).tokens.size(), 3U);
      EXPECT_EQ(harness.answer(6).tokens[0], harness.answer(1).tokens[0]);
      EXPECT_TRUE(harness.answer(7).tokens.empty());
      EXPECT_EQ(harness.answer(7).finished->reason, ipc::FinishReason::kLength);
      EXPECT_EQ(harness.answer(7).finished->completion_tokens, 0U);
    }
  }
}

TEST(EnginePrompt, IsSentOnceThoughItLostItsPages) {
  ExecutorLimits limits = small_limits();
  limits.total_pages = 20;  // enough for one and a half of the requests
  EngineOptions options;
  options.scheduler = {.max_batch = 4, .prefill_chunk = 8};
  EngineHarness harness(limits, options);
  for (std::uint64_t id = 1; id <= 3; ++id)
    harness.engine.submit(told_request(id, some_tokens(id, 30), 20));
  harness.run();
  EXPECT_GT(harness.engine.scheduler().preemptions(), 0U);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    expect_told(harness, id, some_tokens(id, 30));
    EXPECT_EQ(harness.answer(id).tokens.size(), 20U);
  }
}

TEST(EnginePrompt, WithoutLogProbabilitiesIsSentAtOnce) {
  EngineHarness harness;
  ipc::Submit submit = told_request(1, some_tokens(1, 90), 0);
  submit.logprobs = -1;
  harness.engine.submit(submit);
  ASSERT_EQ(harness.answer(1).prompt.size(), 90U);
  harness.run();
  EXPECT_TRUE(harness.answer(1).finished.has_value());
  EXPECT_EQ(harness.answer(1).prompt.size(), 90U);
}

// ---- embeddings ----

TEST(EngineEmbeddings, AreThePooledHiddenStates) {
  for (const engine::Pooling pooling : {engine::Pooling::kLast, engine::Pooling::kMean}) {
    for (const std::uint32_t pages : {256U, 20U}) {
      ExecutorLimits limits = small_limits();
      limits.steps_in_flight = 2;
      limits.max_outputs = 6;
      limits.total_pages = pages;
      EngineOptions options;
      options.pooling = pooling;
      options.scheduler = {.max_batch = 6, .prefill_chunk = 9, .prefix_cache = true};
      EngineHarness harness(limits, options);
      harness.engine.submit(greedy_request(1, some_tokens(1, 20), 15));
      for (std::uint64_t id = 2; id < 5; ++id)
        harness.engine.embed({RequestId{id}, some_tokens(id, 9 * id)});
      harness.run();
      while (harness.turn()) {
      }
      EXPECT_EQ(harness.answer(1).tokens.size(), 15U);
      ASSERT_EQ(harness.others.size(), 3U);
      for (const ipc::FromWorker& each : harness.others) {
        const auto& embedded = std::get<ipc::Embedded>(each);
        const std::vector<TokenId> prompt =
            some_tokens(embedded.request.value, 9 * embedded.request.value);
        EXPECT_EQ(embedded.tokens, prompt.size());
        std::vector<double> sum(limits.embedding);
        const std::size_t first = pooling == engine::Pooling::kMean ? 0 : prompt.size() - 1;
        for (std::size_t i = first; i < prompt.size(); ++i) {
          const auto state = harness.executor.hidden_after(std::span(prompt).first(i + 1));
          for (std::size_t n = 0; n < sum.size(); ++n)
            sum[n] += state[n];
        }
        ASSERT_EQ(embedded.values.size(), sum.size());
        for (std::size_t n = 0; n < sum.size(); ++n) {
          EXPECT_EQ(embedded.values[n],
                    static_cast<float>(sum[n] / static_cast<double>(prompt.size() - first)));
        }
      }
    }
  }
}

TEST(EngineEmbeddings, FailWithTheirReason) {
  EngineHarness harness;
  harness.engine.embed({RequestId{1}, some_tokens(1, 129)});
  harness.engine.embed({RequestId{2}, std::vector<TokenId>{}});
  harness.engine.embed({RequestId{3}, std::vector<TokenId>{7, 300}});
  harness.engine.embed({RequestId{4}, some_tokens(4, 128)});  // as long as the context
  harness.run();
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kContextExceeded);
  EXPECT_EQ(harness.answer(2).failed->code, ipc::FailureCode::kInvalidRequest);
  EXPECT_EQ(harness.answer(3).failed->parameter, "input");
  EXPECT_EQ(harness.others.size(), 1U);
}

// ---- scores ----

// Two outputs, of which the second one counts.
model::Ranker some_ranker(std::uint32_t width) {
  model::Ranker ranker;
  ranker.head.output.width = width;
  for (std::uint32_t i = 0; i < 2 * width; ++i)
    ranker.head.output.weights.push_back(0.1F * static_cast<float>(i % 7) - 0.2F);
  ranker.head.relevant = 1;
  using Kind = model::RankPrompt::Kind;
  ranker.prompt.parts = {{Kind::kQuery}, {Kind::kText, " says "}, {Kind::kDocument}};
  return ranker;
}

TEST(EngineRanking, ScoresAreTheHeadsOfTheLastStates) {
  for (const engine::Pooling pooling : {engine::Pooling::kLast, engine::Pooling::kMean}) {
    ExecutorLimits limits = small_limits();
    limits.max_outputs = 6;
    limits.total_pages = 20;
    EngineOptions options;
    options.pooling = pooling;  // embeddings' alone
    options.scheduler = {.max_batch = 6, .prefill_chunk = 9, .prefix_cache = true};
    EngineHarness harness(limits, options);
    harness.language.ranker = some_ranker(limits.embedding);
    for (std::uint64_t id = 1; id < 5; ++id)
      harness.engine.rank({RequestId{id}, "the same query", std::string(9 * id, 'd')});
    harness.run();
    ASSERT_EQ(harness.others.size(), 4U);
    for (const ipc::FromWorker& each : harness.others) {
      const auto& ranked = std::get<ipc::Ranked>(each);
      const std::string text =
          "the same query says " + std::string(9 * ranked.request.value, 'd');
      EXPECT_EQ(ranked.tokens, text.size());
      const std::vector<TokenId> prompt(text.begin(), text.end());
      EXPECT_EQ(ranked.score,
                harness.language.ranker->head.score(harness.executor.hidden_after(prompt)));
    }
  }
}

TEST(EngineRanking, OtherModelsSayThatTheyDoNotRank) {
  EngineHarness harness;
  harness.engine.rank({RequestId{1}, "query", "document"});
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kUnsupported);
}

TEST(EngineRanking, WithoutAnOutputMatrixNothingElseIsAnswered) {
  EngineHarness harness;
  harness.language.ranker = some_ranker(small_limits().embedding);
  harness.engine.submit(greedy_request(1, some_tokens(1, 20), 15));
  harness.engine.embed({RequestId{2}, some_tokens(2, 20)});
  harness.engine.rank({RequestId{3}, "query", std::string(200, 'd')});
  harness.run();
  for (const std::uint64_t id : {1, 2}) {
    EXPECT_EQ(harness.answer(id).failed->code, ipc::FailureCode::kUnsupported);
    EXPECT_EQ(harness.answer(id).failed->parameter, "model");
  }
  EXPECT_EQ(harness.answer(3).failed->code, ipc::FailureCode::kContextExceeded);
  EXPECT_EQ(harness.answer(3).failed->parameter, "documents");
  harness.language.ranker->generates = true;
  harness.engine.submit(greedy_request(4, some_tokens(1, 20), 15));
  harness.run();
  EXPECT_EQ(harness.answer(4).tokens.size(), 15U);
}

TEST(EnginePrompt, IsCountedWithoutAStep) {
  EngineHarness harness;
  const auto count = [&](std::uint64_t id, std::size_t tokens) -> const Answer& {
    ipc::Submit submit = greedy_request(id, some_tokens(id, tokens), 1);
    submit.count_only = true;
    harness.engine.submit(std::move(submit));
    harness.run();
    return harness.answer(id);
  };
  const Answer& counted = count(1, 33);
  ASSERT_TRUE(counted.finished.has_value());
  EXPECT_EQ(counted.accepted->prompt_tokens, some_tokens(1, 33));
  EXPECT_EQ(counted.finished->reason, ipc::FinishReason::kLength);
  EXPECT_TRUE(counted.tokens.empty());
  const Answer& long_one = count(2, 100'000);
  ASSERT_TRUE(long_one.failed.has_value());
  EXPECT_EQ(long_one.failed->code, ipc::FailureCode::kContextExceeded);
  EXPECT_TRUE(harness.executor.steps.empty());
  EXPECT_EQ(harness.engine.outstanding(), 0U);
}

}  // namespace
}  // namespace bulkhead::test
