#include "worker/model/file_facts.hpp"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"

namespace bulkhead::model {
namespace {

using testing::GgufBuilder;

constexpr std::uint32_t kF16 = 1, kQ8 = 8;

FileFacts facts_of_built(const GgufBuilder& builder) {
  const std::string bytes = builder.bytes();
  const auto file = GgufFile::from_memory(std::as_bytes(std::span(bytes)), "made");
  EXPECT_TRUE(file.ok()) << file.error().message();
  return file.ok() ? facts_of(**file) : FileFacts();
}

TEST(FileFacts, CountWeightsAndTakeTheTypeOfMostBytes) {
  GgufBuilder file;
  file.tensor("large", {64, 1000}, kQ8).tensor("small", {64, 100}, kF16).tensor("norm", {64});
  const FileFacts facts = facts_of_built(file);
  EXPECT_EQ(facts.parameters, 64U * 1000 + 64U * 100 + 64);
  EXPECT_EQ(facts.size, "71K");
  EXPECT_EQ(facts.quantization, "Q8_0");
}

TEST(FileFacts, WriteLargeCountsWithTheirUnits) {
  GgufBuilder file;
  file.tensor("a", {1 << 10, 1200});
  EXPECT_EQ(facts_of_built(file).size, "1.23M");
}

TEST(FileFacts, BelieveTheFile) {
  GgufBuilder file;
  file.tensor("a", {64, 10}, kQ8);
  const std::pair<std::uint32_t, const char*> types[] = {
      {15, "Q4_K_M"},        {14, "Q4_K_S"}, {7, "Q8_0"},   {1, "F16"},
      {32, "BF16"},          {29, "IQ2_M"},  {38, "MXFP4"}, {18, "Q6_K"},
      {1024 + 17, "Q5_K_M"}, {999, "Q8_0"},  // unknown: as the tensors say
  };
  for (const auto& [number, name] : types) {
    GgufBuilder with = file;
    with.u32("general.file_type", number).text("general.size_label", "30B-A3B");
    EXPECT_EQ(facts_of_built(with).quantization, name) << number;
    EXPECT_EQ(facts_of_built(with).size, "30B-A3B");
  }
}

TEST(FileFacts, AreEmptyForVocabulariesAndSafeForOddLabels) {
  EXPECT_EQ(facts_of_built(GgufBuilder()).size, "");
  EXPECT_EQ(facts_of_built(GgufBuilder()).quantization, "");
  for (const std::string& label : {std::string(), std::string(1000, 'x')}) {
    GgufBuilder file;
    file.tensor("a", {64, 10}).text("general.size_label", label);
    EXPECT_EQ(facts_of_built(file).size, "1K") << label;
  }
  GgufBuilder number;
  number.tensor("a", {64, 10}).u32("general.size_label", 7).text("general.file_type", "x");
  EXPECT_EQ(facts_of_built(number).size, "1K");
  EXPECT_EQ(facts_of_built(number).quantization, "F32");
}

std::vector<std::pair<std::string, double>> advice_of_built(const GgufBuilder& builder) {
  const std::string bytes = builder.bytes();
  const auto file = GgufFile::from_memory(std::as_bytes(std::span(bytes)), "made");
  std::vector<std::pair<std::string, double>> advice;
  if (!file.ok()) return advice;
  for (const SamplerAdvice& each : sampler_advice(**file))
    advice.emplace_back(each.name, each.value);
  return advice;
}

TEST(SamplerAdvice, IsWhatRequestsCallItAndMakesSense) {
  using Advice = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(advice_of_built(GgufBuilder()), Advice());
  GgufBuilder file;
  file.f32("general.sampling.temp", 0.6F).u32("general.sampling.top_k", 20);
  file.f32("general.sampling.top_p", 0.95F).f32("general.sampling.penalty_repeat", 1.05F);
  file.f32("general.sampling.min_p", 0).f32("general.sampling.xtc_probability", 0.5F);
  EXPECT_EQ(advice_of_built(file), (Advice{{"temperature", 0.6},
                                           {"top_k", 20},
                                           {"top_p", 0.95},
                                           {"min_p", 0},
                                           {"repetition_penalty", 1.05}}));
  GgufBuilder odd;
  odd.f32("general.sampling.temp", -1).f32("general.sampling.top_p", NAN);
  odd.f32("general.sampling.min_p", 2).text("general.sampling.top_k", "many");
  EXPECT_EQ(advice_of_built(odd), Advice());
}

}  // namespace
}  // namespace bulkhead::model
