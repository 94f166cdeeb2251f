#include "worker/model/ranking.hpp"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/inspect.hpp"

namespace bulkhead::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kWidth = 32;

// A file with a head, and the values of its tensors.
class RankingTest : public ::testing::Test {
 protected:
  RankingTest() {
    builder_.text("tokenizer.chat_template.rerank", "</s>{query}</s>{document}a{query}");
    graph_.architecture = "llama";
    graph_.embedding = kWidth;
  }
  void make_modern_bert() {
    graph_.architecture = "modern-bert";
    graph_.ranking = {.gelu = true, .norm_epsilon = 0.01F, .one_separator = true};
  }
  void add_head(std::uint64_t outputs) { builder_.tensor("cls.output.weight", {kWidth, outputs}); }
  void set(const std::string& tensor, const std::vector<float>& values) {
    const TensorInfo& info = *file_->find_tensor(tensor);
    ASSERT_EQ(info.data.size(), values.size() * sizeof(float));
    std::memcpy(bytes_.data() + (reinterpret_cast<const char*>(info.data.data()) - bytes_.data()),
                values.data(), info.data.size());
  }
  void open() {
    bytes_ = builder_.bytes();
    auto file = testing::open_bytes(bytes_);
    ASSERT_TRUE(file.ok()) << file.error().message();
    file_ = *std::move(file);
    auto tokenizer = Tokenizer::from_gguf(*file_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    tokenizer_ = *std::move(tokenizer);
  }
  Result<Ranker> load(std::string_view asked = {}) {
    return load_ranker(*file_, *tokenizer_, graph_, asked);
  }
  void expect_refused(ErrorCode code, const std::string& words) {
    open();
    const auto ranker = load();
    ASSERT_FALSE(ranker.ok());
    EXPECT_EQ(ranker.error().code(), code);
    EXPECT_THAT(ranker.error().message(), HasSubstr(words));
  }

  testing::GgufBuilder builder_ = testing::small_llama();
  ModelGraph graph_;
  std::string bytes_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

std::vector<float> numbers(std::size_t count, float factor) {
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i)
    made[i] = factor * std::sin(static_cast<float>(i + 1));
  return made;
}

double dot(const std::vector<float>& a, const std::vector<float>& b, std::size_t row) {
  double sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i)
    sum += static_cast<double>(a[row * b.size() + i]) * b[i];
  return sum;
}

TEST_F(RankingTest, ModelsWhoseTokensHaveTypesAreRefused) {
  add_head(1);
  builder_.u32("tokenizer.ggml.token_type_count", 2);
  expect_refused(ErrorCode::kUnsupported, "tokens of 2 types");
}

TEST_F(RankingTest, OneOutputIsTheScoreItself) {
  add_head(1);
  builder_.tensor("cls.output.bias", {1});
  open();
  const std::vector<float> weights = numbers(kWidth, 0.5F), state = numbers(kWidth, 2);
  set("cls.output.weight", weights);
  set("cls.output.bias", {-3.5F});
  const auto ranker = load();
  ASSERT_TRUE(ranker.ok()) << ranker.error().message();
  EXPECT_NEAR(ranker->head.score(state), dot(weights, state, 0) - 3.5, 1e-6);
  EXPECT_FALSE(ranker->generates);
  EXPECT_THAT(*describe(*file_, false),
              HasSubstr("ranks:        documents (/v1/rerank), and does nothing else"));
}

TEST_F(RankingTest, TheDenseLayerComesFirst) {
  add_head(1);
  builder_.tensor("cls.weight", {kWidth, kWidth}).tensor("cls.bias", {kWidth});
  builder_.tensor("output.weight", {kWidth, 260});
  open();
  const std::vector<float> dense = numbers(std::size_t{kWidth} * kWidth, 0.1F),
                           biases = numbers(kWidth, 0.3F), weights = numbers(kWidth, 1),
                           state = numbers(kWidth, 1.5F);
  set("cls.weight", dense);
  set("cls.bias", biases);
  set("cls.output.weight", weights);
  double want = 0;
  for (std::size_t row = 0; row < kWidth; ++row)
    want += weights[row] * std::tanh(dot(dense, state, row) + biases[row]);
  const auto ranker = load();
  ASSERT_TRUE(ranker.ok()) << ranker.error().message();
  EXPECT_NEAR(ranker->head.score(state), want, 1e-6);
  EXPECT_TRUE(ranker->generates);
  EXPECT_THAT(*describe(*file_, false), HasSubstr("documents (/v1/rerank)\n"));
}

