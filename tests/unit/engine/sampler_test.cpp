#include "worker/engine/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/philox.hpp"

namespace bulkhead::engine {
namespace {

std::vector<float> random_row(std::uint32_t seed, std::uint32_t vocabulary, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(vocabulary);
  for (float& logit : row)
    logit = normal(random);
  return row;
}

// Returns each token's probability by the sampler's definition, in float64 with a full sort.
std::vector<double> reference(std::span<const float> logits, const ipc::Sampling& s,
                              std::span<const TokenId> prompt, std::span<const TokenId> generated) {
  std::vector<double> l(logits.begin(), logits.end());
  std::vector<int> count(l.size(), 0), seen(l.size(), 0);
  for (const TokenId token : prompt)
    seen[token] = 1;
  for (const TokenId token : generated)
    seen[token] = 1, ++count[token];
  for (std::size_t i = 0; i < l.size(); ++i) {
    if (seen[i]) l[i] = l[i] > 0 ? l[i] / s.repetition_penalty : l[i] * s.repetition_penalty;
    l[i] -= static_cast<double>(s.frequency_penalty) * count[i];
    if (count[i] > 0) l[i] -= s.presence_penalty;
  }
  std::vector<std::size_t> order(l.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return l[a] > l[b]; });
  std::vector<double> p(l.size(), 0);
  if (s.temperature == 0) {
    p[order.front()] = 1;
    return p;
  }
  const double best = l[order.front()];
  std::size_t kept = s.top_k > 0 ? std::min<std::size_t>(s.top_k, l.size()) : l.size();
  double sum = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    sum += p[order[i]] = std::exp((l[order[i]] - best) / s.temperature);
  }
  if (s.top_p < 1) {
    double mass = 0;
    std::size_t n = 0;
    while (n < kept && mass < s.top_p * sum)
      mass += p[order[n++]];
    kept = n;
  }
  while (kept > 1 && p[order[kept - 1]] < s.min_p)
    --kept;
  for (std::size_t i = kept; i < l.size(); ++i)
    p[order[i]] = 0;
  sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& probability : p)
    probability /= sum;
  return p;
}

TokenHistory history_of(const ipc::Sampling& s, std::uint32_t vocabulary,
                        std::span<const TokenId> prompt, std::span<const TokenId> generated) {
  TokenHistory history(s, {}, vocabulary, vocabulary);
  history.add_prompt(prompt);
  for (const TokenId token : generated)
    history.add_generated(token);
  return history;
}

Result<TokenId> drawn(std::span<const float> row, const ipc::Sampling& s,
                      const TokenHistory& history) {
  Sampler sampler(static_cast<std::uint32_t>(row.size()));
  return sampler.sample(row, s, 0, {{}, history.edits()});
}

