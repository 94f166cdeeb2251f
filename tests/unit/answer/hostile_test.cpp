// Answers that no model should write: a parser must end in linear time, with a result.
#include <initializer_list>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "tests/unit/answer/cases.hpp"

namespace bulkhead::model::answer::testing {
namespace {

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"x": {"type": "string"}, "y": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}])";

std::string repeated(const std::string& text, std::size_t bytes) {
  std::string result;
  while (!text.empty() && result.size() < bytes)
    result += text;
  return result;
}

// The pieces are as small as a model's, so a parser that read everything again with each piece would take hours.
constexpr std::size_t kPiece = 50;
Message read(const Family& family, const std::string& raw, Ended ended = Ended::kStop) {
  AnswerParser parser(family, {.tools = *Tools::from_json(kTools), .prompt_end = {}, .id_seed = 1});
  Message message;
  for (std::size_t at = 0; at < raw.size(); at += kPiece)
    message.add(parser.feed(std::string_view(raw).substr(at, kPiece)));
  message.add(parser.finish(ended));
  return message;
}

TEST(HostileAnswers, AreReadInLinearTime) {
  constexpr std::size_t kBytes = test::rounds(100'000);
  for (const Family& family : families()) {
    const Calls& calls = family.calls;
    const std::string open = calls.section + (calls.opens.empty() ? "" : calls.opens[0]);
    for (const std::string& raw :
         {repeated("word ", kBytes), repeated(" ", kBytes) + "x", repeated("<", kBytes),
          repeated("[", kBytes), repeated("{", kBytes), repeated("{\"a\":[", kBytes),
          repeated(open, kBytes), open + repeated("f", kBytes), open + "f" + repeated(" ", kBytes),
          open + "[" + repeated(" ", kBytes),
          open + "{\"name\": \"f\", \"arguments\": " + repeated("{\"a\":[", kBytes),
          open + "[{\"arguments\": " + repeated("[", kBytes),
          open + "f>\n<parameter=x>" + repeated("</parameter", kBytes),
          open + "[f(x=" + repeated("[{'a': (", kBytes), open + "[f(" + repeated("1,", kBytes),
          open + "call:f{" + repeated("a:{b:[", kBytes), repeated("<|start|>", kBytes),
          "<|channel|>" + repeated("a", kBytes)})
      read(family, raw);
  }
}

TEST(HostileAnswers, LeaveNoTextBehind) {
  const Family& hermes = *family_named("hermes");
  const std::string deep = repeated("{\"a\": [", 100'000);
  EXPECT_EQ(read(hermes, deep).content, deep);
  const std::string call = R"(<tool_call>{"name": "f", "arguments": )";
  const Message message = read(hermes, call + deep, Ended::kLength);
  ASSERT_EQ(message.calls.size(), 1U);
  EXPECT_EQ(message.calls[0].arguments, deep);
}

TEST(HostileAnswers, WithoutACallAreContent) {
  for (const char* raw : {"<tool_call>", "<tool_call>\n{", "<tool_call>{\"name\": 5}</tool_call>",
                          "<tool_call>[]</tool_call>", "<tool_call>{\"name\": \"g\"}</tool_call>",
                          "<tool_call><tool_call>", "<tool_call>{\"arguments\": {}}</tool_call>"})
    EXPECT_EQ(read(*family_named("hermes"), raw).content, raw);
}

TEST(HostileAnswers, GoOnBehindWhatWasNoCall) {
  const Message message = read(*family_named("hermes"),
                               "<tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}"
                               "</tool_call>");
  EXPECT_EQ(message.content, "<tool_call>");
  ASSERT_EQ(message.calls.size(), 1U);
}

// The call before it ended the reasoning.
TEST(HostileAnswers, BehindACallThatEndedReasoningAreContent) {
  for (const auto& [family, prompt, list] :
       {std::tuple{"apriel", "Here are my reasoning steps:",
                   R"(<tool_calls>[{"name": "f", "arguments": {}}, {"name": "nope"}]</tool_calls>)"},
        std::tuple{"apertus", "<|inner_prefix|>",
                   R"(<|tools_prefix|>[{"f": {}}, {"nope": {}}]<|tools_suffix|>)"}}) {
    AnswerParser parser(*family_named(family),
                        {.tools = *Tools::from_json(kTools), .prompt_end = prompt, .id_seed = 1});
    Message message;
    message.add(parser.feed(std::string("hm ") + list));
    message.add(parser.finish(Ended::kStop));
    ASSERT_EQ(message.calls.size(), 1U) << family;
    EXPECT_EQ(message.reasoning, "hm") << family;
    EXPECT_NE(message.content.find("nope"), std::string::npos) << family << message.content;
  }
}

struct Unfinished {
  const char* family;
  const char* raw;
};

// The model ended its answer within a call. A client that reads the arguments must notice.
TEST(UnfinishedCalls, NeverLookWhole) {
  for (const auto& [family, raw] : std::initializer_list<Unfinished>{
           {"hermes", R"(<tool_call>{"name": "f", "arguments": {"x": "a)"},
           {"hermes", R"(<tool_call>{"name": "f", "arguments": {"x": "a")"},
           {"hermes", R"(<tool_call>{"name": "f", "argu)"},
           {"hermes", R"(<tool_call>{"name": "f", "arguments": )"},
           {"hermes", R"(<tool_call>{"name": "f")"},
           {"mistral-list", R"([TOOL_CALLS][{"name": "f", "arguments")"},
           {"apertus", R"(<|tools_prefix|>[{"f": )"},
           {"apertus", R"(<|tools_prefix|>[{"f": {"x": "a)"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n<parameter=x>\nOs"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n<parameter=y>\n2"},
           {"qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=x>\na\n</parameter>\n<parameter=y"},
           {"qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=x>\na\n</function>\n</tool_call>"},
           {"glm", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>a"},
           {"glm", "<tool_call>f\n<arg_key>x</arg_key>\n"},
           {"minimax-m2", "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"y\">1"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n<parameter=x>\na\n</parameter>\n<param"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n<"},
           {"glm", "<tool_call>f\n<"},
           {"minimax-m2", "<minimax:tool_call>\n<invoke name=\"f\">\n<"},
           {"mistral-args", "[TOOL_CALLS]f[ARGS]"},
           {"kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"},
           {"gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"},
           {"gemma4", "<|tool_call>call:f"},
           {"gemma4", "<|tool_call>call:f{x:<|\"|>a"},
           {"gemma4", "<|tool_call>call:f{x:<|\"|>a<|\"|>"},
           {"lfm2", "<|tool_call_start|>[f(x=\"a"},
           {"lfm2", "<|tool_call_start|>[f(x="},
           {"lfm2", "<|tool_call_start|>[f("},
           {"lfm2", "<|tool_call_start|>[f(y=1"},
           {"lfm2", "<|tool_call_start|>[f(x=\"a\", "}}) {
    const Message message = read(*family_named(family), raw);
    ASSERT_EQ(message.calls.size(), 1U) << raw;
    EXPECT_FALSE(Json::accept(message.calls[0].arguments)) << raw << message.calls[0].arguments;
    EXPECT_EQ(message.content, "") << raw;
  }
}

// From a call of a tool without parameters nothing can be missing, unless a limit cut the answer.
TEST(UnfinishedCalls, AreWholeIfTheToolHasNoParameters) {
  for (const auto& [family, raw] : std::initializer_list<Unfinished>{
           {"hermes", R"(<tool_call>{"name": "now")"},
           {"hermes",
            R"(<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "now")"},
           {"apertus", R"(<|tools_prefix|>[{"now": )"},
           {"qwen3-coder", "<tool_call>\n<function=now>\n"},
           {"mistral-args", "[TOOL_CALLS]now[ARGS]"},
           {"kimi-k2", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"},
           {"gpt-oss", "<|channel|>commentary to=functions.now <|constrain|>json<|message|>"},
           {"gemma4", "<|tool_call>call:now"},
           {"lfm2", "<|tool_call_start|>[now("}}) {
    const Message message = read(*family_named(family), raw);
    ASSERT_FALSE(message.calls.empty()) << raw;
    EXPECT_EQ(message.calls.back().name, "now") << raw;
    EXPECT_EQ(message.calls.back().arguments, "{}") << raw;
    const Message cut = read(*family_named(family), raw, Ended::kLength);
    ASSERT_EQ(cut.calls.size(), message.calls.size()) << raw;
    EXPECT_EQ(cut.calls.back().arguments, "") << raw;
  }
}

// All parameters of the tool f are optional. A call of it without arguments is whole if the marks behind it are there.
TEST(LenientAnswers, TakeNoArgumentsIfTheCallIsClosed) {
  for (const auto& [family, raw] : std::initializer_list<Unfinished>{
           {"hermes", R"(<tool_call>{"name": "f"}</tool_call>)"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>"},
           {"kimi-k2",
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|><|tool_call_end|>"},
           {"gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"},
           {"gemma4", "<|tool_call>call:f<tool_call|>"},
           {"gemma4", "<|tool_call>call:f{}"},
           {"lfm2", "<|tool_call_start|>[f()"}}) {
    const Message message = read(*family_named(family), raw);
    ASSERT_EQ(message.calls.size(), 1U) << raw;
    EXPECT_EQ(message.calls[0].arguments, "{}") << raw;
  }
}

TEST(LenientAnswers, TakeArgumentsThatAreWholeWithoutTheMarksBehindThem) {
  for (const auto& [family, raw] : std::initializer_list<Unfinished>{
           {"hermes", R"(<tool_call>{"name": "f", "arguments": {"x": "a"})"},
           {"apertus", R"(<|tools_prefix|>[{"f": {"x": "a"})"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n<parameter=x>\na\n</parameter>\n"},
           {"glm", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>a</arg_value>"},
           {"qwen3-coder", "<tool_call>\n<function=f>\n<parameter=x>\na\n</parameter>\n</func"},
           {"lfm2", "<|tool_call_start|>[f(x=\"a\""},
           {"lfm2", "<|tool_call_start|>[f(x=\"a\")"}}) {
    const Message message = read(*family_named(family), raw);
    ASSERT_EQ(message.calls.size(), 1U) << raw;
    EXPECT_EQ(message.calls[0].arguments, R"({"x": "a"})") << raw;
  }
}

TEST(LenientAnswers, TakeArgumentsBeforeTheNameAndInAString) {
  const Family& hermes = *family_named("hermes");
  Message message = read(hermes, R"(<tool_call>{"arguments": {"y": 1}, "name": "f"}</tool_call>)");
  ASSERT_EQ(message.calls.size(), 1U);
  EXPECT_EQ(message.calls[0].arguments, R"({"y": 1})");
  message = read(hermes, R"(<tool_call>{"name": "f", "arguments": "{\"y\": 1}"}</tool_call>)");
  ASSERT_EQ(message.calls.size(), 1U);
  EXPECT_EQ(message.calls[0].arguments, R"({"y": 1})");
  for (const char* none : {"null", R"("")"}) {
    message = read(
        hermes, R"(<tool_call>{"name": "f", "arguments": )" + std::string(none) + "}</tool_call>");
    ASSERT_EQ(message.calls.size(), 1U);
    EXPECT_EQ(message.calls[0].arguments, "{}");
  }
}

// With {} in their place, the client would run a call that the model did not write.
TEST(LenientAnswers, ShowArgumentsThatAreNoObject) {
  for (const char* value : {R"("Oslo")", R"("{\"x\": ")", R"(["a", 1])", "17", "oops"}) {
    const Message message =
        read(*family_named("hermes"),
             R"(<tool_call>{"name": "f", "arguments": )" + std::string(value) + "}</tool_call>");
    ASSERT_EQ(message.calls.size(), 1U) << value;
    EXPECT_EQ(message.calls[0].arguments, value);
    EXPECT_EQ(message.content, "");
  }
}

TEST(LenientAnswers, TakeArgumentsByPosition) {
  const Message message =
      read(*family_named("lfm2"), "<|tool_call_start|>[f(\"a\", 2)]<|tool_call_end|>");
  ASSERT_EQ(message.calls.size(), 1U);
  EXPECT_EQ(message.calls[0].arguments, R"({"x": "a", "y": 2})");
}

TEST(LenientAnswers, WithoutChannelsAreContent) {
  EXPECT_EQ(read(*family_named("gpt-oss"), "The sum is 4.").content, "The sum is 4.");
  EXPECT_EQ(read(*family_named("gpt-oss"), "to be or not").content, "to be or not");
}

TEST(CallIds, AreNineLettersAndDigitsOfSeedAndIndex) {
  EXPECT_EQ(make_call_id(1, 0), make_call_id(1, 0));
  EXPECT_NE(make_call_id(1, 0), make_call_id(1, 1));
  EXPECT_NE(make_call_id(1, 0), make_call_id(2, 0));
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::string id = make_call_id(seed, 3);
    EXPECT_EQ(id.size(), 9U);
    EXPECT_EQ(
        id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
        std::string::npos);
  }
}

TEST(OfferedTools, AreTextWhereNothingElseFits) {
  const Result<Tools> tools = Tools::from_json(R"([{"type": "function", "function": {
    "name": "f", "parameters": {"$defs": {"Id": {"type": "string"}}, "properties": {
      "a": {"type": "string"}, "b": {"type": ["string"]}, "c": {"type": ["string", "null"]},
      "d": {"enum": ["1", "2"]}, "e": {"$ref": "#/$defs/Id"}, "f": {"type": "integer"},
      "g": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "h": {},
      "i": {"allOf": [{"$ref": "#/$defs/Id"}], "default": "1"}}}}}])");
  ASSERT_TRUE(tools.ok());
  std::string text;
  for (const auto& [key, is_text] : tools->all()[0].parameters)
    text += is_text ? key : "";
  EXPECT_EQ(text, "abdei");
  for (const char* broken : {"{", "{}", "[{}]", "[5]", R"([{"function": {"name": 4}}])"})
    EXPECT_FALSE(Tools::from_json(broken).ok()) << broken;
}

// Eight levels with a hundred references each: a walk through all of them would never end.
TEST(OfferedTools, AlternativesThatReferToOneAnotherEndSoon) {
  std::string definitions = R"("d8":{"type":"string"})";
  for (int level = 0; level < 8; ++level) {
    const std::string reference = R"({"$ref":"#/$defs/d)" + std::to_string(level + 1) + R"("})";
    std::string choices = reference;
    for (int i = 1; i < 100; ++i)
      choices += "," + reference;
    definitions += ",\"d" + std::to_string(level) + R"(":{"anyOf":[)" + choices + "]}";
  }
  const Result<Tools> tools = Tools::from_json(
      R"([{"function":{"name":"f","parameters":{"properties":{"plain":{"type":"string"},)"
      R"("deep":{"$ref":"#/$defs/d0"}},"$defs":{)" +
      definitions + "}}}}]");
  ASSERT_TRUE(tools.ok());
  const Tool* tool = tools->find("f");
  ASSERT_NE(tool, nullptr);
  EXPECT_TRUE(text_alone(*tool, "plain"));
  EXPECT_FALSE(text_alone(*tool, "deep"));
}

}  // namespace
}  // namespace bulkhead::model::answer::testing
