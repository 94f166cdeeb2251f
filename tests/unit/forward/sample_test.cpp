// Compares draws on the device with those of the CPU sampler. The token must be the same for the same row, parameters,
// seed and number, unless a threshold is within kNearThreshold of a token's edge. The tests count such draws.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>

#include "tests/unit/forward/sample_harness.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

std::vector<float> some_row(std::mt19937& random, std::uint32_t vocabulary, int kind) {
  std::normal_distribution<float> normal(0, kind == 0 ? 3.0F : kind == 1 ? 0.01F : 8.0F);
  std::vector<float> row(vocabulary);
  for (float& logit : row) {
    logit = normal(random);
    if (kind == 3) logit = std::round(logit / 4);  // ties by the thousand
  }
  return row;
}

SampleCase some_case(std::mt19937& random, std::uint32_t vocabulary, std::uint64_t n) {
  SampleCase one;
  one.row = some_row(random, vocabulary, static_cast<int>(random() % 4));
  one.n = n;
  const auto pick = [&](std::initializer_list<float> values) {
    return values.begin()[random() % values.size()];
  };
  one.sampling.temperature = pick({0.1F, 0.7F, 1.0F, 1.5F, 5.0F});
  one.sampling.top_k = static_cast<std::uint32_t>(pick({0, 0, 1, 2, 40, 256}));
  one.sampling.top_p = pick({1.0F, 1.0F, 0.95F, 0.5F, 0.01F, 0.999F});
  one.sampling.min_p = pick({0.0F, 0.0F, 0.05F, 0.5F, 1.0F});
  one.sampling.seed = random();
  return one;
}

TEST_F(SampleTest, DrawsTheCpusTokens) {
  std::mt19937 random(11);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {31U, 300U, 2048U, 5003U, 32000U}) {
      for (int round = 0; round < (vocabulary > 10000 ? 2 : 8); ++round) {
        std::vector<SampleCase> cases;
        for (std::uint64_t i = 0; i < 24; ++i)
          cases.push_back(some_case(random, vocabulary, i));
        compare(each.mapping, cases, count);
      }
    }
    std::printf("%s: %zu draws, %zu parted within %.0e of a threshold\n", each.name, count.draws,
                count.parted, kNearThreshold);
    RecordProperty("parted", static_cast<int>(count.parted));
    EXPECT_GT(count.draws, 700U);
    EXPECT_LE(count.parted, count.draws / 100);
  }
}

// With large vocabularies and at high temperatures, many tokens are near the end of top-p or top-k.
TEST_F(SampleTest, DrawsFromThousandsOfLikelyTokensAreTheCpus) {
  std::mt19937 random(17);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {152'064U, 262'208U}) {
      std::vector<SampleCase> cases;
      for (std::uint64_t i = 0; i < 6; ++i) {
        SampleCase one;
        one.row = some_row(random, vocabulary, i % 2 == 0 ? 0 : 3);
        one.n = i;
        one.sampling.temperature = i % 2 == 0 ? 4 : 1;
        one.sampling.top_p = i < 4 ? 0.9F : 1.0F;
        one.sampling.top_k = i < 4 ? 0 : 200;
        one.sampling.seed = random();
        cases.push_back(std::move(one));
      }
      compare(each.mapping, cases, count);
    }
    EXPECT_LE(count.parted, 1U);
  }
}

// Masks that allow a few tokens, most of them, or one that is far from the best; rows without a mask are among them.
TEST_F(SampleTest, DrawsUnderMasksAreTheCpus) {
  std::mt19937 random(12);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {31U, 300U, 5003U, 32000U}) {
      std::vector<SampleCase> cases;
      for (std::uint64_t i = 0; i < 48; ++i) {
        SampleCase one = some_case(random, vocabulary, i);
        if (i % 8 == 7) one.sampling.temperature = 0;
        const std::uint32_t rare = i % 3 == 0 ? 2 : i % 3 == 1 ? 50 : 1000;
        std::uint32_t allowed = 0;
        one.mask.assign((vocabulary + 31) / 32, 0);
        for (std::uint32_t id = 0; id < vocabulary; ++id) {
          if (random() % rare != 0 && !(id + 1 == vocabulary && allowed == 0)) continue;
          one.mask[id / 32] |= 1U << (id % 32);
          ++allowed;
        }
        if (i % 5 == 4) one.mask.clear();
        cases.push_back(std::move(one));
      }
      compare(each.mapping, cases, count);
    }
    std::printf("%s: %zu draws under masks, %zu parted within %.0e of a threshold\n", each.name,
                count.draws, count.parted, kNearThreshold);
    EXPECT_LE(count.parted, count.draws / 100);
  }
}

