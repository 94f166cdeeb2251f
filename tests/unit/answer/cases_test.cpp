// Raw answers of every family: this project's cases beside this file, and the fixtures' where they
// are.
#include "tests/unit/answer/cases.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "tests/support/fixtures.hpp"

namespace bulkhead::model::answer::testing {
namespace {

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const std::filesystem::path source = BULKHEAD_SOURCE_DIR;
  for (const auto& folder :
       {source / "tests/unit/answer/cases", test::fixtures() / "templates/output"}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const std::vector<Case> some = read_cases(file.path());
      cases.insert(cases.end(), some.begin(), some.end());
    }
  }
  return cases;
}

TEST(AnswerCases, EveryFamilyHasSome) {
  const std::vector<Case> cases = all_cases();
  for (const Family& family : families()) {
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const Case& each) {
      return each.family == family.name;
    })) << family.name;
  }
}

TEST(AnswerCases, GiveTheirMessageWholeAndInPieces) {
  for (const Case& each : all_cases()) {
    for (const std::size_t step : {0, 1, 2, 3, 7})
      expect_whole(each, step);
  }
}

TEST(AnswerCases, CanBeCutAnywhere) {
  for (const Case& each : all_cases())
    expect_cut_anywhere(each);
}

TEST(AnswerCases, GiveDeltasAsSoonAsTheyAreDecided) {
  for (const Case& each : all_cases())
    expect_deltas_keep_up(each);
}

TEST(AnswerCases, GiveTheSameDeltasAgain) {
  for (const Case& each : all_cases()) {
    AnswerParser one = parser_for(each);
    AnswerParser other = parser_for(each);
    for (const char byte : each.raw)
      EXPECT_EQ(one.feed({&byte, 1}), other.feed({&byte, 1}));
    EXPECT_EQ(one.finish(each.ended), other.finish(each.ended));
  }
}

TEST(AnswerFamilies, AreToldFromATemplatesText) {
  const std::filesystem::path folder = test::fixtures() / "templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no fixtures; set BULKHEAD_FIXTURES";
  const std::pair<const char*, const char*> rows[] = {
      {"Apertus-8B-Instruct", "apertus"},
      {"Bielik-11B-v3.0-Instruct", "hermes"},
      {"ByteDance-Seed-OSS", "seed-oss"},
      {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r"},
      {"GLM-4.6", "glm"},
      {"HuggingFaceTB-SmolLM3-3B", "think"},
      {"Kimi-K2-Thinking", "kimi-k2"},
      {"LFM2-8B-A1B", "lfm2"},
      {"MiniMax-M2", "minimax-m2"},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3-coder"},
      {"NVIDIA-Nemotron-Nano-v2", "nemotron-v2"},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"},
      {"Qwen3.5-4B", "qwen3-coder"},
      {"StepFun3.5-Flash", "qwen3-coder"},
      {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek"},
      {"deepseek-ai-DeepSeek-V3.1", "deepseek"},
      {"deepseek-ai-DeepSeek-V3.2", "deepseek-v3.2"},
      {"google-gemma-2-2b-it", "plain"},
      {"google-gemma-4-31B-it", "gemma4"},
      {"ibm-granite-granite-3.3-2B-Instruct", "granite-3.3"},
      {"ibm-granite-granite-4.0", "hermes"},
      {"meetkai-functionary-medium-v3.1", "functionary"},
      {"meta-llama-Llama-3.2-3B-Instruct", "llama3-json"},
      {"microsoft-Phi-3.5-mini-instruct", "plain"},
      {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral-args"},
      {"mistralai-Mistral-Nemo-Instruct-2407", "mistral-list"},
      {"openai-gpt-oss-120b", "gpt-oss"},
      {"unsloth-Apriel-1.5", "apriel"},
  };
  for (const auto& [file, family] : rows) {
    std::ifstream in(folder / (std::string(file) + ".jinja"));
    const std::string text(std::istreambuf_iterator<char>(in), {});
    EXPECT_EQ(family_of_template(text).name, family) << file;
  }
}

// Special tokens are shown to the parser where a family writes with them, and nowhere else.
TEST(Families, KnowTheirMarks) {
  const auto knows = [](const char* family, const char* mark) {
    return has_mark(*family_named(family), mark);
  };
  EXPECT_TRUE(knows("hermes", "<tool_call>"));
  EXPECT_TRUE(knows("hermes", "</think>"));
  EXPECT_FALSE(knows("hermes", "<|im_start|>"));
  EXPECT_FALSE(knows("hermes", ""));
  EXPECT_TRUE(knows("gpt-oss", "<|channel|>"));
  EXPECT_TRUE(knows("gemma4", "<|\"|>"));
  EXPECT_TRUE(knows("mistral-args", "[ARGS]"));
  EXPECT_FALSE(has_mark(plain_family(), "<tool_call>"));
}

}  // namespace
}  // namespace bulkhead::model::answer::testing
