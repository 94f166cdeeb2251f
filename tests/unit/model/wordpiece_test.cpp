// The expected pieces are those of Hugging Face's fast BertTokenizer with the same vocabulary.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "tests/unit/model/made_tokenizer_test.hpp"
#include "worker/model/inspect.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::megabyte_of;
using testing::open_bytes;
using testing::tokenizer_error;
using testing::tokenizer_of;

constexpr TokenId kUnknown = 1, kClass = 2, kSeparator = 3;

// As BERT's vocabularies are written: ## stands before a piece that continues a word.
const std::vector<std::string> kVocabulary = {
    "[PAD]",   "[UNK]",    "[CLS]",    "[SEP]",    "[MASK]",   "hello",    "world",     "##s",
    "##ing",   "play",     "un",       "##aff",    "##able",   "cafe",     "caf\u00e9", "istanbul",
    "i",       "##\u0307", "中",       "文",       "!",        ".",        "-",         "$",
    "+",       "[",        "]",        "cls",      "a",        "b",        "##a",       "##b",
    "##ab",    "\u1112",   "##\u1161", "##\u11ab", "##\u1100", "##\u1173", "##\u11af",  "한",
    "##글",    "σ",        "##ο",      "##σ",      "##ς",      "。",       "€",         "Hello",
    "strasse", "straße",   "\u2581",   "##\u2581", "か",       "##け",     "\u8c48",    "mask"};

// A file of such a vocabulary, as converters write it, without the keys of special tokens.
GgufBuilder bare_file() {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  for (const std::string& text : kVocabulary) {
    const bool control = tokens.size() < 5;
    tokens.push_back(control ? text : text.starts_with("##") ? text.substr(2) : "\u2581" + text);
    types.push_back(control ? 3 : 1);
  }
  GgufBuilder file;
  file.text("tokenizer.ggml.model", "bert").strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  return file;
}

GgufBuilder bert_file() {
  GgufBuilder file = bare_file();
  file.u32("tokenizer.ggml.bos_token_id", kClass);
  file.u32("tokenizer.ggml.seperator_token_id", kSeparator);
  file.u32("tokenizer.ggml.unknown_token_id", kUnknown);
  return file;
}

std::string pieces(const std::vector<TokenId>& ids) {
  std::string joined;
  for (const TokenId id : ids)
    joined += (joined.empty() ? "" : " ") + kVocabulary.at(id);
  return joined;
}

class WordPiece : public testing::MadeTokenizerTest {
 protected:
  void SetUp() override { load(bert_file()); }
  std::string cut(std::string_view text) const { return pieces(ids(text)); }
};

TEST_F(WordPiece, TakesTheLongestPieces) {
  EXPECT_EQ(cut("hello world"), "hello world");
  EXPECT_EQ(cut("playing unaffable"), "play ##ing un ##aff ##able");
  EXPECT_EQ(cut("aab abab"), "a ##ab a ##b ##ab");
  EXPECT_EQ(cut(""), "");
  EXPECT_EQ(cut(" \n\t "), "");
}

TEST_F(WordPiece, AWordWithoutPiecesIsUnknownAsAWhole) {
  EXPECT_EQ(cut("zzz a"), "[UNK] a");
  EXPECT_EQ(cut("unaffablex"), "[UNK]");
  EXPECT_EQ(cut("s"), "[UNK]") << "this piece only continues words";
  EXPECT_EQ(cut("ahello"), "[UNK]") << "this piece only starts words";
}

TEST_F(WordPiece, CapitalsAndAccentsAreGone) {
  EXPECT_EQ(cut("Hello, WORLDS!"), "hello [UNK] world ##s !");
  EXPECT_EQ(cut("caf\u00e9 CAFE\u0301"), "cafe cafe");
  EXPECT_EQ(cut("\u0130stanbul \u0130"), "istanbul i");
  EXPECT_EQ(cut("\u0301\u0301 a"), "a");
  // A sigma at a word's end is not written as such, and a sharp s is no accent.
  EXPECT_EQ(cut("ΣοΣ"), "σ ##ο ##σ");
  EXPECT_EQ(cut("ẞ straße"), "[UNK] straße");
}

TEST_F(WordPiece, HangulAndKanaDecompose) {
  EXPECT_EQ(cut("한글"), "\u1112 ##\u1161 ##\u11ab ##\u1100 ##\u1173 ##\u11af");
  EXPECT_EQ(cut("か\u3099 が ぐけ かげ"), "か か [UNK] か ##け");
}

TEST_F(WordPiece, ACasedModelKeepsCapitalsAndAccents) {
  GgufBuilder file = bert_file();
  load(file.boolean("tokenizer.ggml.normalizer.lowercase", false));
  EXPECT_EQ(cut("Hello hello WORLDS!"), "Hello hello [UNK] !");
  EXPECT_EQ(cut("caf\u00e9 CAFE\u0301"), "caf\u00e9 [UNK]");
  EXPECT_EQ(cut("한글"), "한 ##글");
  EXPECT_EQ(cut("\u0301\u0301 a"), "[UNK] a");
}