// A number that is not finite shows in the log-probability, although a mask excludes its token and an edit changes
// it. Under a mask, the device draws an allowed token even if its weight is zero beside the best token's, at any
// temperature.
TEST_F(SampleTest, MasksHideNoBrokenNumberAndExcludeForGood) {
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    constexpr std::uint32_t kVocabulary = 3000;
    SampleCase one;
    one.row.assign(kVocabulary, 0.0F);
    one.row[5] = 80;
    one.mask.assign((kVocabulary + 31) / 32, 0);
    one.mask[2000 / 32] |= 1U << (2000 % 32);
    std::vector<SampleCase> cases;
    for (const float temperature : {0.01F, 1.0F, 1e30F, FLT_MAX}) {
      for (const std::uint32_t top_k : {0U, 40U}) {
        one.sampling.temperature = temperature;
        one.sampling.top_k = top_k;
        cases.push_back(one);
      }
    }
    for (const std::uint32_t token : draw(each.mapping, cases))
      EXPECT_EQ(token, 2000U);
    one.row[7] = std::numeric_limits<float>::quiet_NaN();
    Chosen chosen = choose_greedily(each.mapping, one.row, {k::SampleChoice{}});
    one.list = {{7, 1, 1, 0}};
    adjust(each.mapping, chosen, {one}, false);
    const auto words = read<std::uint32_t>(chosen.results, 2);
    EXPECT_FALSE(std::isfinite(std::bit_cast<float>(words[1])));
  }
}

// Returns cases with biases and penalties for few or most tokens, for the best or other ones, with edits ahead that
// replace others, with and without masks.
std::vector<SampleCase> edited_cases(std::mt19937& random, std::uint32_t vocabulary) {
  std::vector<SampleCase> cases;
  const auto number = [&](float scale) {
    return std::uniform_real_distribution<float>(-scale, scale)(random);
  };
  for (std::uint64_t i = 0; i < 40; ++i) {
    SampleCase one = some_case(random, vocabulary, i);
    if (i % 8 == 7) one.sampling.temperature = 0;
    one.sampling.repetition_penalty = i % 3 == 0 ? 1.0F : 1.0F + number(0.7F);
    const std::uint32_t rare = i % 4 == 0 ? 1 : i % 4 == 1 ? 3 : 100;
    for (std::uint32_t id = 0; id < vocabulary; ++id) {
      if (random() % rare != 0) continue;
      one.list.push_back({id, random() % 3 == 0 ? number(20) : 0.0F,
                          random() % 2 == 0 ? number(6) : 0.0F,
                          static_cast<std::uint32_t>(random() % 2)});
    }
    std::shuffle(one.list.begin(), one.list.end(), random);
    for (std::uint32_t id = 0; i % 2 == 1 && id < 15; ++id)
      one.ahead.push_back({id * 2, 0, number(6), 1});
    if (i % 5 == 0) one.mask.assign((vocabulary + 31) / 32, 0x5A5A5A5A);
    if (i == 37) one.list.clear(), one.ahead.clear();
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST_F(SampleTest, DrawsWithEditsAreTheCpus) {
  std::mt19937 random(13);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {31U, 300U, 5003U, 32000U})
      compare(each.mapping, edited_cases(random, vocabulary), count);
    std::printf("%s: %zu draws with edits, %zu parted within %.0e of a threshold\n", each.name,
                count.draws, count.parted, kNearThreshold);
    EXPECT_LE(count.parted, count.draws / 100);
  }
}

// Each logit has the CPU's bits, also where numbers become very large or small. (A device may take numbers below
// 1.2e-38 for zero, so none becomes so small.)
TEST_F(SampleTest, EditedLogitsHaveTheCpusBits) {
  std::mt19937 random(14);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    constexpr std::uint32_t kVocabulary = 5003;
    std::vector<SampleCase> cases = edited_cases(random, kVocabulary);
    cases[0].sampling.repetition_penalty = 1e-30F;
    cases[4].sampling.repetition_penalty = 1e30F;
    cases[8].list[0].subtrahend = 1e37F;
    cases[12].list[0].subtrahend = -1e37F;
    std::vector<float> rows;
    for (SampleCase& one : cases) {
      one.mask.clear();
      rows.insert(rows.end(), one.row.begin(), one.row.end());
    }
    Chosen chosen = choose_greedily(each.mapping, rows, std::vector<k::SampleChoice>(cases.size()));
    adjust(each.mapping, chosen, cases, false);
    const auto edited = read<std::uint32_t>(chosen.logits, rows.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::vector<float> expected = edited_row(cases[i]);
      for (std::uint32_t id = 0; id < kVocabulary; ++id)
        ASSERT_EQ(edited[i * kVocabulary + id], std::bit_cast<std::uint32_t>(expected[id]))
            << "case " << i << " token " << id;
    }
  }
}

