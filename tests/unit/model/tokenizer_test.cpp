#include "worker/model/tokenizer.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/tokenizer_check.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::model {
namespace {

using ::testing::ElementsAre;
using testing::open_bytes;

std::filesystem::path fixtures() {
  const char* set = std::getenv("BULKHEAD_FIXTURES");
  return set != nullptr ? std::filesystem::path(set)
                        : std::filesystem::path(BULKHEAD_SOURCE_DIR) / "../shared/fixtures";
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class TokenizerFixture : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = fixtures() / "tokenizers" / (std::string("ggml-vocab-") + GetParam() + ".gguf");
    if (!std::filesystem::exists(path_))
      GTEST_SKIP() << "no fixture " << path_ << "; set BULKHEAD_FIXTURES";
    auto file = GgufFile::open(path_.string());
    ASSERT_TRUE(file.ok()) << file.error().message();
    auto tokenizer = Tokenizer::from_gguf(**file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    tokenizer_ =
        *std::move(tokenizer);  // the file is destroyed, because the tokenizer keeps nothing of it
  }
  std::filesystem::path path_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerFixture, GivesTheKnownIds) {
  const std::string inputs = read_file(path_.string() + ".inp");
  std::istringstream outputs(read_file(path_.string() + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  int cases = 0;
  for (std::size_t at = 0; at < inputs.size(); ++cases) {
    const std::size_t end = inputs.find(separator, at);
    ASSERT_NE(end, std::string::npos);
    const std::string text = inputs.substr(at, end - at);
    at = end + separator.size();
    std::string wanted;
    ASSERT_TRUE(std::getline(outputs, wanted));
    std::string got;
    const auto ids = tokenizer_->encode(text, false, false);
    for (const TokenId id : ids)
      got += " " + std::to_string(id);
    EXPECT_EQ(got, wanted) << text;
    EXPECT_EQ(tokenizer_->decode(ids), text);
  }
  EXPECT_EQ(cases, 46);
}

TEST_P(TokenizerFixture, AnyBytesComeBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    const bool valid = round % 2 == 0;
    for (int i = 0; i < 40; ++i) {
      static constexpr char32_t kLimits[] = {0x80, 0x80, 0x800, 0x3000, 0xD800, 0x20000};
      if (valid)
        append_utf8(text, random() % kLimits[random() % std::size(kLimits)]);
      else
        text += static_cast<char>(random());
    }
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, false, false)), text)
        << "round " << round;
  }
}

