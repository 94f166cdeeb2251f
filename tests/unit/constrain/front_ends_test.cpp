// Expressions and GBNF grammars.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Regex, TellsWhatItDoesNotKnow) {
  for (const char* expression :
       {"(a)\\1", "(?<=a)b", "\\bword", "a**", "(", "[a", "*a", "\\p{Greek}"}) {
    const auto compiled = compile_regex(expression);
    ASSERT_FALSE(compiled.ok()) << expression;
    EXPECT_THAT(compiled.error().message(), HasSubstr("\"regex\""));
  }
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
}

TEST(Gbnf, HandlesAmbiguityWithoutExploding) {
  const std::string grammar = "root ::= s\ns ::= \"a\" s | \"a\" s \"b\" | \"a\"";
  EXPECT_TRUE(derives(grammar, std::string(400, 'a')));
  EXPECT_FALSE(derives(grammar, std::string(400, 'a') + "c"));
  EXPECT_TRUE(derives("root ::= ((\"a\"*)*)* \"b\"", "aaab"));
}

TEST(Gbnf, TellsWhatIsWrong) {
  EXPECT_THAT(gbnf_error("root ::= x"), HasSubstr("\"x\""));
  EXPECT_THAT(gbnf_error("a ::= \"x\""), HasSubstr("root"));
  EXPECT_THAT(gbnf_error("root ::= root \"x\" | \"y\""), HasSubstr("left recursion"));
  EXPECT_THAT(gbnf_error("root ::= (\"a\""), HasSubstr("line 1"));
  EXPECT_THAT(gbnf_error("root ::= \"a\" root"), HasSubstr("no text"));
  EXPECT_NE(gbnf_error("root ::= " + std::string(100'000, '(')), "");
}

}  // namespace
}  // namespace bulkhead::constrain
