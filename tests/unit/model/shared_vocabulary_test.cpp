// Which token lists let one model guess for another.
#include "worker/model/shared_vocabulary.hpp"

#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

using ::testing::HasSubstr;

struct Tokens {
  std::vector<std::string> texts{"<s>", "</s>", "a", "b"};
  std::vector<std::int32_t> types{3, 3, 1, 1};
  std::uint32_t bos = 0, eos = 1;

  Tokens with(const std::string& text, TokenType type, std::size_t count = 1) const {
    Tokens more = *this;
    for (std::size_t i = 0; i < count; ++i) {
      more.texts.push_back(text);
      more.types.push_back(static_cast<std::int32_t>(type));
    }
    return more;
  }
  std::string bytes() const {
    testing::GgufBuilder file;
    file.strings("tokenizer.ggml.tokens", texts);
    if (!types.empty()) file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
    file.u32("tokenizer.ggml.bos_token_id", bos).u32("tokenizer.ggml.eos_token_id", eos);
    return file.bytes();
  }
};

// Returns what is different; empty: `draft` can guess for `model`.
std::string difference(const Tokens& model, const Tokens& draft) {
  const std::string bytes = model.bytes(), others = draft.bytes();
  const auto file = GgufFile::from_memory(std::as_bytes(std::span(bytes)), "model.gguf");
  const auto other = GgufFile::from_memory(std::as_bytes(std::span(others)), "draft.gguf");
  if (!file.ok() || !other.ok()) return "a file can't be opened";
  const Status status = check_shared_vocabulary(**file, **other);
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code(), ErrorCode::kUnsupported);
  return status.error().message();
}

TEST(SharedVocabulary, EqualListsAreShared) {
  EXPECT_EQ(difference({}, {}), "");
  // The forms of a model for conversations and for plain text name different ends.
  Tokens other_end;
  other_end.eos = 2;
  EXPECT_EQ(difference({}, other_end), "");
}

TEST(SharedVocabulary, EitherMayHaveMorePadding) {
  const std::vector<Tokens> longer = {Tokens().with("[PAD4]", TokenType::kUnused, kMostPadding),
                                      Tokens().with("x", TokenType::kUnused),
                                      Tokens().with("[PAD4]", TokenType::kUserDefined),
                                      Tokens().with("<unused7>", TokenType::kNormal),
                                      Tokens().with("", TokenType::kNormal),
                                      Tokens().with("<image_soft_token>", TokenType::kControl)};
  for (const Tokens& each : longer) {
    SCOPED_TRACE(each.texts.back());
    EXPECT_EQ(difference(each, {}), "");
    EXPECT_EQ(difference({}, each), "");
  }
  // Without types the texts decide.
  Tokens padded = longer[0], other = longer[1];
  padded.types = other.types = {};
  EXPECT_EQ(difference(padded, {}), "");
  EXPECT_EQ(difference({}, other),
            "draft.gguf has the further token 4, \"x\", which is no padding");
}

TEST(SharedVocabulary, TheFirstDifferentTokenIsNamed) {
  Tokens other;
  other.texts[2] = "\n" + std::string(100, 'c');
  other.texts[3] = "d";
  EXPECT_EQ(difference({}, other),
            "its token 2 is \"\\n" + std::string(59, 'c') + "\" and not \"a\"");
  const Tokens longer = other.with("[PAD4]", TokenType::kUnused);
  EXPECT_THAT(difference({}, longer), HasSubstr("its token 2 is"));
  EXPECT_THAT(difference(longer, {}), HasSubstr("its token 2 is \"a\""));
}

TEST(SharedVocabulary, FurtherTextsAreNoPadding) {
  const Tokens longer =
      Tokens().with("[PAD4]", TokenType::kUnused).with("word", TokenType::kNormal);
  EXPECT_EQ(difference(longer, {}),
            "model.gguf has the further token 5, \"word\", which is no padding");
  EXPECT_EQ(difference({}, longer),
            "draft.gguf has the further token 5, \"word\", which is no padding");
}

TEST(SharedVocabulary, MorePaddingThanModelsHaveIsRefused) {
  const Tokens longer = Tokens().with("[PAD4]", TokenType::kUnused, kMostPadding + 1);
  EXPECT_EQ(difference(longer, {}),
            "it has 4 tokens and not 1029, and at most 1024 may be padding");
  EXPECT_EQ(difference({}, longer),
            "it has 1029 tokens and not 4, and at most 1024 may be padding");
}

TEST(SharedVocabulary, ListsOfOtherLengthsNeedTheSameSpecialTokens) {
  Tokens longer = Tokens().with("[PAD4]", TokenType::kUnused);
  longer.eos = 0;
  EXPECT_EQ(difference({}, longer), "its tokenizer.ggml.eos_token_id is 0 and not 1");
  longer.eos = 1;
  longer.bos = 4;
  EXPECT_EQ(difference(longer, {}), "its tokenizer.ggml.bos_token_id is 0 and not 4");
}

TEST(SharedVocabulary, AFileWithoutTokensIsNamed) {
  const std::string bytes = testing::GgufBuilder().u32("x", 1).bytes();
  const std::string others = Tokens().bytes();
  const auto file = GgufFile::from_memory(std::as_bytes(std::span(bytes)), "model.gguf");
  const auto other = GgufFile::from_memory(std::as_bytes(std::span(others)), "draft.gguf");
  ASSERT_TRUE(file.ok() && other.ok());
  EXPECT_EQ(check_shared_vocabulary(**file, **other).error().message(),
            "model.gguf has no tokenizer.ggml.tokens");
}

}  // namespace
}  // namespace bulkhead::model
