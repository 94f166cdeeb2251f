// The expected pieces are those of the library SentencePiece with the same vocabulary and table.
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "tests/unit/model/made_tokenizer_test.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

using ::testing::AllOf;
using testing::CharRules;
using testing::charsmap;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::megabyte_of;
using testing::tokenizer_error;
using testing::tokenizer_of;

struct Entry {
  const char* text;
  float score;
  std::int32_t type = 1;
};
using Entries = std::vector<Entry>;

const Entries kEntries = {{"<s>", 0, 3},
                          {"<pad>", 0, 3},
                          {"</s>", 0, 3},
                          {"<unk>", 0, 2},
                          {"\u2581", -2},
                          {"\u2581hello", -3},
                          {"\u2581hel", -2.5F},
                          {"lo", -2},
                          {"\u2581world", -4},
                          {"a", -5},
                          {"b", -5.25F},
                          {"c", -5.5F},
                          {"d", -5.75F},
                          {"abc", -6},
                          {"ab", -3},
                          {"cd", -3},
                          {"\u2581a", -4.5F},
                          {"\u00e9", -6.5F},
                          {"fi", -6.25F},
                          {"世界", -7},
                          {"\u2581unused", 0, 5},
                          {"\u2581\u2581", -3.5F}};
constexpr TokenId kStart = 0, kEnd = 2, kNoPiece = 3;

const CharRules kRules = {{"A", "a"},       {"\t", " "},    {"\u3000", " "},  {"e\u0301", "\u00e9"},
                          {"\ufb01", "fi"}, {"\u200b", ""}, {"\u3001", " , "}};

GgufBuilder unigram_file(const Entries& entries = kEntries,
                         const std::string& map = charsmap(kRules)) {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  for (const Entry& entry : entries) {
    tokens.emplace_back(entry.text);
    scores.push_back(entry.score);
    types.push_back(entry.type);
  }
  GgufBuilder file;
  file.text("tokenizer.ggml.model", "t5").strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.scores", ValueType::kFloat32, scores);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  file.u32("tokenizer.ggml.bos_token_id", kStart).u32("tokenizer.ggml.eos_token_id", kEnd);
  file.u32("tokenizer.ggml.unknown_token_id", kNoPiece);
  file.boolean("tokenizer.ggml.add_bos_token", true);
  file.boolean("tokenizer.ggml.add_space_prefix", true);
  file.boolean("tokenizer.ggml.remove_extra_whitespaces", true);
  file.numbers("tokenizer.ggml.precompiled_charsmap", ValueType::kUint8,
               std::vector<std::uint8_t>(map.begin(), map.end()));
  return file;
}

GgufBuilder with_spaces(bool prefix, bool merges) {
  GgufBuilder file = unigram_file();
  file.drop("tokenizer.ggml.add_space_prefix");
  file.drop("tokenizer.ggml.remove_extra_whitespaces");
  file.boolean("tokenizer.ggml.add_space_prefix", prefix);
  file.boolean("tokenizer.ggml.remove_extra_whitespaces", merges);
  return file;
}

class Unigram : public testing::MadeTokenizerTest {
 protected:
  void SetUp() override { load(unigram_file()); }
  // Returns the pieces with _ for U+2581.
  std::string pieces(const std::vector<TokenId>& ids) const {
    std::string joined;
    for (const TokenId id : ids) {
      std::string piece(tokenizer_->vocabulary_text(id));
      for (std::size_t at = 0; (at = piece.find("\u2581", at)) != piece.npos;)
        piece.replace(at, 3, "_");
      joined += (joined.empty() ? "" : " ") + piece;
    }
    return joined;
  }
  std::string cut(std::string_view text) const { return pieces(ids(text)); }
};

TEST_F(Unigram, TakesTheBestSumOfScores) {
  EXPECT_EQ(cut("hello world"), "_hello _world");
  EXPECT_EQ(cut("abc"), "_ abc");
  EXPECT_EQ(cut("abcd"), "_ ab cd") << "abc is longer, but d costs more than cd";
  EXPECT_EQ(cut("世界hello"), "_ 世界 <unk> lo");
}

TEST_F(Unigram, NeighbouringUnknownCharactersAreOneToken) {
  EXPECT_EQ(cut("xyz"), "_ <unk>");
  EXPECT_EQ(cut("x hello yz"), "_ <unk> _hello _ <unk>");
  EXPECT_EQ(cut("ax xa"), "_a <unk> _ <unk> a");
  EXPECT_EQ(cut("unused"), "_ <unk> d") << "a piece that the file calls unused";
}

TEST_F(Unigram, NormalisesByTheFilesTable) {
  EXPECT_EQ(cut("Abcd AB"), "_ ab cd _a <unk>");
  EXPECT_EQ(cut("e\u0301\u00e9"), "_ \u00e9 \u00e9");
  EXPECT_EQ(cut("e"), "_ <unk>") << "the table has it only with an accent";
  EXPECT_EQ(cut("\ufb01a"), "_ fi a");
  EXPECT_EQ(cut("a\u200bb"), "_ ab");
  EXPECT_EQ(cut("hello\tworld\u3000a"), "_hello _world _a");
  EXPECT_EQ(cut("a\u3001b"), "_a _ <unk> _ b");
  load(unigram_file(kEntries, ""));
  EXPECT_EQ(cut("A a"), "_ <unk> _a");
}

TEST_F(Unigram, BadBytesAreUnknownCharacters) {
  EXPECT_EQ(cut("a\xff\xe4\xb8 a"), "_a <unk> _a");
  EXPECT_EQ(cut("\xed\xa0\x80"), "_ <unk>");
  Entries entries = kEntries;
  entries.push_back({"\ufffd", -3});
  load(unigram_file(entries));
  EXPECT_EQ(cut("a\xc0\xaf"), "_a \ufffd \ufffd") << "each bad byte becomes a token of its own";
}

