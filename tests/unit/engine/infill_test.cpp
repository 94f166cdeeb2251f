// Tests of prompts for filling in, with the marks that a vocabulary has.
#include "worker/engine/infill.hpp"

#include <gtest/gtest.h>

#include "tests/support/fake_tokenizer.hpp"

namespace bulkhead::test {
namespace {

const ipc::InfillPrompt kGap{"ab", "c", {}};

TEST(InfillPrompt, PutsTheGapBetweenTheVocabularysMarks) {
  const FakeTokenizer qwen({"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"});
  const model::TokenId first = FakeTokenizer::kFirstWord;
  auto tokens = engine::infill_prompt(qwen, kGap);
  ASSERT_TRUE(tokens.ok()) << tokens.error().message();
  EXPECT_EQ(*tokens, (std::vector<model::TokenId>{first, 'a', 'b', first + 1, 'c', first + 2}));
  ipc::InfillPrompt with_file = kGap;
  with_file.files = {{"n", "x"}};
  tokens = engine::infill_prompt(qwen, with_file);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(*tokens, (std::vector<model::TokenId>{first + 3, 'n', '\n', 'x', first + 3, first, 'a',
                                                  'b', first + 1, 'c', first + 2}));
  const FakeTokenizer deepseek({"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}, 300, true);
  tokens = engine::infill_prompt(deepseek, kGap);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->front(), FakeTokenizer::kBos);
  EXPECT_EQ(tokens->back(), first + 2);
  // It has no mark for files.
  tokens = engine::infill_prompt(deepseek, with_file);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(*tokens, (std::vector<model::TokenId>{FakeTokenizer::kBos, 'n', '\n', 'x', '\n', '\n',
                                                  first, 'a', 'b', first + 1, 'c', first + 2}));
}

TEST(InfillPrompt, AVocabularyWithoutMarksSaysSo) {
  const FakeTokenizer partly({"<|fim_prefix|>", "<|fim_suffix|>"});
  const auto tokens = engine::infill_prompt(partly, kGap);
  ASSERT_FALSE(tokens.ok());
  EXPECT_EQ(tokens.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(tokens.error().message().find("fim_prefix"), std::string::npos);
}

}  // namespace
}  // namespace bulkhead::test