// The log-probabilities of adjusted outputs are those of the row as it was.
TEST_F(SampleTest, LogprobabilitiesOfEditedRowsAreThoseOfTheRawOnes) {
  std::mt19937 random(15);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    for (const std::uint32_t vocabulary : {31U, 5003U}) {
      const std::vector<SampleCase> cases = edited_cases(random, vocabulary);
      std::vector<float> rows;
      std::vector<k::SampleChoice> choices;
      for (const SampleCase& one : cases) {
        rows.insert(rows.end(), one.row.begin(), one.row.end());
        k::SampleChoice choice{};
        choice.mode = one.sampling.temperature == 0 ? 0 : 1;
        choice.scale = 1;
        choice.least = -FLT_MAX;
        choice.top_p = 0xFFFFFFFFU;
        choice.draw = static_cast<std::uint32_t>(random());
        choice.logprobs = 4;
        choices.push_back(choice);
      }
      Chosen chosen = choose_greedily(each.mapping, rows, choices);
      const gpu::Buffer told = empty(chosen.outputs * sizeof(k::LogprobRow));
      const k::SamplePush push = chosen.push(told.address());
      run(k::logprobs(each.mapping, k::LogprobPass::kSums), push, chosen.outputs, chosen.chunks);
      run(k::logprobs(each.mapping, k::LogprobPass::kTokens), push, chosen.outputs);
      adjust(each.mapping, chosen, cases, true);
      draw(each.mapping, chosen, told.address());
      run(k::edit_logits(each.mapping, k::EditPass::kTells), edit_push(chosen, told.address()),
          chosen.outputs);
      const auto tokens = chosen_tokens(chosen);
      const auto told_rows = read<k::LogprobRow>(told, chosen.outputs);
      engine::Sampler sampler(vocabulary);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const auto want = sampler.logprobs(cases[i].row, tokens[i], 3);
        EXPECT_EQ(told_rows[i].chosen, cases[i].row[tokens[i]]) << vocabulary << " case " << i;
        ASSERT_EQ(told_rows[i].count, 3U);
        for (std::uint32_t rank = 0; rank < 3; ++rank)
          EXPECT_EQ(told_rows[i].tokens[rank].id, want.best[rank].token);
      }
    }
  }
}

TEST_F(SampleTest, OneRowsDrawsHaveItsDistribution) {
  std::mt19937 random(5);
  SampleCase one;
  one.row = some_row(random, 300, 0);
  one.sampling.temperature = 1.2F;
  one.sampling.seed = 99;
  std::vector<SampleCase> cases;
  for (std::uint64_t n = 0; n < 400; ++n) {
    one.n = n;
    cases.push_back(one);
  }
  Count count;
  compare(test_mappings(device())[0].mapping, cases, count);
  EXPECT_EQ(count.parted, 0U);
}

TEST_F(SampleTest, LogprobabilitiesAreTheCpus) {
  std::mt19937 random(21);
  double worst = 0;
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    // Vocabularies with fewer chunks than requested tokens and with more; rows with thousands of
    // equal logits.
    for (const std::uint32_t vocabulary : {7U, 31U, 5003U, 60000U}) {
      for (const bool draws : {false, true}) {
        std::vector<std::vector<float>> rows;
        std::vector<std::int32_t> wanted;
        for (int i = 0; i < 8; ++i) {
          rows.push_back(some_row(random, vocabulary, i % 4));
          wanted.push_back(i == 0 ? -1 : i == 1 ? 0 : i == 2 ? 1 : i == 3 ? 5 : 20);
        }
        const auto together = tell(each.mapping, rows, wanted, draws);
        engine::Sampler sampler(vocabulary);
        for (std::size_t i = 1; i < rows.size(); ++i) {
          const Told& told = together[i];
          const auto want =
              sampler.logprobs(rows[i], told.token, static_cast<std::uint32_t>(wanted[i]));
          ASSERT_EQ(told.row.count, want.best.size()) << vocabulary << " row " << i;
          const auto near = [&](float logit, float logprob) {
            // The last bit of a float near 16 is 1e-6.
            const double difference = std::abs(told.logprob(logit) - logprob);
            worst = std::max(worst, difference);
            EXPECT_LE(difference, 1e-5) << vocabulary << " row " << i;
          };
          near(told.row.chosen, want.chosen);
          EXPECT_EQ(told.row.chosen, rows[i][told.token]);
          for (std::size_t rank = 0; rank < want.best.size(); ++rank) {
            ASSERT_EQ(told.row.tokens[rank].id, want.best[rank].token)
                << vocabulary << " row " << i << " rank " << rank;
            near(told.row.tokens[rank].logit, want.best[rank].value);
          }
        }
        // Computed alone, the row has the same bits.
        const auto alone = tell(each.mapping, {rows[5]}, {wanted[5]}, false);
        EXPECT_EQ(alone[0].row.sum, together[5].row.sum);
        for (std::uint32_t rank = 0; rank < alone[0].row.count; ++rank) {
          EXPECT_EQ(alone[0].row.tokens[rank].id, together[5].row.tokens[rank].id);
          EXPECT_EQ(alone[0].row.tokens[rank].logit, together[5].row.tokens[rank].logit);
        }
      }
    }
  }
  std::printf("log-probabilities within %.1e of the CPU's\n", worst);
}

TEST_F(SampleTest, TopKOfOneIsTheBestToken) {
  std::mt19937 random(6);
  std::vector<SampleCase> cases;
  for (std::uint64_t i = 0; i < 4; ++i) {
    cases.push_back(some_case(random, 300, i));
    cases.back().sampling.top_k = 1;
  }
  const auto drawn = draw(test_mappings(device())[0].mapping, cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& row = cases[i].row;
    EXPECT_EQ(drawn[i], std::max_element(row.begin(), row.end()) - row.begin());
  }
}

}  // namespace
}  // namespace bulkhead::forward
