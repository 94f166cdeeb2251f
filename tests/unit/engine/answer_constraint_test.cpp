// How a constraint restricts an answer, token by token and without an engine: calls that begin within a token,
// grammars that are too ambiguous, and long calls.
#include "worker/engine/answer_constraint.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fake_tokenizer.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/engine/call_constraints.hpp"

namespace bulkhead::test {
namespace {

using model::answer::family_named;

const char* const kTools =
    R"([{"type":"function","function":{"name":"get_time","strict":true,"parameters":{"type":"object",
         "properties":{"zone":{"type":"string"}},"required":["zone"],"additionalProperties":false}}}])";

model::answer::AnswerRequest offering(const char* tools) {
  model::answer::AnswerRequest request;
  request.tools = *model::answer::Tools::from_json(tools);
  return request;
}

// An answer that may have calls.
struct Answering {
  Answering(const char* family, std::vector<std::string> words)
      : tokenizer(std::move(words)), constraints(tokenizer, *family_named(family)) {
    std::string parameter;
    engine::ToolUse use;
    use.tools = kTools;
    constraint = std::move(constraints.hold(use, {}, offering(kTools), parameter)->constraint);
  }
  bool may_come(engine::TokenId token) {
    const auto mask = constraint->mask();
    EXPECT_TRUE(mask.ok());
    return mask->empty() || ((*mask)[token / 32] >> (token % 32) & 1) != 0;
  }
  void say(const std::string& text) {
    for (const engine::TokenId token : tokenizer.encode(text, false, false))
      constraint->advance(token);
  }

  FakeTokenizer tokenizer;
  engine::CallConstraints constraints;
  std::unique_ptr<engine::TokenConstraint> constraint;
};

const std::vector<std::string> kEndings = {"\"}", "\"}}", "\"   ", "time\"}", "\", \"", "time\","};

// Qwen 3.5 calls before it has closed its reasoning.
TEST(AnswerConstraint, ACallThatEndsReasoningIsConstrained) {
  const std::vector<std::string> words = {"<tool_call>", "get_time>", "other>"};
  const auto word = [](std::size_t i) {
    return FakeTokenizer::kFirstWord + static_cast<engine::TokenId>(i);
  };
  Answering answer("qwen3-coder", words);
  answer.say("<think>Hm.");
  for (std::size_t i = 0; i < words.size(); ++i)
    EXPECT_TRUE(answer.may_come(word(i))) << words[i];
  answer.say("<tool_call>\n<function=");
  EXPECT_TRUE(answer.may_come(word(1)));
  EXPECT_FALSE(answer.may_come(word(2)));
}

// JSON without a mark is a call once its name has ended, which may be in the middle of a token.
TEST(AnswerConstraint, NoTokenOfBareJsonGoesOnWronglyAfterTheName) {
  const auto word = [](std::size_t i) {
    return FakeTokenizer::kFirstWord + static_cast<engine::TokenId>(i);
  };
  Answering answer("llama3-json", kEndings);
  answer.say(R"({"name": "get_)");
  EXPECT_FALSE(answer.may_come(word(3)));
  EXPECT_TRUE(answer.may_come(word(5)));
  answer.say("tim");
  answer.say("e");
  for (const std::size_t wrong : {0U, 1U, 2U})
    EXPECT_FALSE(answer.may_come(word(wrong))) << kEndings[wrong];
  EXPECT_TRUE(answer.may_come(word(4)));
  EXPECT_TRUE(answer.may_come('"'));
  answer.say("\"");
  EXPECT_FALSE(answer.may_come('}')) << "the arguments are wanted";
  EXPECT_TRUE(answer.may_come(','));
  // Other JSON is not restricted.
  Answering other("llama3-json", kEndings);
  other.say(R"({"title": "get_time)");
  EXPECT_TRUE(other.may_come(word(0)));
}

// Models also write other keys before the name, the API's own shape, and other blanks than the grammar has.
TEST(AnswerConstraint, BareCallsAreHeldInWhateverFormTheyBegin) {
  for (const char* begin :
       {R"({"type": "function", "name": "get_time)", "{\n    \"name\": \"get_time",
        "{\t\"id\": \"x\", \"name\":\t\"get_time", R"({"function": {"name": "get_time)",
        "{\"type\": \"function\", \"function\": {\n        \"name\": \"get_time"}) {
    SCOPED_TRACE(begin);
    for (const char* family : {"llama3-json", "functools"}) {
      Answering answer(family, kEndings);
      answer.say(begin);
      EXPECT_TRUE(answer.may_come('"'));
      answer.say("\"");
      EXPECT_FALSE(answer.may_come('}')) << "the arguments are wanted";
      EXPECT_FALSE(answer.may_come('x'));
      EXPECT_TRUE(answer.may_come(','));
      answer.say(R"(, "parameters": {"zone)");
      EXPECT_FALSE(answer.may_come('x')) << "the schema has no such member";
      answer.say(R"(": "x"})");
      EXPECT_TRUE(answer.may_come('}'));
      EXPECT_FALSE(answer.may_come(','));
    }
  }
  Answering listed("functools", kEndings);
  listed.say(
      R"([{"type": "function", "function": {"name": "get_time", "arguments": {"zone": "x"}})");
  EXPECT_FALSE(listed.may_come(']'));
  listed.say("}");
  EXPECT_TRUE(listed.may_come(']'));
}