TEST_F(RankingTest, OfSeveralOutputsYesCounts) {
  const std::vector<float> weights = numbers(3 * kWidth, 0.5F), state = numbers(kWidth, 1);
  for (const std::vector<std::string>& labels :
       {std::vector<std::string>{}, {"yes", "no", "maybe"}, {"no", "maybe", "yes"}}) {
    builder_ = testing::small_llama();
    builder_.text("tokenizer.chat_template.rerank", "{query} {document}");
    if (!labels.empty()) builder_.strings("llama.classifier.output_labels", labels);
    add_head(3);
    open();
    set("cls.output.weight", weights);
    const std::size_t yes = labels.empty() || labels[0] == "yes" ? 0 : 2;
    double sum = 0;
    for (std::size_t row = 0; row < 3; ++row)
      sum += std::exp(dot(weights, state, row));
    const auto ranker = load();
    ASSERT_TRUE(ranker.ok()) << ranker.error().message();
    EXPECT_NEAR(ranker->head.score(state), std::exp(dot(weights, state, yes)) / sum, 1e-6) << yes;
  }
}

TEST_F(RankingTest, ClientsTextsNeverBecomeSpecialTokens) {
  add_head(1);
  open();
  const auto ranker = load();
  ASSERT_TRUE(ranker.ok()) << ranker.error().message();
  constexpr TokenId kEnd = 2, kA = 259;
  const auto tokens = ranker->prompt.tokens(*tokenizer_, "a", "</s>");
  EXPECT_EQ(std::ranges::count(tokens, kEnd), 2) << "only the template's";
  EXPECT_EQ(tokens.front(), kEnd);
  EXPECT_EQ(tokens.back(), kA) << "the second place of the query";
  const auto asked = load("{document}{query}");
  ASSERT_TRUE(asked.ok());
  const auto other = asked->prompt.tokens(*tokenizer_, "a", "b");
  EXPECT_EQ(other.back(), kA);
  EXPECT_EQ(std::ranges::count(other, kEnd), 0);
  EXPECT_EQ(load("another template")->prompt.tokens(*tokenizer_, "a", "</s>"), tokens);
}

TEST_F(RankingTest, WithoutATemplateTheVocabularySeparates) {
  builder_.drop("tokenizer.chat_template.rerank");
  add_head(1);
  builder_.boolean("tokenizer.ggml.add_eos_token", true);
  builder_.boolean("tokenizer.ggml.add_bos_token", true);
  builder_.boolean("tokenizer.ggml.add_sep_token", true);
  builder_.u32("tokenizer.ggml.seperator_token_id", 259);
  builder_.boolean("tokenizer.ggml.add_space_prefix", false);
  open();
  const auto ranker = load();
  ASSERT_TRUE(ranker.ok()) << ranker.error().message();
  constexpr TokenId kBegin = 1, kEnd = 2, kSeparator = 259, kFirstByte = 3;
  EXPECT_THAT(ranker->prompt.tokens(*tokenizer_, "q", "d"),
              ElementsAre(kBegin, kFirstByte + 'q', kEnd, kSeparator, kFirstByte + 'd', kEnd));
}

TEST_F(RankingTest, ModernBertsTextsHaveOneSeparatorBetweenThem) {
  make_modern_bert();
  builder_.drop("tokenizer.chat_template.rerank");
  add_head(1);
  for (const char* const added : {"eos", "bos", "sep"})
    builder_.boolean(std::string("tokenizer.ggml.add_") + added + "_token", true);
  builder_.u32("tokenizer.ggml.seperator_token_id", 2);
  builder_.boolean("tokenizer.ggml.add_space_prefix", false);
  open();
  const auto ranker = load();
  ASSERT_TRUE(ranker.ok()) << ranker.error().message();
  constexpr TokenId kBegin = 1, kEnd = 2, kFirstByte = 3;
  EXPECT_THAT(ranker->prompt.tokens(*tokenizer_, "q", "d"),
              ElementsAre(kBegin, kFirstByte + 'q', kEnd, kFirstByte + 'd', kEnd));
}