TEST_F(WordPiece, LowerCaseAndAccentsAreKeysOfTheirOwn) {
  GgufBuilder file = bert_file();
  load(file.boolean("tokenizer.ggml.normalizer.strip_accents", false));
  EXPECT_EQ(cut("Hello CAF\u00c9"), "hello caf\u00e9");
  EXPECT_EQ(cut("\u0130"), "i ##\u0307");
  EXPECT_EQ(cut("한글"), "한 ##글");
  file.boolean("tokenizer.ggml.normalizer.lowercase", false);
  file.drop("tokenizer.ggml.normalizer.strip_accents");
  load(file.boolean("tokenizer.ggml.normalizer.strip_accents", true));
  EXPECT_EQ(cut("Hello caf\u00e9"), "Hello cafe");
}

TEST_F(WordPiece, PunctuationAndIdeographsAreWords) {
  EXPECT_EQ(cut("a$b+a-b."), "a $ b + a - b .");
  EXPECT_EQ(cut("hello。world"), "hello 。 world");
  EXPECT_EQ(cut("中文a中"), "中 文 a 中");
  EXPECT_EQ(cut("a\uf900a"), "a \u8c48 a") << "a compatibility ideograph decomposes";
  EXPECT_EQ(cut("€a €"), "€ ##a €") << "symbols beyond ASCII are letters of a word";
  EXPECT_EQ(cut("hello\U0002b820world"), "[UNK]") << "in Hugging Face's gap";
  EXPECT_EQ(cut("hello\U0002b920world"), "hello [UNK] world");
}

TEST_F(WordPiece, ControlsLeaveNothing) {
  using namespace std::string_view_literals;
  EXPECT_EQ(cut("he\u200bllo\0 wor\u00adld"sv), "hello world");
  EXPECT_EQ(cut("a\x0b\x0c\u0085"
                "b a\tb a\r\nb"),
            "a ##b a b a b");
  EXPECT_EQ(cut("a\u3000b a\u2028b a\u00a0b"), "a b a b a b");
  EXPECT_EQ(cut("\ufffda\ufffdb"), "a ##b");
  // Bytes that are no character stand for U+FFFD.
  EXPECT_EQ(cut("a\xff\x80"
                "b \xe4\xb8"),
            "a ##b");
  EXPECT_EQ(cut("a\xed\xa0\x80"
                "b"),
            "a ##b")
      << "a surrogate";
}

TEST_F(WordPiece, TheMarkMayBeAPieceItself) {
  EXPECT_EQ(cut("\u2581 a\u2581"), "\u2581 a ##\u2581");
}

TEST_F(WordPiece, SpecialTokensComeOnlyFromTrustedText) {
  EXPECT_EQ(cut("[CLS] a[MASK]"), "[ cls ] a [ mask ]");
  EXPECT_EQ(pieces(tokenizer_->encode("[CLS] a[MASK]", false, true)), "[CLS] a [MASK]");
  const Segment segments[] = {{"a[SEP]a", true}, {"b [SEP]", false}};
  EXPECT_EQ(pieces(tokenizer_->encode(segments, false)), "a [SEP] a ##b [ [UNK] ]");
}

TEST_F(WordPiece, PromptsStandBetweenClsAndSep) {
  EXPECT_EQ(pieces(tokenizer_->encode("hello", true, false)), "[CLS] hello [SEP]");
  EXPECT_EQ(pieces(tokenizer_->encode("", true, false)), "[CLS] [SEP]");
  EXPECT_EQ(tokenizer_->bos(), kClass);
  EXPECT_EQ(tokenizer_->eos(), kSeparator);
  EXPECT_TRUE(tokenizer_->adds_bos());
}

TEST_F(WordPiece, TheFileSaysWhatStandsAroundPrompts) {
  struct Case {
    std::optional<bool> bos, eos, separator;
    const char* expected;
  };
  constexpr auto kUnsaid = std::nullopt;
  const Case cases[] = {{true, true, false, "[CLS] a [SEP]"},  // as converters write today
                        {kUnsaid, kUnsaid, true, "[CLS] a [SEP]"},
                        {kUnsaid, false, true, "[CLS] a [SEP]"},
                        {kUnsaid, kUnsaid, false, "[CLS] a"},
                        {false, false, kUnsaid, "a"},
                        {false, false, false, "a"}};
  for (const Case& each : cases) {
    GgufBuilder file = bert_file();
    if (each.bos) file.boolean("tokenizer.ggml.add_bos_token", *each.bos);
    if (each.eos) file.boolean("tokenizer.ggml.add_eos_token", *each.eos);
    if (each.separator) file.boolean("tokenizer.ggml.add_sep_token", *each.separator);
    load(file);
    EXPECT_EQ(pieces(tokenizer_->encode("a", true, false)), each.expected);
  }
}