TEST(AnswerConstraint, BareCallsInPythonAreHeldWhateverBlanksTheyHave) {
  for (const char* begin :
       {"[get_time(", "[  get_time(", "[\n\t    get_time(", "  [\n\n\nget_time("}) {
    SCOPED_TRACE(begin);
    Answering answer("llama4", kEndings);
    answer.say(begin);
    EXPECT_TRUE(answer.may_come('z'));
    EXPECT_FALSE(answer.may_come('x')) << "the schema has no such member";
    EXPECT_FALSE(answer.may_come(')')) << "the zone is wanted";
  }
}

// The arguments may come first, when no name says yet which schema they follow. If they are wrong for a tool, its name
// can't end, so the answer stays a text.
TEST(AnswerConstraint, ArgumentsBeforeTheNameMustBeThoseOfTheTool) {
  const auto may_end = [](const std::string& text) {
    Answering answer("llama3-json", kEndings);
    answer.say(text);
    return answer.may_come('"');
  };
  for (const char* right :
       {R"({"parameters": {"zone": "a"}, "name": "get_time)",
        "{\"arguments\": {\n\t\"zone\" : \"a \\\" b\"\n},\n    \"name\": \"get_time",
        R"({"type": "function", "parameters": {"zone": "a"}, "name": "get_time)",
        R"({"function": {"parameters": {"zone": "a"}, "name": "get_time)"}) {
    EXPECT_TRUE(may_end(right)) << right;
    Answering answer("llama3-json", kEndings);
    answer.say(std::string(right) + "\"");
    EXPECT_TRUE(answer.may_come('}')) << right;
    EXPECT_FALSE(answer.may_come(',')) << right;
    EXPECT_FALSE(answer.may_come('x')) << right;
  }
  for (const char* wrong : {R"({"parameters": {"zone": 5}, "name": "get_time)",
                            R"({"parameters": {}, "name": "get_time)",
                            R"({"parameters": {"zone": "a", "more": 1}, "name": "get_time)",
                            R"({"arguments": "zone", "name": "get_time)",
                            R"({"function": {"parameters": {"zone": 5}, "name": "get_time)"})
    EXPECT_FALSE(may_end(wrong)) << wrong;
  EXPECT_TRUE(may_end(R"({"parameters": {"zone": 5}, "name": "get_tim)")) << "this is a text";
}

// A resumed answer goes on in the middle of the call.
TEST(AnswerConstraint, ABareCallThatIsContinuedIsHeldAsWell) {
  for (const bool right : {true, false}) {
    model::answer::AnswerRequest request = offering(kTools);
    request.continued = right ? R"({"parameters": {"zone": "a"}, "name": "get_)"
                              : R"({"parameters": {"zone": 5}, "name": "get_)";
    FakeTokenizer tokenizer(kEndings);
    engine::CallConstraints constraints(tokenizer, *family_named("llama3-json"));
    std::string parameter;
    engine::ToolUse use;
    use.tools = kTools;
    const auto constraint =
        std::move(constraints.hold(use, {}, std::move(request), parameter)->constraint);
    for (const char c : {'t', 'i', 'm', 'e'})
      constraint->advance(static_cast<unsigned char>(c));
    const auto mask = constraint->mask();
    ASSERT_TRUE(mask.ok());
    const bool may = mask->empty() || ((*mask)['"' / 32] >> ('"' % 32) & 1) != 0;
    EXPECT_EQ(may, right);
  }
}

// If the answer has such a token nevertheless, it continues without a grammar.
TEST(AnswerConstraint, ACallThatLeavesItsGrammarIsFree) {
  for (const char* ending : {"\"}", "\"}}", "\"   "}) {
    Answering answer("llama3-json", kEndings);
    answer.say(R"({"name": "get_time)");
    answer.say(ending);
    EXPECT_TRUE(answer.may_come('x')) << ending;
    EXPECT_TRUE(answer.may_come(FakeTokenizer::kEos)) << ending;
  }
}

