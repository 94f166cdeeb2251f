// The cutting of texts into words before pairs merge: by the names that files give, and by expressions in the
// file.
#include "worker/model/pre_tokenizer.hpp"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/tokenizer.hpp"
#include "worker/model/tokenizer_check.hpp"
#include "worker/model/tokenizer_json.hpp"

namespace bulkhead::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::open_bytes;

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

// Engines read some expressions differently; the makers' reading counts.
TEST(PreTokenizer, ReadsExpressionsAsTheMakersDo) {
  EXPECT_THAT(words("kimi-k2", "\u4e2d\u6587\u3002\u597d\u300c\u7684\u300d"),
              ElementsAre("\u4e2d\u6587", "\u3002", "\u597d", "\u300c", "\u7684", "\u300d"))
      << "marks that are used with Han are not Han";
  for (const char* rule : {"qwen2", "qwen35", "gpt-4o", "tekken", "seed-coder"})
    EXPECT_THAT(words(rule, "a \u180e!"), ElementsAre("a", " \u180e!")) << "U+180E is no blank";
  EXPECT_THAT(words("tiny_aya", "1234\u00bd 1234\u0301"),
              ElementsAre("1", "234", "\u00bd", " ", "123", "4", "\u0301"))
      << "a mark belongs to a word, a fraction does not";
}

TEST(PreTokenizer, CutsNumbersFromTheRight) {
  EXPECT_THAT(words("tiny_aya", "1234567 it's 12"),
              ElementsAre("1", "234", "567", " it's", " ", "12"));
  EXPECT_THAT(words("tiny_aya", "123456,camelCase"), ElementsAre("123", "456", ",camel", "Case"));
  EXPECT_THAT(words("tiny_aya", "  1234abc"), ElementsAre(" ", " ", "123", "4", "abc"))
      << "a letter follows the number";
  EXPECT_THAT(
      words("afmoe", "x=1234abc 12345 \u4e2d\u0e40.b"),
      ElementsAre("x", "=", "1", "234", "abc", " ", "12", "345", " ", "\u4e2d\u0e40", ".b"));
  EXPECT_THAT(words("afmoe", "123456\n"), ElementsAre("123", "456", "\n"));
}

TEST(PreTokenizer, CutsNothingButNumbers) {
  EXPECT_THAT(words("superbpe", "It's by the way.\n1234567 or\t12, 123"),
              ElementsAre("It's by the way.\n", "1", "234", "567", " or\t", "12", ", ", "123"));
}

TEST(PreTokenizer, CutsNumbersFirst) {
  EXPECT_THAT(words("minicpm5", "I'LL  1234 x"), ElementsAre("I", "'LL", "  ", "123", "4", " x"));
  EXPECT_THAT(words("llama-bpe", "a  1"), ElementsAre("a", " ", " ", "1"));
  EXPECT_TRUE(find_pre_tokenizer("minicpm5")->whole_words_first);
}

TEST(PreTokenizer, KeepsWordsWithSingleBlanksTogether) {
  EXPECT_THAT(words("exaone-moe", "I am here  now, a12 b\n\nx"),
              ElementsAre("I am here", " ", " now", ",", " a", "1", "2", " b", "\n\n", "x"));
  EXPECT_THAT(words("exaone-moe", "it's e\u0301te\u0301 ok;\n/"),
              ElementsAre("it", "'s", " e\u0301te\u0301 ok", ";\n", "/"));
}

TEST(PreTokenizer, KnowsOtherNamesOfRules) {
  EXPECT_THAT(words("f2llmv2", "I'LL 12"), ElementsAre("I", "'LL", " ", "1", "2"));
  EXPECT_THAT(words("roberta-bpe", "it's 123"), ElementsAre("it", "'s", " 123"));
  EXPECT_THAT(words("mellum2", "it's 123"), ElementsAre("it", "'s", " ", "1", "2", "3"));
  EXPECT_THAT(words("modern-bert", "it's 1234"), ElementsAre("it", "'s", " 1234"));
  EXPECT_THAT(words("jina-v5-nano", "IT'S 1234"), ElementsAre("IT", "'S", " ", "123", "4"));
  EXPECT_THAT(words("granite-embed-multi-97m", "e\u0301aB isn't 1234 /\n"),
              ElementsAre("e\u0301a", "B", " isn't", " ", "123", "4", " /\n"));
  EXPECT_TRUE(find_pre_tokenizer("granite-embed-multi-97m")->whole_words_first);
}

// For a text of one kind of character an expression looks far ahead, but must not do so again and again.
TEST(PreTokenizer, CutsLongRuns) {
  for (const char* rule : {"qwen35", "gpt-4o", "tekken", "deepseek-v3", "deepseek-llm", "falcon",
                           "bloom", "viking", "kimi-k2", "youtu", "seed-coder", "tiny_aya", "afmoe",
                           "minicpm5", "exaone-moe", "superbpe"}) {
    for (const char* piece : {"A", "a", " ", "\n", "\u4e2d", "!", "\xff", "1", " a"}) {
      std::string text;
      for (int i = 0; i < test::rounds(100'000); ++i)
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
  // PCRE2 would take these for characters of a class.
  for (const char* classes : {R"([\p{L}&&[^\p{Han}]]+)", "[a[bc]]"}) {
    const auto compiled = Expressions::compile(std::vector<std::string>{classes});
    ASSERT_FALSE(compiled.ok());
    EXPECT_THAT(compiled.error().message(), HasSubstr("class"));
  }
  EXPECT_TRUE(
      Expressions::compile(std::vector<std::string>{R"([[:alpha:]\[&][^\]\S]|[]a]&&)"}).ok());
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
  for (const char* rule :
       {"gpt-2",  "llama-bpe", "qwen2",       "default",        "smollm",       "qwen35",
        "gpt-4o", "tekken",    "deepseek-v3", "deepseek-coder", "deepseek-llm", "falcon",
        "bloom",  "viking",    "kimi-k2",     "youtu",          "seed-coder",   "tiny_aya",
        "afmoe",  "minicpm5",  "exaone-moe",  "superbpe"}) {
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

}  // namespace
}  // namespace bulkhead::model