// The known-answer vectors of the Random123 distribution that accompanies the paper.
TEST(Philox, KnownAnswers) {
  using Block = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DrawsAreUniformAndDependOnSeedAndIndex) {
  constexpr int kDraws = 100000, kBins = 20;
  std::vector<int> bins(kBins, 0);
  double sum = 0;
  for (int n = 0; n < kDraws; ++n) {
    const double u = uniform_draw(42, static_cast<std::uint64_t>(n));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    ++bins[static_cast<std::size_t>(u * kBins)];
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  double chi_square = 0;
  for (const int count : bins) {
    const double expected = static_cast<double>(kDraws) / kBins;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 43.8) << "19 degrees of freedom, p = 0.001";
  EXPECT_NE(uniform_draw(42, 0), uniform_draw(43, 0));
  EXPECT_NE(uniform_draw(42, 0), uniform_draw(42ULL << 32, 0));
  EXPECT_NE(uniform_draw(42, 1), uniform_draw(42, 1ULL << 32));
}

struct Case {
  const char* name;
  ipc::Sampling sampling;
  std::uint32_t vocabulary;
  float spread;
};

std::vector<Case> cases() {
  const auto sampling = [](float temperature, std::uint32_t top_k, float top_p, float min_p,
                           float repetition, float frequency, float presence) {
    ipc::Sampling s;
    s.temperature = temperature;
    s.top_k = top_k;
    s.top_p = top_p;
    s.min_p = min_p;
    s.repetition_penalty = repetition;
    s.frequency_penalty = frequency;
    s.presence_penalty = presence;
    return s;
  };
  return {
      {"plain", sampling(1, 0, 1, 0, 1, 0, 0), 1000, 2},
      {"hot", sampling(1.7F, 0, 1, 0, 1, 0, 0), 777, 2},
      {"top_k", sampling(0.8F, 40, 1, 0, 1, 0, 0), 5000, 2},
      {"top_k_over_vocabulary", sampling(0.8F, 100000, 1, 0, 1, 0, 0), 500, 2},
      {"top_k_1", sampling(0.8F, 1, 1, 0, 1, 0, 0), 500, 2},
      {"top_p", sampling(1, 0, 0.9F, 0, 1, 0, 0), 5000, 3},
      {"top_p_flat", sampling(1, 0, 0.95F, 0, 1, 0, 0), 5000, 0.1F},
      {"top_p_tiny", sampling(1, 0, 1e-6F, 0, 1, 0, 0), 500, 2},
      {"top_k_and_top_p", sampling(0.9F, 50, 0.8F, 0, 1, 0, 0), 5000, 1},
      {"min_p", sampling(1, 0, 1, 0.1F, 1, 0, 0), 3000, 2},
      {"min_p_1", sampling(1, 0, 1, 1, 1, 0, 0), 3000, 2},
      {"all", sampling(0.7F, 60, 0.9F, 0.05F, 1.2F, 0.3F, 0.4F), 3000, 2},
      {"penalties", sampling(1, 0, 1, 0, 1.3F, 0.5F, 0.25F), 300, 2},
      {"encouraging", sampling(1, 0, 0.9F, 0, 0.8F, -0.5F, -0.25F), 300, 2},
      {"large", sampling(0.7F, 0, 0.9F, 0.02F, 1.1F, 0, 0), 151936, 2},
  };
}

// Each draw's token must be the one whose interval of the reference distribution contains u; the intervals are in the
// sampler's order (by rank with top-k, by id otherwise). Draws very near to a border are left out, and must be few.
TEST(Sampler, DrawsFollowTheFloat64Reference) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.name);
    ipc::Sampling s = test.sampling;
    s.seed = 99;
    const std::vector<float> row = random_row(5, test.vocabulary, test.spread);
    const std::vector<TokenId> prompt = {3, 4, 5, 3, 100, 7}, generated = {7, 8, 8, 8, 9, 4};
    const TokenHistory history = history_of(s, test.vocabulary, prompt, generated);
    const std::vector<double> p = reference(row, s, prompt, generated);
    std::vector<std::size_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    if (s.top_k > 0 && s.top_k < p.size()) {
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] > p[b]; });
    }
    Sampler sampler(test.vocabulary);
    const int draws = test.vocabulary > 100000 ? 50 : 400;
    int near_border = 0;
    for (int n = 0; n < draws; ++n) {
      const double u = uniform_draw(s.seed, static_cast<std::uint64_t>(n));
      double sum = 0;
      std::size_t i = 0;
      while (i + 1 < order.size() && sum + p[order[i]] <= u)
        sum += p[order[i++]];
      const auto token =
          sampler.sample(row, s, static_cast<std::uint64_t>(n), {{}, history.edits()});
      ASSERT_TRUE(token.ok());
      ASSERT_GT(p[*token], 0) << "a token that was cut off";
      if (u - sum < 1e-5 || sum + p[order[i]] - u < 1e-5) {
        ++near_border;
      } else {
        ASSERT_EQ(*token, order[i]) << "draw " << n;
      }
    }
    EXPECT_LT(near_border, draws / 4);
  }
}

// Compares the frequencies of many draws with the reference, by chi-square.
TEST(Sampler, FrequenciesMatchTheDistribution) {
  ipc::Sampling s;
  s.temperature = 0.8F;
  s.top_p = 0.97F;
  s.repetition_penalty = 1.2F;
  s.seed = 20240611;
  const std::vector<float> row = random_row(8, 40, 1);
  const std::vector<TokenId> prompt = {1, 2, 3};
  const TokenHistory history = history_of(s, 40, prompt, {});
  const std::vector<double> p = reference(row, s, prompt, {});
  constexpr int kDraws = 200000;
  std::vector<int> counts(40, 0);
  Sampler sampler(40);
  for (int n = 0; n < kDraws; ++n) {
    ++counts[*sampler.sample(row, s, static_cast<std::uint64_t>(n), {{}, history.edits()})];
  }
  double chi_square = 0;
  int degrees = -1;
  for (std::size_t i = 0; i < 40; ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0);
      continue;
    }
    const double expected = p[i] * kDraws;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++degrees;
  }
  ASSERT_GT(degrees, 10);
  EXPECT_LT(chi_square, degrees + 4 * std::sqrt(2.0 * degrees));
}