TEST_P(TokenizerFixture, LongTextTokenizesAsItsWords) {
  // Beyond the size for which the word cache is used, the same sentence must give the same ids each time.
  const std::string line = " The quick brown fox, 1234 jumps\n";
  const auto once = tokenizer_->encode(line + "x", false, false);
  std::string text;
  for (int i = 0; i < 4000; ++i)
    text += line;
  const auto all = tokenizer_->encode(text, false, false);
  const auto half = tokenizer_->encode(text.substr(0, text.size() / 4000 * 1000), false, false);
  ASSERT_GT(all.size(), half.size());
  EXPECT_TRUE(std::equal(half.begin(), half.end() - 1, all.begin()));
  EXPECT_EQ(tokenizer_->decode(all), text);
  EXPECT_GT(once.size(), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFixture,
                         ::testing::Values("gpt-2", "qwen2", "llama-bpe", "llama-spm"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::erase(name, '-');
                           return name;
                         });

std::unique_ptr<Tokenizer> byte_level(std::vector<std::string> extra,
                                      std::vector<std::string> merges) {
  testing::GgufBuilder file;
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::string text;
    append_utf8(text, printable ? byte : next++);
    tokens.push_back(text);
    types.push_back(1);
  }
  for (auto& each : extra) {
    types.push_back(each.starts_with("<|") ? 3 : each.starts_with("<") ? 4 : 1);
    tokens.push_back(std::move(each));
  }
  file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2");
  file.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", merges);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  const std::string bytes = file.bytes();
  auto opened = open_bytes(bytes);
  if (!opened.ok()) return nullptr;
  auto tokenizer = Tokenizer::from_gguf(**opened);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(Tokenizer, SpecialTokensOnlyWhereTheSegmentAllows) {
  const auto t = byte_level({"<|im_start|>", "<|im_end|>", "<tool>"}, {});
  ASSERT_NE(t, nullptr);
  EXPECT_THAT(t->encode("a<|im_end|>b", false, true), ElementsAre('a' - 0x21U + 33U, 257U, 'b'));
  EXPECT_EQ(t->encode("<|im_end|>", false, false).size(), 10U);
  // User-defined tokens are recognised everywhere.
  EXPECT_THAT(t->encode("<tool>", false, false), ElementsAre(258U));
  const Segment segments[] = {
      {"<|im_start|>", true}, {"<|im_", false}, {"end|>", false}, {"<|im_end|>", true}};
  const auto ids = t->encode(segments, false);
  ASSERT_EQ(ids.size(), 12U);
  EXPECT_EQ(ids.front(), 256U);
  EXPECT_EQ(ids.back(), 257U);
  EXPECT_TRUE(t->ends_generation(257));
  EXPECT_FALSE(t->ends_generation(256));
  EXPECT_TRUE(t->is_control(256));
  EXPECT_EQ(t->piece(256), "");
  EXPECT_EQ(t->vocabulary_text(256), "<|im_start|>");
}

TEST(Tokenizer, AnswersOfChannelsGoOnAfterAMessage) {
  const auto plain = byte_level({"<|end|>", "<|return|>"}, {});
  ASSERT_NE(plain, nullptr);
  EXPECT_TRUE(plain->ends_generation(256));
  const auto harmony = byte_level({"<|end|>", "<|return|>", "<|call|>"}, {});
  ASSERT_NE(harmony, nullptr);
  EXPECT_FALSE(harmony->ends_generation(256)) << "it closes one message";
  EXPECT_TRUE(harmony->ends_generation(257));
  EXPECT_TRUE(harmony->ends_generation(258));
  // Solar Open closes its reasoning with the same token.
  const auto solar = byte_level({"<|end|>", "<|flush|>", "<|calls|>"}, {});
  ASSERT_NE(solar, nullptr);
  EXPECT_FALSE(solar->ends_generation(256));
  EXPECT_TRUE(solar->ends_generation(257));
  EXPECT_TRUE(solar->ends_generation(258));
  const auto calls = byte_level({"<|end|>", "<|flush|>"}, {});
  ASSERT_NE(calls, nullptr);
  EXPECT_TRUE(calls->ends_generation(256));
}

TEST(Tokenizer, GemmasTurnsEnd) {
  const auto t = byte_level({"<turn|>", "<turn>"}, {});
  ASSERT_NE(t, nullptr);
  EXPECT_TRUE(t->ends_generation(256));
  EXPECT_TRUE(t->is_control(256)) << "a user's text must not end a turn";
  EXPECT_FALSE(t->ends_generation(257));
}

TEST(Tokenizer, TextOfNeighbouringSegmentsIsOneRun) {
  const auto t = byte_level({"ab"}, {"a b"});
  ASSERT_NE(t, nullptr);
  const Segment segments[] = {{"a", true}, {"b", false}};
  EXPECT_THAT(t->encode(segments, false), ElementsAre(256U));
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const auto t = byte_level({"aa", "ab"}, {"a b", "a a"});
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->decode(t->encode("aab", false, false)), "aab");
  EXPECT_THAT(t->encode("aab", false, false), ElementsAre('a', 257U));
  EXPECT_THAT(t->encode("aaa", false, false), ElementsAre(256U, 'a'));
}

TEST(Tokenizer, AMergeToNoTokenFallsBackToBytes) {
  const auto t = byte_level({}, {"a b"});
  ASSERT_NE(t, nullptr);
  EXPECT_THAT(t->encode("ab", false, false), ElementsAre('a', 'b'));
}

// A file whose merges are of characters. `byte_type`: of the tokens that stand for bytes.
testing::GgufBuilder file_of_characters(std::int32_t byte_type) {
  testing::GgufBuilder file;
  std::vector<std::string> tokens{"<pad>",   "<eos>",    "<bos>", "a",    "b",      "\u2581",
                                  "\u2581a", "\u2581ab", "\n",    "\n\n", "\u00e9", "b\u00e9"};
  std::vector<std::int32_t> types{3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.emplace_back(text);
    types.push_back(byte_type);
  }
  file.strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  file.strings("tokenizer.ggml.merges",
               {"b \u00e9", "\u2581 a", "\u2581a b", "\n \n", "\u2581 \u2581"});
  file.u32("tokenizer.ggml.bos_token_id", 2).u32("tokenizer.ggml.eos_token_id", 1);
  return file;
}

