#include "worker/model/tokenizer.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/pre_tokenizer.hpp"
#include "worker/model/tokenizer_check.hpp"
#include "worker/model/tokenizer_json.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

TEST(Tokenizer, AnswersOfChannelsGoOnBehindAMessage) {
  const auto plain = byte_level({"<|end|>", "<|return|>"}, {});
  ASSERT_NE(plain, nullptr);
  EXPECT_TRUE(plain->ends_generation(256));
  const auto harmony = byte_level({"<|end|>", "<|return|>", "<|call|>"}, {});
  ASSERT_NE(harmony, nullptr);
  EXPECT_FALSE(harmony->ends_generation(256)) << "it closes one message";
  EXPECT_TRUE(harmony->ends_generation(257));
  EXPECT_TRUE(harmony->ends_generation(258));
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

std::vector<std::string> words(const char* rule, std::string_view text) {
  const auto info = find_pre_tokenizer(rule);
  EXPECT_TRUE(info.ok()) << rule;
  if (!info.ok()) return {};
  WordSplitter splitter(*info, text);
  std::vector<std::string> out;
  for (auto word = splitter.next(); !word.empty(); word = splitter.next())
    out.emplace_back(word);
  return out;
}

TEST(PreTokenizer, CutsAsItsRegularExpressionDoes) {
  EXPECT_THAT(words("gpt-2", "I'll go  to 12345!\n\n x"),
              ElementsAre("I", "'ll", " go", " ", " to", " 12345", "!", "\n\n", " x"));
  EXPECT_THAT(words("llama-bpe", "I'LL go  to 12345!!\n\n x"),
              ElementsAre("I", "'LL", " go", " ", " to", " ", "123", "45", "!!\n\n", " x"));
  EXPECT_THAT(words("qwen2", "a 12  \n  b\t(c"),
              ElementsAre("a", " ", "1", "2", "  \n", " ", " b", "\t", "(c"));
  EXPECT_THAT(words("default", "a+b 1234 $x"),
              ElementsAre("a", "+", "b", " ", "123", "4", " ", "$", "x"));
  EXPECT_THAT(words("smollm", "ab 12"), ElementsAre("ab", " ", "1", "2"));
  EXPECT_THAT(words("refact", "ab 12"), ElementsAre("ab", " ", "1", "2"));
  EXPECT_THAT(words("glm4", "I'LL 12345!!\n"), ElementsAre("I", "'LL", " ", "123", "45", "!!\n"));
}

TEST(PreTokenizer, CutsByExpressions) {
  // A mark (U+0301) stays with its letter; elsewhere it is a symbol.
  EXPECT_THAT(words("qwen35", "He'S e\u0301a 12!\n x"),
              ElementsAre("He", "'S", " e\u0301a", " ", "1", "2", "!\n", " x"));
  EXPECT_THAT(words("qwen2", "e\u0301a"), ElementsAre("e", "\u0301a"));
  EXPECT_THAT(
      words("gpt-4o", "HTTPServer isn't 12345 //\n\n  \u00c9t\u00e9"),
      ElementsAre("HTTPServer", " isn't", " ", "123", "45", " //\n\n", " ", " \u00c9t\u00e9"));
  EXPECT_THAT(words("gpt-4o", "camelCase WORD\u4e2d\u6587"),
              ElementsAre("camel", "Case", " WORD\u4e2d\u6587"));
  EXPECT_THAT(words("tekken", "isn't camelCase 123 /\n"),
              ElementsAre("isn", "'t", " camel", "Case", " ", "1", "2", "3", " /\n"));
  EXPECT_THAT(words("deepseek-v3", "x=1234 \u4e2d\u6587\u3042.abc  (y)\n\n z"),
              ElementsAre("x", "=", "123", "4", " ", "\u4e2d\u6587\u3042", ".abc", " ", " (", "y",
                          ")\n\n", " z"));
  EXPECT_THAT(words("deepseek-coder", "a 12,b\n"), ElementsAre("a", " ", "1", "2", ",", "b", "\n"));
  EXPECT_TRUE(find_pre_tokenizer("tekken")->adds_bos);
  EXPECT_TRUE(find_pre_tokenizer("tekken")->whole_words_first);
}

TEST(PreTokenizer, CutsAsEachMakerDoes) {
  // DeepSeek's first vocabulary: each expression cuts the pieces of the earlier ones. The range of the punctuation's
  // expression, from ':' to '~', contains the letters, so it cuts words with accents.
  EXPECT_THAT(words("deepseek-llm", "It's 12 word (\u4e2d\u6587)\n\n  x  "),
              ElementsAre("It", "'", "s", " ", "1", "2", " word", " (", "\u4e2d\u6587", ")", "\n",
                          "\n", " ", " x", "  "));
  EXPECT_THAT(words("deepseek-llm", " \u00c9t\u00e9 \u043d\u0435\u0442"),
              ElementsAre(" \u00c9", "t", "\u00e9", " \u043d\u0435\u0442"));
  EXPECT_THAT(words("deepseek-llm", "\u0531\u0561"), ElementsAre("\u0531", "\u0561"))
      << "its table of letters has no small Armenian ones";
  EXPECT_THAT(words("falcon", "a`+b 1234 it's"),
              ElementsAre("a", "`+", "b", " ", "123", "4", " it", "'", "s"));
  EXPECT_THAT(words("bloom", "Hello, you 12.\n\u060c x"),
              ElementsAre("Hello", ",", " you", " 12", ".\n\u060c", " x"));
  EXPECT_THAT(words("viking", "Hei, 12"), ElementsAre("Hei", ",", " ", "1", "2"));
  EXPECT_THAT(words("kimi-k2", "x\u4e2d\u6587Ab isn't 1234 //\n"),
              ElementsAre("x", "\u4e2d\u6587", "Ab", " isn't", " ", "123", "4", " //\n"));
  EXPECT_THAT(words("youtu", "aB\uac00\u4e2d\uff0c 12"),
              ElementsAre("a", "B", "\uac00", "\u4e2d", "\uff0c", " ", "1", "2"));
  EXPECT_THAT(words("seed-coder", "a;\n\nb 12"), ElementsAre("a", ";", "\n\n", "b", " ", "1", "2"));
  EXPECT_THAT(words("qwen2", "a;\n\nb"), ElementsAre("a", ";\n\n", "b"));
  EXPECT_THAT(words("bailingmoe2", "I'LL 12;\n\n x"),
              ElementsAre("I", "'LL", " ", "1", "2", ";\n\n", " x"));
  EXPECT_THAT(words("minimax-m2", "camelCase 1234"), ElementsAre("camel", "Case", " ", "123", "4"));
  EXPECT_THAT(words("mellum", "it's 123"), ElementsAre("it", "'s", " 123"));
  EXPECT_THAT(words("grok-2", "I'LL 12"), ElementsAre("I", "'LL", " ", "1", "2"));
  EXPECT_FALSE(find_pre_tokenizer("kimi-k2")->whole_words_first);
  EXPECT_TRUE(find_pre_tokenizer("youtu")->whole_words_first);
  EXPECT_TRUE(find_pre_tokenizer("falcon-h1")->adds_bos);
}

// For a text of one kind of character an expression looks far ahead, but must not do so again and again.
TEST(PreTokenizer, CutsLongRuns) {
  for (const char* rule : {"qwen35", "gpt-4o", "tekken", "deepseek-v3", "deepseek-llm", "falcon",
                           "bloom", "viking", "kimi-k2", "youtu", "seed-coder"}) {
    for (const char* piece : {"A", "a", " ", "\n", "\u4e2d", "!", "\xff"}) {
      std::string text;
      for (int i = 0; i < 100'000; ++i)
        text += piece;
      std::size_t bytes = 0;
      for (const std::string& word : words(rule, text + "a"))
        bytes += word.size();
      EXPECT_EQ(bytes, text.size() + 1) << rule;
    }
  }
}

TEST(PreTokenizer, TakesNoBrokenOrEndlessExpression) {
  EXPECT_FALSE(Expressions::compile(std::vector<std::string>{"a(b"}).ok());
  EXPECT_FALSE(Expressions::compile(std::vector<std::string>{std::string(100'000, 'a')}).ok());
  const auto empty = Expressions::compile(std::vector<std::string>{"x*"});
  ASSERT_TRUE(empty.ok());
  ExpressionSplitter splitter(**empty, "axxb");
  EXPECT_EQ(splitter.next(), "a");
  EXPECT_EQ(splitter.next(), "xx");
  EXPECT_EQ(splitter.next(), "b");
  EXPECT_EQ(splitter.next(), "");
  const auto endless = Expressions::compile(std::vector<std::string>{"(a|a|aa)+$"});
  ASSERT_TRUE(endless.ok());
  const std::string text = std::string(5'000, 'a') + "b";
  ExpressionSplitter stopped(**endless, text);
  std::string joined;
  for (auto piece = stopped.next(); !piece.empty(); piece = stopped.next())
    joined += piece;
  EXPECT_EQ(joined, text);
}

TEST(PreTokenizer, KeepsEveryByte) {
  std::mt19937 random(3);
  for (const char* rule : {"gpt-2", "llama-bpe", "qwen2", "default", "smollm", "qwen35", "gpt-4o",
                           "tekken", "deepseek-v3", "deepseek-coder", "deepseek-llm", "falcon",
                           "bloom", "viking", "kimi-k2", "youtu", "seed-coder"}) {
    for (int round = 0; round < 200; ++round) {
      std::string text;
      for (int i = 0; i < 30; ++i)
        text += "a1 '\n\t$.\xE2\x80\xFF\xC2\xA0z"[random() % 15];
      std::string joined;
      for (const auto& word : words(rule, text))
        joined += word;
      EXPECT_EQ(joined, text) << rule;
    }
  }
  EXPECT_FALSE(find_pre_tokenizer("no-such").ok());
}

std::string tokenizer_json(const std::string& steps) {
  return R"({"version": "1.0", "added_tokens": [{"id": 1}], "pre_tokenizer": )" + steps +
         R"(, "model": {"type": "BPE", "ignore_merges": true, "vocab": {"a": 0}, "merges": [["a", "b"]]}})";
}

TEST(PreTokenizer, TakesAFilesOwnExpressions) {
  const auto info = pre_tokenizer_of_json(tokenizer_json(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{N}{1,2}"}, "behavior": "Isolated", "invert": false},
      {"type": "Split", "pattern": {"String": "+."}, "behavior": "Isolated", "invert": false},
      {"type": "Digits", "individual_digits": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]})"));
  ASSERT_TRUE(info.ok()) << info.error().message();
  EXPECT_TRUE(info->whole_words_first);
  EXPECT_FALSE(info->adds_bos);
  WordSplitter splitter(*info, "it's 1234+.b");
  std::vector<std::string> out;
  for (auto word = splitter.next(); !word.empty(); word = splitter.next())
    out.emplace_back(word);
  EXPECT_THAT(out, ElementsAre("it", "'s", " ", "12", "34", "+.", "b"));
}

TEST(PreTokenizer, RefusesByNameWhatAFilesOwnStepsAskFor) {
  const auto says = [](const std::string& steps) {
    const auto info = pre_tokenizer_of_json(tokenizer_json(steps));
    return info.ok() ? std::string("ok") : info.error().message();
  };
  EXPECT_THAT(says(R"({"type": "Metaspace"})"), HasSubstr("Metaspace"));
  EXPECT_THAT(says(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"})"),
              HasSubstr("Removed"));
  EXPECT_THAT(says(R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})"),
              HasSubstr("(a"));
  EXPECT_THAT(says(R"({"type": "ByteLevel", "add_prefix_space": true})"), HasSubstr("space"));
  EXPECT_THAT(says("null"), HasSubstr("no pre_tokenizer"));
  EXPECT_THAT(says("[1, 2"), HasSubstr("no JSON"));
  EXPECT_FALSE(pre_tokenizer_of_json("").ok());
}

// The name is unknown, but the file has the expressions.
TEST(PreTokenizer, AnUnknownNameNeedsTheFilesOwnExpressions) {
  for (const bool given : {false, true}) {
    testing::GgufBuilder file;
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "made-up");
    if (given)
      file.text("tokenizer.huggingface.json",
                tokenizer_json(R"({"type": "Digits", "individual_digits": true})"));
    std::vector<std::string> tokens{"a", "1", "11"};
    file.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", {"1 1"});
    const std::string bytes = file.bytes();
    const auto gguf = open_bytes(bytes);
    ASSERT_TRUE(gguf.ok());
    const auto tokenizer = Tokenizer::from_gguf(**gguf);
    ASSERT_EQ(tokenizer.ok(), given);
    ASSERT_EQ(check_tokenizer(**gguf).ok(), given);
    if (!given) {
      EXPECT_EQ(check_tokenizer(**gguf).error().message(), tokenizer.error().message());
      EXPECT_THAT(tokenizer.error().message(), HasSubstr("made-up"));
    } else {
      EXPECT_THAT((*tokenizer)->encode("a11", false, false), ElementsAre(0, 1, 1));
    }
  }
}

TEST(Tokenizer, GemmasMergeCharactersOfLines) {
  testing::GgufBuilder file;
  std::vector<std::string> tokens{"<pad>",   "<eos>",    "<bos>", "a",    "b",      "\u2581",
                                  "\u2581a", "\u2581ab", "\n",    "\n\n", "\u00e9", "b\u00e9"};
  std::vector<std::int32_t> types{3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.emplace_back(text);
    types.push_back(6);
  }
  file.text("tokenizer.ggml.model", "gemma4").strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  file.strings("tokenizer.ggml.merges",
               {"b \u00e9", "\u2581 a", "\u2581a b", "\n \n", "\u2581 \u2581"});
  file.u32("tokenizer.ggml.bos_token_id", 2).u32("tokenizer.ggml.eos_token_id", 1);
  const std::string bytes = file.bytes();
  const auto gguf = open_bytes(bytes);
  ASSERT_TRUE(gguf.ok());
  const auto tokenizer = Tokenizer::from_gguf(**gguf);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const Tokenizer& t = **tokenizer;
  const auto ids = [&t](std::string_view text) { return t.encode(text, false, false); };
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

// Phi-3's tokens between turns take the line break that its template writes behind them.
TEST(Tokenizer, Phi3sSpecialTokensTakeTheBlanksBehindThem) {
  for (const std::string architecture : {"phi3", "llama"}) {
    testing::GgufBuilder file;
    file.text("general.architecture", architecture).text("tokenizer.ggml.model", "llama");
    std::vector<std::string> tokens{
        "<unk>", "<s>", "</s>", "h", "\u2581", "\n", "<|user|>", "<|assistant|>", "<|endoftext|>"};
    file.strings("tokenizer.ggml.tokens", tokens);
    file.numbers("tokenizer.ggml.token_type", ValueType::kInt32,
                 std::vector<std::int32_t>{2, 3, 3, 1, 1, 1, 3, 4, 3});
    file.numbers("tokenizer.ggml.scores", ValueType::kFloat32, std::vector<float>(tokens.size()));
    file.boolean("tokenizer.ggml.add_space_prefix", false);
    const std::string bytes = file.bytes();
    const auto gguf = open_bytes(bytes);
    ASSERT_TRUE(gguf.ok());
    const auto tokenizer = Tokenizer::from_gguf(**gguf);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    const auto ids = [&](std::string_view text) { return (*tokenizer)->encode(text, false, true); };
    const Segment parts[] = {{"<|user|>\n", true}, {"", false}, {" \n", false}, {"h\n", false}};
    const auto joined = (*tokenizer)->encode(parts, false);
    if (architecture == "phi3") {
      EXPECT_THAT(ids("\n<|user|>\n \nh\n<|assistant|>\n"), ElementsAre(5, 6, 3, 5, 7));
      EXPECT_THAT(ids("</s>\n<|assistant|>\n<s>\n"), ElementsAre(2, 7, 1, 5));
      EXPECT_THAT(ids("<unk>\n<|endoftext|>\n"), ElementsAre(0, 5, 8, 5));
      EXPECT_THAT(joined, ElementsAre(6, 3, 5));
    } else {
      EXPECT_THAT(ids("<|user|>\nh"), ElementsAre(6, 5, 3));
      EXPECT_THAT(joined, ElementsAre(6, 5, 4, 5, 3, 5));
    }
  }
}

TEST(Tokenizer, GemmasHtmlTagEndsNoAnswer) {
  for (const bool tags : {true, false}) {
    const auto tokenizer =
        byte_level({"</s>", "<|im_end|>", tags ? "<|tool_response>" : "<|x|>"}, {});
    EXPECT_EQ(tokenizer->ends_generation(256), !tags);
    EXPECT_EQ(tokenizer->is_control(256), !tags);
    EXPECT_TRUE(tokenizer->ends_generation(257));
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