TEST(Sampler, TemperatureZeroTakesTheBestAndTheLowerIdOfEqualOnes) {
  ipc::Sampling s;
  s.temperature = 0;
  std::vector<float> row = random_row(1, 1000, 1);
  row[700] = row[300] = row[999] = 50;
  Sampler sampler(1000);
  EXPECT_EQ(*sampler.sample(row, s, 0), 300U);
  std::fill(row.begin(), row.end(), -3.0F);
  EXPECT_EQ(*sampler.sample(row, s, 0), 0U);
}

TEST(Sampler, TopKKeepsTheLowerIdsAmongEqualLogits) {
  ipc::Sampling s;
  s.temperature = 1;
  s.top_k = 3;
  std::vector<float> row(2000, 1.0F);
  Sampler sampler(2000);
  for (std::uint64_t n = 0; n < 200; ++n)
    EXPECT_LT(*sampler.sample(row, s, n), 3U);
}

TEST(Sampler, DrawDependsOnSeedAndIndexOnly) {
  ipc::Sampling s;
  s.top_k = 50;
  s.seed = 5;
  const std::vector<float> row = random_row(3, 5000, 2);
  Sampler first(5000), second(5000);
  std::vector<TokenId> forward;
  for (std::uint64_t n = 0; n < 50; ++n)
    forward.push_back(*first.sample(row, s, n));
  for (std::uint64_t n = 50; n-- > 0;)
    EXPECT_EQ(*second.sample(row, s, n), forward[n]);
  s.seed = 6;
  std::vector<TokenId> other;
  for (std::uint64_t n = 0; n < 50; ++n)
    other.push_back(*first.sample(row, s, n));
  EXPECT_NE(other, forward);
}

TEST(Sampler, RepetitionPenaltyIsOncePerTokenAndFrequencyPerOccurrence) {
  ipc::Sampling s;
  s.temperature = 0;
  s.repetition_penalty = 2;
  std::vector<float> row = {4, 3, -1, -1.9F};
  const std::vector<TokenId> prompt = {0, 0, 0};
  EXPECT_EQ(*drawn(row, s, history_of(s, 4, prompt, {})), 1U) << "4 / 2 < 3";
  row = {-1, -1.9F, -50, -50};
  EXPECT_EQ(*drawn(row, s, history_of(s, 4, prompt, {})), 1U) << "-1 * 2 < -1.9";

  s.repetition_penalty = 1;
  s.frequency_penalty = 0.4F;
  row = {4, 3, 0, 0};
  const std::vector<TokenId> twice = {0, 0}, thrice = {0, 0, 0};
  EXPECT_EQ(*drawn(row, s, history_of(s, 4, prompt, {})), 0U) << "the prompt is free";
  EXPECT_EQ(*drawn(row, s, history_of(s, 4, {}, twice)), 0U);
  EXPECT_EQ(*drawn(row, s, history_of(s, 4, {}, thrice)), 1U);

  s.frequency_penalty = 0;
  s.presence_penalty = 0.9F;
  EXPECT_EQ(*drawn(row, s, history_of(s, 4, {}, thrice)), 0U) << "once, however often";
  s.presence_penalty = 1.1F;
  EXPECT_EQ(*drawn(row, s, history_of(s, 4, {}, twice)), 1U);
}

TEST(TokenHistory, ListsEachTokenOnceWithBiasAndPenalties) {
  ipc::Sampling s;
  s.repetition_penalty = 1.5F;
  s.frequency_penalty = 0.25F;
  s.presence_penalty = 1;
  const std::vector<ipc::TokenBias> bias = {{7, 2}, {3, -1}, {7, 0.5F}};
  TokenHistory history(s, bias, 100, TokenHistory::most_edits(s, bias, 100, 3, 2));
  history.add_prompt(std::vector<TokenId>{3, 4, 4});
  history.add_generated(4);
  const auto find = [](std::span<const LogitEdit> edits, TokenId token) {
    return *std::ranges::find(edits, token, &LogitEdit::token);
  };
  const auto list = history.edits().list;
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(find(list, 7).bias, 2.5F);
  EXPECT_EQ(find(list, 7).repeats, 0U);
  EXPECT_EQ(find(list, 3).bias, -1);
  EXPECT_EQ(find(list, 3).repeats, 1U);
  EXPECT_EQ(find(list, 3).subtrahend, 0);
  EXPECT_EQ(find(list, 4).subtrahend, 1.25F);
  // What guesses bring is what tokens would bring.
  const std::vector<TokenId> guesses = {9, 4, 7, 9};
  std::vector<LogitEdit> ahead;
  history.look_ahead(guesses, ahead);
  ASSERT_EQ(ahead.size(), 3U);
  for (const TokenId token : guesses)
    history.add_generated(token);
  for (const LogitEdit& edit : ahead) {
    const LogitEdit later = find(history.edits().list, edit.token);
    EXPECT_EQ(edit.bias, later.bias);
    EXPECT_EQ(edit.subtrahend, later.subtrahend);
    EXPECT_EQ(edit.repeats, later.repeats);
  }
  EXPECT_EQ(TokenHistory::most_edits(s, bias, 4, 3, 2), 4U) << "no more than there are tokens";
}

