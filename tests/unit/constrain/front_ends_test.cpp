// Expressions and GBNF grammars.
#include <ctime>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "worker/constrain/constraint.hpp"

namespace bulkhead::constrain {
namespace {

using ::testing::HasSubstr;

bool matches(const std::string& expression, const std::string& text) {
  const auto compiled = compile_regex(expression);
  if (!compiled.ok()) {
    ADD_FAILURE() << compiled.error().message();
    return false;
  }
  return check_text(compiled->grammar, text).passed;
}

bool derives(const std::string& grammar, const std::string& text) {
  const auto compiled = compile_gbnf(grammar);
  if (!compiled.ok()) {
    ADD_FAILURE() << compiled.error().message();
    return false;
  }
  return check_text(compiled->grammar, text).passed;
}

std::string gbnf_error(const std::string& grammar) {
  const auto compiled = compile_gbnf(grammar);
  return compiled.ok() ? "" : compiled.error().message();
}

TEST(Regex, MatchesTheWholeText) {
  EXPECT_TRUE(matches("(yes|no)", "yes"));
  EXPECT_FALSE(matches("(yes|no)", "yes "));
  EXPECT_TRUE(matches("[a-c]{2,3}é+?", "abé"));
  EXPECT_FALSE(matches("[a-c]{2,3}é", "aé"));
  EXPECT_TRUE(matches("a{", "a{"));
  EXPECT_TRUE(matches("\\x41\\u{1F600}\\cA[\\b\\]-]", "A😀\x01]"));
  EXPECT_TRUE(matches("(?=.*\\d)(?!.*x)[a-z\\d]{3}", "a1b"));
  EXPECT_FALSE(matches("(?=.*\\d)(?!.*x)[a-z\\d]{3}", "a1x"));
  EXPECT_FALSE(matches("(?=.*\\d)(?!.*x)[a-z\\d]{3}", "abc"));
  EXPECT_TRUE(matches("a(b$|c$)", "ac"));
  EXPECT_TRUE(matches("(?<name>x)|^y$", "y"));
}

std::string utf8(char32_t code) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  const auto tail = [&](int shift) { return std::string(1, byte(0x80 | (code >> shift & 0x3F))); };
  if (code < 0x80) return std::string(1, byte(code));
  if (code < 0x800) return byte(0xC0 | code >> 6) + tail(0);
  if (code < 0x10000) return byte(0xE0 | code >> 12) + tail(6) + tail(0);
  return byte(0xF0 | code >> 18) + tail(12) + tail(6) + tail(0);
}

// The automaton merges parts of characters that lead to the same state; it must keep their ends
// apart.
TEST(Regex, CharactersAreDistinguishedAtTheEndsOfRanges) {
  using Ranges = std::vector<std::pair<char32_t, char32_t>>;
  const std::pair<const char*, Ranges> rows[] = {
      {"[^<]", {{0, 0x3B}, {0x3D, 0xD7FF}, {0xE000, 0x10FFFF}}},
      {"[\\u0101-\\u07fe]", {{0x101, 0x7FE}}},
      {"[\\u07ff-\\u0fff\\u1041-\\ud7fe\\ue001-\\uffff]",
       {{0x7FF, 0xFFF}, {0x1041, 0xD7FE}, {0xE001, 0xFFFF}}},
      {"[\\u{10001}-\\u{41000}\\u{fffff}-\\u{10ffff}]", {{0x10001, 0x41000}, {0xFFFFF, 0x10FFFF}}}};
  for (const auto& [expression, ranges] : rows) {
    const auto compiled = compile_regex(std::string(expression) + "x");
    ASSERT_TRUE(compiled.ok());
    for (char32_t code = 0x20; code <= 0x10FFFF; code += (code < 0x1200 ? 1 : 61) * test::kStride) {
      if (code >= 0xD800 && code <= 0xDFFF) continue;
      for (const std::uint32_t flipped : {0U, 0x3FU, 0xFFFU}) {
        const char32_t near = code ^ flipped;
        if (near > 0x10FFFF || (near >= 0xD800 && near <= 0xDFFF)) continue;
        bool in = false;
        for (const auto& [low, high] : ranges)
          in = in || (near >= low && near <= high);
        ASSERT_EQ(check_text(compiled->grammar, utf8(near) + "x").passed, in)
            << expression << " at " << static_cast<std::uint32_t>(near);
      }
    }
    for (const char* broken : {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                               "\xF4\x90\x80\x80", "\xE4\xB8", "\x80"})
      EXPECT_FALSE(check_text(compiled->grammar, broken + std::string("x")).passed);
  }
}

TEST(Regex, NamesWhatItDoesNotSupport) {
  for (const char* expression : {"(a)\\1", "(?<=a)b", "\\bword", "a**", "(", "[a", "*a",
                                 "\\p{Greek}", "a{1}{2}", "{2}", "a|{2}", "(?:{1,2})"}) {
    const auto compiled = compile_regex(expression);
    ASSERT_FALSE(compiled.ok()) << expression;
    EXPECT_THAT(compiled.error().message(), HasSubstr("\"regex\""));
  }
}

// A browser takes {,2} for plain text, and [^] for any character. In Python, {,2} is a repetition, and a ] that begins
// a class belongs to it.
TEST(Regex, RefusesWhatReadersTakeForDifferentThings) {
  for (const char* expression : {"a{,2}", "^[a-z]{,10}$", "[^]", "[]a]", "[]", "[^]]"}) {
    const auto compiled = compile_regex(expression);
    ASSERT_FALSE(compiled.ok()) << expression;
    EXPECT_THAT(compiled.error().message(), HasSubstr("write ")) << expression;
  }
  EXPECT_TRUE(matches("a\\{,2}[\\]][\\s\\S]", "a{,2}]!"));
  EXPECT_TRUE(matches("a{,b}{", "a{,b}{"));
}

TEST(Regex, HostileOnesEndInAnErrorSoon) {
  std::string optional, words;
  for (int i = 0; i < 9'999; ++i)
    optional += "a?";
  for (int i = 0; i < 2'000; ++i)
    words += (i > 0 ? "|w" : "w") + std::to_string(i);
  const std::clock_t begin = std::clock();
  EXPECT_FALSE(compile_regex(optional).ok());
  EXPECT_FALSE(compile_regex("(((((a{1,9}){1,9}){1,9}){1,9}){1,9})").ok());
  EXPECT_TRUE(matches(words, "w1999"));
  EXPECT_TRUE(matches(optional.substr(0, 100) + "b", "aaab"));
  EXPECT_LT(std::clock() - begin, std::clock_t{20} * CLOCKS_PER_SEC);
}

TEST(Gbnf, DerivesWhatItsRulesSay) {
  const std::string arithmetic = R"g(
# sums
root  ::= expr "\n"?
expr  ::= term ([-+*/] term)*
term  ::= number | "(" expr ")"
number ::= "-"? [0-9]+ ("." [0-9]{1,2})?
)g";
  EXPECT_TRUE(derives(arithmetic, "1+(2*-3.25)/4"));
  EXPECT_FALSE(derives(arithmetic, "1+(2"));
  EXPECT_FALSE(derives(arithmetic, "1.234"));
  EXPECT_TRUE(derives("root ::= [^\"\\x5D]{2} .", "éaß"));
  EXPECT_TRUE(derives("root ::= a\na ::= \"x\" |\n  \"y\" (\n \"z\" )", "yz"));
  // As in llama.cpp, blanks may come before a repetition, and within a group line ends, too.
  EXPECT_TRUE(derives("root ::= \"a\" + (\"b\"\n # c\n *) { 2 } [cd] ?", "aabbd"));
  EXPECT_THAT(gbnf_error("root ::= \"a\"\n+"), HasSubstr("line 2"));
}

TEST(Gbnf, HandlesAmbiguityWithoutExploding) {
  const std::string grammar = "root ::= s\ns ::= \"a\" s | \"a\" s \"b\" | \"a\"";
  EXPECT_TRUE(derives(grammar, std::string(400, 'a')));
  EXPECT_FALSE(derives(grammar, std::string(400, 'a') + "c"));
  EXPECT_TRUE(derives("root ::= ((\"a\"*)*)* \"b\"", "aaab"));
}

// A chain takes no square of its length, in whichever order its rules stand.
TEST(Gbnf, LongChainsOfRulesAreCompiledSoon) {
  constexpr int kRules = 12'000;
  const auto rule = [](int i) {
    return "r" + std::to_string(i) +
           " ::= " + (i < kRules ? "\"a\" r" + std::to_string(i + 1) : std::string("\"z\"")) + "\n";
  };
  std::string falling = "root ::= r0\n", rising = falling;
  for (int i = 0; i <= kRules; ++i) {
    rising += rule(i);
    falling += rule(kRules - i);
  }
  for (const std::string& grammar : {rising, falling}) {
    const std::clock_t begin = std::clock();
    EXPECT_TRUE(compile_gbnf(grammar).ok());
    EXPECT_LT(std::clock() - begin, std::clock_t{20} * CLOCKS_PER_SEC);
  }
}

TEST(Gbnf, TakesEachOfManyTexts) {
  std::string words = "root ::= \"\\x41b\" | [0-9]+", ways = "root ::= x\nx ::= \"0\"";
  for (int i = 0; i < 9000; ++i) {
    words += " | \"w" + std::to_string(i) + '"';
    ways += " | \"w" + std::to_string(i) + "\" [a-z]";
  }
  for (const char* text : {"Ab", "77", "w0", "w8999", "w10"})
    EXPECT_TRUE(derives(words, text)) << text;
  EXPECT_FALSE(derives(words, "w9000"));
  EXPECT_THAT(gbnf_error(ways), HasSubstr("more than 4000 alternatives"));
}

TEST(Gbnf, NamesWhatIsWrong) {
  EXPECT_THAT(gbnf_error("root ::= x"), HasSubstr("\"x\""));
  EXPECT_THAT(gbnf_error("a ::= \"x\""), HasSubstr("root"));
  EXPECT_THAT(gbnf_error("root ::= root \"x\" | \"y\""), HasSubstr("left recursion"));
  EXPECT_THAT(gbnf_error("root ::= (\"a\""), HasSubstr("line 1"));
  EXPECT_THAT(gbnf_error("root ::= !</think>*"), HasSubstr("tokens"));
  EXPECT_THAT(gbnf_error("root ::= \"a\" root"), HasSubstr("no text"));
  EXPECT_NE(gbnf_error("root ::= " + std::string(100'000, '(')), "");
}

}  // namespace
}  // namespace bulkhead::constrain