TEST_F(Unigram, SpacesAreMergedAndOneStandsInFront) {
  EXPECT_EQ(cut("  hello   world "), "_hello _world");
  EXPECT_EQ(cut("a\u2581b"), "_a _ b");
  EXPECT_EQ(cut("\u2581\u2581hello"), "__ _hello");
  for (const char* const nothing : {"", "   ", "\u200b", "\u2581"})
    EXPECT_EQ(cut(nothing), "");
}

TEST_F(Unigram, TheFileSaysWhatBecomesOfSpaces) {
  load(with_spaces(true, false));
  EXPECT_EQ(cut("  hello   world "), "__ _hello __ _world _");
  EXPECT_EQ(cut("\u200b a"), "_ _a");
  EXPECT_EQ(cut(""), "");
  load(with_spaces(false, true));
  EXPECT_EQ(cut("  hello   world "), "<unk> lo _world");
  EXPECT_EQ(cut("\u200b a"), "a");
  load(with_spaces(false, false));
  EXPECT_EQ(cut("  hello   world "), "_ _hello __ _world _");
  EXPECT_EQ(cut("\u200b a"), "_a");
}

TEST_F(Unigram, APieceMayGoOnAfterASpace) {
  Entries entries = kEntries;
  entries.push_back({"d\u2581a", -1});
  load(unigram_file(entries));
  EXPECT_EQ(cut("Abcd AB"), "_ abc d_a <unk>");
  EXPECT_EQ(cut("abcd ab"), "_ ab cd _ ab");
  EXPECT_EQ(cut("d  a"), "_ d_a");
}

TEST_F(Unigram, PromptsAndSpecialTokens) {
  EXPECT_EQ(pieces(tokenizer_->encode("a", true, false)), "<s> _a </s>");
  EXPECT_EQ(cut("</s>"), "_ <unk>") << "a user's text is text";
  const Segment segments[] = {{"a</s>a", true}, {"b</s>", false}};
  EXPECT_EQ(pieces(tokenizer_->encode(segments, false)), "_a </s> _ ab <unk>");
  GgufBuilder file = unigram_file();
  load(file.boolean("tokenizer.ggml.add_eos_token", false));
  EXPECT_EQ(pieces(tokenizer_->encode("a", true, false)), "<s> _a");
}

TEST_F(Unigram, PiecesGiveTheTextBack) {
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode("hello  world abcd", true, false)),
            "hello world abcd");
  EXPECT_EQ(tokenizer_->piece(5), " hello");
  EXPECT_EQ(tokenizer_->piece(kNoPiece), "");
}

// A test whose time grows with the square of the text would be killed for its time.
TEST_F(Unigram, AMegabyteOfAnythingIsCutAtOnce) {
  constexpr std::size_t kBytes = testing::kMegabyte;
  EXPECT_EQ(ids(megabyte_of("hello ")).size(), kBytes / 6 + 1);
  EXPECT_EQ(ids(megabyte_of("ab")).size(), kBytes / 2 + 1);
  EXPECT_EQ(ids(megabyte_of("x")).size(), 2U);
  EXPECT_EQ(ids(megabyte_of("\xff")).size(), 2U);
  for (const char* const none : {" ", "\t", "\u200b"})
    EXPECT_EQ(ids(megabyte_of(none)).size(), 0U);
}

TEST_F(Unigram, ErrorsNameTheKey) {
  GgufBuilder scores = unigram_file();
  scores.drop("tokenizer.ggml.scores");
  EXPECT_THAT(tokenizer_error(scores), HasSubstr("tokenizer.ggml.scores is missing"));
  GgufBuilder unknown = unigram_file();
  unknown.drop("tokenizer.ggml.unknown_token_id");
  EXPECT_THAT(tokenizer_error(unknown.u32("tokenizer.ggml.unknown_token_id", 99)),
              HasSubstr("tokenizer.ggml.unknown_token_id is 99"));
  Entries entries = kEntries;
  const std::string long_piece(257, 'a');
  entries.push_back({long_piece.c_str(), -1});
  EXPECT_THAT(tokenizer_error(unigram_file(entries)),
              AllOf(HasSubstr("token 22"), HasSubstr("257")));
}

TEST_F(Unigram, ADamagedTableIsRefusedOrDoesNoHarm) {
  const auto error = [](const std::string& map) {
    return tokenizer_error(unigram_file(kEntries, map));
  };
  const std::string map = charsmap(kRules);
  EXPECT_THAT(error("ab"), HasSubstr("precompiled_charsmap is cut off"));
  EXPECT_THAT(error(map.substr(0, 1000)), HasSubstr("cut off"));
  EXPECT_THAT(error(std::string(4, '\0') + "a"), HasSubstr("cut off"));
  EXPECT_THAT(error(map + "a"), HasSubstr("zero byte"));
  EXPECT_THAT(error(charsmap({{"a", std::string(257, 'b')}})), HasSubstr("more than 256"));
  // Units that point beyond the table, and a table without its replacements, change nothing.
  const std::size_t size = map.size() - map.substr(map.rfind(" , ")).size();
  std::string wild = map;
  for (std::size_t at = 4 + 1024; at + 64 < size; at += 4)
    wild[at + 2] = '\x7f';
  const std::string bare = charsmap({{"A", ""}});
  for (const std::string& bad : {wild, bare.substr(0, bare.size() - 1)}) {
    load(unigram_file(kEntries, bad));
    EXPECT_EQ(cut("b A"), "_ b _ <unk>");
  }
}

}  // namespace
}  // namespace bulkhead::model