TEST_F(WordPiece, OldKeysAndBertsIdsAreKnown) {
  GgufBuilder old = bare_file();
  old.u32("tokenizer.ggml.cls_token_id", kClass).u32("tokenizer.ggml.eos_token_id", kSeparator);
  load(old.u32("tokenizer.ggml.unknown_token_id", kUnknown));
  EXPECT_EQ(pieces(tokenizer_->encode("x", true, false)), "[CLS] [UNK] [SEP]");

  std::vector<std::string> tokens;
  for (int i = 0; i < 110; ++i)
    tokens.push_back("\u2581" + std::to_string(i));
  GgufBuilder silent;
  silent.text("tokenizer.ggml.model", "bert").strings("tokenizer.ggml.tokens", tokens);
  load(silent);
  EXPECT_THAT(tokenizer_->encode("7 x", true, false), ElementsAre(101, 7, 100, 102));
}

TEST_F(WordPiece, PiecesHaveTheSpaceBeforeAWord) {
  const auto playing = ids("playing");
  ASSERT_EQ(playing.size(), 2U);
  EXPECT_EQ(tokenizer_->piece(playing[0]), " play");
  EXPECT_EQ(tokenizer_->piece(playing[1]), "ing");
  EXPECT_EQ(tokenizer_->vocabulary_text(playing[0]), "\u2581play");
  EXPECT_EQ(tokenizer_->piece(kClass), "");
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode("Playing, caf\u00e9!", true, false)),
            "playing cafe !");
}

TEST_F(WordPiece, AWordOfMoreThanAHundredCharactersIsUnknown) {
  EXPECT_EQ(ids(std::string(100, 'a')).size(), 100U);
  EXPECT_THAT(ids(std::string(101, 'a')), ElementsAre(kUnknown));
  std::string wide;
  for (int i = 0; i < 34; ++i)
    wide += "한";
  EXPECT_THAT(ids(wide), ElementsAre(kUnknown)) << "it decomposes to 102 characters";
  wide.resize(wide.size() - 3);
  EXPECT_THAT(ids(wide + "x y"), ElementsAre(kUnknown, kUnknown));
}

// A test whose time grows with the square of the text would be killed for its time.
TEST_F(WordPiece, AMegabyteOfAnythingIsCutAtOnce) {
  constexpr std::size_t kBytes = testing::kMegabyte;
  EXPECT_EQ(ids(megabyte_of("a")).size(), 1U);
  EXPECT_EQ(ids(megabyte_of("hello ")).size(), kBytes / 6 + 1);
  EXPECT_EQ(ids(megabyte_of("中")).size(), kBytes / 3 + 1);
  EXPECT_EQ(ids(megabyte_of("!")).size(), kBytes);
  for (const char* const none : {" ", "\xff", "\u0301", "\u200b"})
    EXPECT_EQ(ids(megabyte_of(none)).size(), 0U);
  EXPECT_EQ(ids(megabyte_of(std::string(99, 'b') + "x ")).size(), kBytes / 101 + 1);
}

TEST_F(WordPiece, ErrorsNameTheKey) {
  GgufBuilder none = bert_file();
  none.drop("tokenizer.ggml.unknown_token_id");
  EXPECT_THAT(tokenizer_error(none), HasSubstr("tokenizer.ggml.unknown_token_id is missing"));
  GgufBuilder beyond = bert_file();
  beyond.drop("tokenizer.ggml.unknown_token_id");
  EXPECT_THAT(tokenizer_error(beyond.u32("tokenizer.ggml.unknown_token_id", 999)),
              AllOf(HasSubstr("tokenizer.ggml.unknown_token_id is 999"), HasSubstr("56 tokens")));
  GgufBuilder start = bert_file();
  EXPECT_THAT(tokenizer_error(start.u32("tokenizer.ggml.cls_token_id", 60)),
              HasSubstr("tokenizer.ggml.cls_token_id is 60"));
  GgufBuilder separator = bert_file();
  separator.drop("tokenizer.ggml.seperator_token_id");
  EXPECT_THAT(tokenizer_error(separator), HasSubstr("tokenizer.ggml.eos_token_id is missing"));
}

TEST_F(WordPiece, InspectCountsItsTokens) {
  GgufBuilder made = bert_file();
  const std::string bytes = made.text("general.architecture", "none").bytes();
  const auto file = open_bytes(bytes);
  ASSERT_TRUE(file.ok());
  const auto text = describe(**file, false);
  ASSERT_TRUE(text.ok()) << text.error().message();
  EXPECT_THAT(*text, HasSubstr("tokenizer:    56 tokens"));
}

}  // namespace
}  // namespace bulkhead::model