// A kept mask belongs to the present tokens and not to earlier ones. A second constraint, for which no mask
// was made before, has the same mask.
TEST(AnswerConstraint, MasksAreThoseOfTheTokensSoFarHoweverOftenSomebodyAsks) {
  const std::string text = R"({"name": "get_time", "parameters": {"zone": "x"}} Done.)";
  Answering asked("llama3-json", kEndings);
  int held = 0, unheld = 0;
  for (std::size_t length = 0; length <= text.size(); ++length) {
    if (length > 0) asked.say(text.substr(length - 1, 1));
    Answering silent("llama3-json", kEndings);
    for (const char c : text.substr(0, length))
      silent.say(std::string(1, c));
    const bool is_free = asked.constraint->is_free();
    for (int time = 0; time < 2; ++time) {
      const auto mask = asked.constraint->mask(), expected = silent.constraint->mask();
      ASSERT_TRUE(mask.ok() && expected.ok());
      EXPECT_TRUE(std::ranges::equal(*mask, *expected)) << text.substr(0, length);
      EXPECT_EQ(is_free, mask->empty()) << text.substr(0, length);
      EXPECT_EQ(asked.constraint->is_free(), is_free) << text.substr(0, length);
    }
    ++(is_free ? unheld : held);
  }
  EXPECT_GT(held, 10);
  EXPECT_GT(unheld, 10);
}

class Ambiguous : public testing::Test {
 protected:
  std::unique_ptr<engine::AnswerConstraint> begin(bool may_give_up) {
    static const model::answer::Family& family = *family_named("hermes");
    const auto tokens = std::make_shared<engine::SpelledTokens>(tokenizer_, family);
    const auto grammar = constrain::compile_gbnf(
        "root ::= call a{0,300} \"}\"\na ::= b{0,300} b{0,300}\n"
        "b ::= [a-z]{0,300} [a-z]{0,300} [a-z ]\n"
        R"(call ::= "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"")");
    EXPECT_TRUE(grammar.ok());
    engine::AnswerRules rules{.tokens = tokens,
                              .family = &family,
                              .held = std::make_shared<engine::GrammarMasks>(
                                  grammar->grammar, tokens->trie(), tokens->ends()),
                              .may_give_up = may_give_up};
    auto constraint =
        std::make_unique<engine::AnswerConstraint>(std::move(rules), offering(kTools));
    for (const char c : std::string(R"(<tool_call>{"name": "get_time", "arguments": {")"))
      constraint->advance(static_cast<unsigned char>(c));
    return constraint;
  }
  FakeTokenizer tokenizer_{std::vector<std::string>{"abcde", "bcdefgh", "cdefgh ijkl"}};
};

// The tool is not strict, so nothing promises that its calls are valid, and the call need not fail.
TEST_F(Ambiguous, CallsOfToolsThatAreNotStrictGoOn) {
  const auto strict = begin(false), lenient = begin(true), silent = begin(true);
  int failed = 0;
  for (int i = 0; i < 200 && failed < 2; ++i) {
    const auto wanted = strict->mask();
    const auto mask = lenient->mask();
    ASSERT_TRUE(mask.ok());
    if (!wanted.ok()) {
      EXPECT_EQ(wanted.error().code(), ErrorCode::kResourceExhausted);
      EXPECT_TRUE(mask->empty()) << "any token may come";
      ++failed;
    }
    strict->advance('a');
    lenient->advance('a');
    silent->advance('a');
  }
  EXPECT_GT(failed, 0);
  // A continued answer, for which no mask was requested on the way, is in the same state as the other one.
  for (const char c : {'b', '}', 'x'}) {
    const auto mask = lenient->mask(), resumed = silent->mask();
    ASSERT_TRUE(mask.ok() && resumed.ok());
    EXPECT_TRUE(std::ranges::equal(*mask, *resumed));
    lenient->advance(static_cast<unsigned char>(c));
    silent->advance(static_cast<unsigned char>(c));
  }
}

// The id comes last, so all of the call is kept until then. A copy of it for each byte would take minutes.
TEST(AnswerConstraint, LongCallsTakeTimeByTheirLength) {
  for (const bool list : {true, false}) {
    Answering answer(list ? "mistral-list" : "llama3-json", {"[TOOL_CALLS]"});
    constexpr int kBytes = 1'000'000;
    answer.say(list ? R"([TOOL_CALLS][{"name": "get_time", "arguments": {"zone": ")"
                    : R"({"parameters": {"zone": ")");
    for (int i = 0; i < kBytes; ++i)
      answer.constraint->advance('x');
    EXPECT_TRUE(answer.may_come('x'));
    answer.say(list ? R"("}, "id": "abcdefgh)" : R"("}, "name": "get_time")");
    EXPECT_EQ(answer.may_come('}'), !list) << "the id is too short, or only the end is missing";
  }
}

}  // namespace
}  // namespace bulkhead::test