// Files of Granite's multilingual encoders call such a vocabulary byte-level BPE.
TEST(Tokenizer, MergesOfCharactersMayBeCalledByteLevel) {
  constexpr std::int32_t kNormal = 1;
  testing::GgufBuilder file = file_of_characters(kNormal);
  file.text("tokenizer.ggml.model", "gpt2");
  file.text("tokenizer.ggml.pre", "granite-embed-multi-311m");
  file.boolean("tokenizer.ggml.add_eos_token", true);
  const std::string bytes = file.bytes();
  const auto gguf = open_bytes(bytes);
  ASSERT_TRUE(gguf.ok());
  ASSERT_TRUE(check_tokenizer(**gguf).ok());
  const auto tokenizer = Tokenizer::from_gguf(**gguf);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const TokenId byte0 = 12;
  EXPECT_THAT((*tokenizer)->encode("a ab\nz", true, false),
              ElementsAre(2, 3, 7, 8, byte0 + 'z', 1));
}

TEST(Tokenizer, GemmasMergeCharactersOfLinesAfterABos) {
  constexpr std::int32_t kByte = 6;
  testing::GgufBuilder file = file_of_characters(kByte);
  file.text("tokenizer.ggml.model", "gemma4");
  file.numbers("tokenizer.ggml.suppress_tokens", ValueType::kInt32,
               std::vector<std::int32_t>{4, -1, 3, 4, 5'000});
  // Some converters have written this, but the model writes nonsense without a BOS.
  file.boolean("tokenizer.ggml.add_bos_token", false);
  const std::string bytes = file.bytes();
  const auto gguf = open_bytes(bytes);
  ASSERT_TRUE(gguf.ok());
  const auto tokenizer = Tokenizer::from_gguf(**gguf);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const Tokenizer& t = **tokenizer;
  const auto ids = [&t](std::string_view text) { return t.encode(text, false, false); };
  EXPECT_THAT(t.forbidden(), ElementsAre(3, 4));
  const TokenId byte0 = 12;
  EXPECT_THAT(ids("a ab"), ElementsAre(3, 7));
  // The merge with the lower rank comes first: "b" joins what follows it.
  EXPECT_THAT(ids(" ab\u00e9"), ElementsAre(6, 11));
  EXPECT_THAT(ids("a\n\nb"), ElementsAre(3, 9, 4));
  EXPECT_THAT(ids("\n\n\n"), ElementsAre(9, 8));
  // A character without a token becomes bytes, and so does a merge that makes no token.
  EXPECT_THAT(ids("z"), ElementsAre(byte0 + 'z'));
  EXPECT_THAT(ids("\u4e2d"), ElementsAre(byte0 + 0xE4, byte0 + 0xB8, byte0 + 0xAD));
  EXPECT_EQ(t.decode(ids("a  ab\n\u4e2d\xff b")), "a  ab\n\u4e2d\xff b");
  EXPECT_THAT(t.encode("a", true, false), ElementsAre(2, 3));
}

TEST(Tokenizer, GemmasHtmlTagEndsNoAnswer) {
  for (const bool tags : {true, false}) {
    const auto tokenizer =
        byte_level({"</s>", "<|im_end|>", tags ? "<|tool_response>" : "<|x|>"}, {});
    EXPECT_EQ(tokenizer->ends_generation(256), !tags);
    EXPECT_EQ(tokenizer->is_control(256), !tags);
    EXPECT_TRUE(tokenizer->ends_generation(257));
    EXPECT_EQ(tokenizer->ends_generation(258), tags) << "the client answers a call";
  }
}

TEST(Utf8Assembler, HoldsAnEmojiUntilItsFourthByte) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.push("a\xF0"), "a");
  EXPECT_EQ(assembler.push("\x9F"), "");
  EXPECT_EQ(assembler.push("\x98"), "");
  EXPECT_EQ(assembler.push("\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(assembler.finish(), "");
}

TEST(Utf8Assembler, ReleasesWhatCannotBecomeACharacter) {
  const std::string bad = "\xEF\xBF\xBD";
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.push("\x80"), bad);  // no character starts with this byte
  EXPECT_EQ(assembler.push("\xC0"), bad);  // overlong, which is known at once
  EXPECT_EQ(assembler.push("\xE0"), "");
  EXPECT_EQ(assembler.push("\x80"), bad + bad);  // overlong, which the second byte shows
  EXPECT_EQ(assembler.push("\xED\xA0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(assembler.push("\xF4\x90"), bad + bad);            // past U+10FFFF
  EXPECT_EQ(assembler.push("\xE2\x82"
                           "a"),
            bad + "a");  // a character that was cut off counts as one
  EXPECT_EQ(assembler.push("\xF0\x9F"), "");
  EXPECT_EQ(assembler.finish(), bad);
  EXPECT_EQ(assembler.finish(), "");
}

}  // namespace
}  // namespace bulkhead::model