// Its head is output * norm(gelu(dense * state)).
TEST_F(RankingTest, ModernBertsHeadHasGeluAndANorm) {
  make_modern_bert();
  add_head(1);
  builder_.tensor("cls.weight", {kWidth, kWidth}).tensor("cls.norm.weight", {kWidth});
  builder_.tensor("cls.norm.bias", {kWidth});
  open();
  const std::vector<float> dense = numbers(std::size_t{kWidth} * kWidth, 0.2F),
                           gains = numbers(kWidth, 0.7F), biases = numbers(kWidth, 0.1F),
                           weights = numbers(kWidth, 1), state = numbers(kWidth, 1.5F);
  set("cls.weight", dense);
  set("cls.norm.weight", gains);
  set("cls.norm.bias", biases);
  set("cls.output.weight", weights);
  std::vector<double> inner;
  double mean = 0, variance = 0, want = 0;
  for (std::size_t row = 0; row < kWidth; ++row) {
    const double x = dot(dense, state, row);
    inner.push_back(x * 0.5 * std::erfc(-x / std::sqrt(2.0)));
    mean += inner.back() / kWidth;
  }
  for (const double each : inner)
    variance += (each - mean) * (each - mean) / kWidth;
  for (std::size_t row = 0; row < kWidth; ++row)
    want += weights[row] * ((inner[row] - mean) / std::sqrt(variance + 0.01) * gains[row] +
                            static_cast<double>(biases[row]));
  const auto ranker = load();
  ASSERT_TRUE(ranker.ok()) << ranker.error().message();
  EXPECT_NEAR(ranker->head.score(state), want, 1e-5);
}

TEST_F(RankingTest, ANormOfAnotherWidthIsDamage) {
  make_modern_bert();
  add_head(1);
  builder_.tensor("cls.weight", {kWidth, kWidth}).tensor("cls.norm.weight", {kWidth / 2});
  expect_refused(ErrorCode::kCorrupt, "cls.norm.weight");
}

TEST_F(RankingTest, NoHeadIsRefusedWithWhatToLoad) {
  expect_refused(ErrorCode::kUnsupported, "cls.output.weight");
}

TEST_F(RankingTest, NothingBetweenTheTextsIsRefused) {
  builder_.drop("tokenizer.chat_template.rerank");
  add_head(1);
  expect_refused(ErrorCode::kUnsupported, "models[].chat_template");
}

TEST_F(RankingTest, LabelsWithoutAYesAreRefused) {
  builder_.strings("llama.classifier.output_labels", {"LABEL_0", "LABEL_1"});
  add_head(2);
  expect_refused(ErrorCode::kUnsupported, "llama.classifier.output_labels");
}

TEST_F(RankingTest, OtherNumbersOfLabelsAreDamage) {
  builder_.strings("llama.classifier.output_labels", {"yes", "no"});
  add_head(3);
  expect_refused(ErrorCode::kCorrupt, "2 labels");
}

TEST_F(RankingTest, AHeadOfAnotherWidthIsDamage) {
  builder_.tensor("cls.output.weight", {kWidth / 2, 2});
  expect_refused(ErrorCode::kCorrupt, "cls.output.weight");
}

TEST_F(RankingTest, AHeadWithANormIsRefused) {
  add_head(1);
  builder_.tensor("cls.norm.weight", {kWidth});
  expect_refused(ErrorCode::kUnsupported,
                 "norm (cls.norm.weight), which is not supported for architecture llama");
}

TEST_F(RankingTest, ANormWithoutADenseLayerIsRefused) {
  make_modern_bert();
  add_head(1);
  builder_.tensor("cls.norm.weight", {kWidth});
  expect_refused(ErrorCode::kUnsupported, "without a dense layer (cls.weight)");
}

}  // namespace
}  // namespace bulkhead::model