TEST(Sampler, ExtremeParametersStillGiveAToken) {
  const std::vector<float> row = random_row(3, 1000, 30);
  const auto best = static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
  Sampler sampler(1000);
  ipc::Sampling s;
  for (const float cold : {1e-3F, 1e-30F, 1e-45F}) {
    s.temperature = cold;
    EXPECT_EQ(*sampler.sample(row, s, 0), best);
    s.top_p = 0.5F;
    EXPECT_EQ(*sampler.sample(row, s, 0), best);
    s.top_p = 1;
  }
  s.temperature = 1e30F;
  EXPECT_LT(*sampler.sample(row, s, 0), 1000U);
  s.temperature = 1;
  s.repetition_penalty = 1e-38F;
  const std::vector<TokenId> prompt = {1, 2, 3};
  EXPECT_LT(*drawn(row, s, history_of(s, 1000, prompt, {})), 1000U);
}

TEST(Sampler, RefusesRowsThatAreNotFinite) {
  Sampler sampler(100);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> row(100, 1.0F);
    row[57] = bad;
    const auto token = sampler.sample(row, {}, 0);
    ASSERT_FALSE(token.ok());
    EXPECT_EQ(token.error().code(), ErrorCode::kInternal);
  }
}

TEST(Sampler, LogprobsAreTheLogSoftmaxOfTheRawRow) {
  for (const std::uint32_t vocabulary : {7U, 1000U, 151936U}) {
    const std::vector<float> row = random_row(vocabulary, vocabulary, 3);
    double sum = 0;
    for (const float logit : row)
      sum += std::exp(static_cast<double>(logit));
    std::vector<TokenId> order(vocabulary);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] > row[b]; });
    Sampler sampler(vocabulary);
    for (const std::uint32_t count : {0U, 1U, 5U, 20U}) {
      const Sampler::Logprobs logprobs = sampler.logprobs(row, 3, count);
      EXPECT_NEAR(logprobs.chosen, row[3] - std::log(sum), 1e-5);
      ASSERT_EQ(logprobs.best.size(), std::min(count, vocabulary));
      for (std::size_t i = 0; i < logprobs.best.size(); ++i) {
        EXPECT_EQ(logprobs.best[i].token, order[i]);
        EXPECT_NEAR(logprobs.best[i].value, row[order[i]] - std::log(sum), 1e-5);
      }
    }
  }
}

TEST(Sampler, NamesTheParameterThatMakesNoSense) {
  const auto message = [](auto change) {
    ipc::Sampling s;
    change(s);
    const Status status = check_sampling(s);
    return status.ok() ? std::string() : status.error().message();
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_THAT(message([](auto& s) { s.temperature = -1; }), testing::StartsWith("temperature "));
  EXPECT_THAT(message([](auto& s) { s.temperature = NAN; }), testing::StartsWith("temperature "));
  EXPECT_THAT(message([](auto& s) { s.top_p = 0; }), testing::StartsWith("top_p "));
  EXPECT_THAT(message([](auto& s) { s.top_p = 1.5F; }), testing::StartsWith("top_p "));
  EXPECT_THAT(message([](auto& s) { s.min_p = -0.1F; }), testing::StartsWith("min_p "));
  EXPECT_THAT(message([](auto& s) { s.repetition_penalty = 0; }),
              testing::StartsWith("repetition_penalty "));
  EXPECT_THAT(message([](auto& s) { s.frequency_penalty = INFINITY; }),
              testing::StartsWith("frequency_penalty "));
  EXPECT_THAT(message([](auto& s) { s.presence_penalty = NAN; }),
              testing::StartsWith("presence_penalty "));
}

}  // namespace
}  // namespace bulkhead::engine
