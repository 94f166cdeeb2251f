// Grammars of tool calls: they accept what each family writes, and refuse what is not a valid call of an offered
// tool.
#include "worker/engine/call_grammar.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "tests/support/tagged_templates.hpp"
#include "tests/unit/engine/call_rows.hpp"
#include "worker/constrain/automaton.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/model/answer/answer_parser.hpp"
#include "worker/model/answer/derived_family.hpp"

namespace bulkhead::test {
namespace {

using namespace std::string_literals;

std::string as_text(std::string_view mark) {
  return std::string(mark);
}

Result<engine::CallGrammar> grammar_of(const char* family, engine::CallWish wish = {}) {
  if (wish.tools.empty()) wish.tools = kCallTools;
  return engine::make_call_grammar(*model::answer::family_named(family), wish, as_text);
}

bool passes(const char* family, const std::string& text, const engine::CallWish& wish) {
  const auto made = grammar_of(family, wish);
  EXPECT_TRUE(made.ok()) << family << made.error().message();
  return made.ok() && constrain::check_text(made->grammar, text).passed;
}

// Uses the usual request. One grammar checks all texts of a family.
bool passes(const char* family, const std::string& text) {
  static std::map<std::string, Result<engine::CallGrammar>> grammars;
  auto found = grammars.find(family);
  if (found == grammars.end()) found = grammars.emplace(family, grammar_of(family)).first;
  const auto& made = found->second;
  EXPECT_TRUE(made.ok()) << family << made.error().message();
  return made.ok() && constrain::check_text(made->grammar, text).passed;
}

TEST(CallGrammar, HoldsArgumentsBetweenTags) {
  for (const TaggedCallRow& row : kTaggedCallRows) {
    const auto call = [&](const std::string& city, const std::string& days) {
      return row.before + city + row.between + days + row.behind;
    };
    EXPECT_TRUE(passes(row.family, call("Oslo", "2"))) << call("Oslo", "2");
    EXPECT_TRUE(passes(row.family, call("a \" { <b> \xC3\xA9\n\nc", "12"))) << row.family;
    for (const char* bad : {"0", "many", "\"2\"", "", "2.5"})
      EXPECT_FALSE(passes(row.family, call("Oslo", bad))) << row.family << bad;
    std::string other = call("Oslo", "2");
    other.replace(other.find("get_weather"), 11, "get_nothing");
    EXPECT_FALSE(passes(row.family, other)) << other;
  }
}

// A text keeps to the limits of its schema. If a value may also be of another type, a text is written without quotes
// unless it could be read as JSON. The grammar refuses or leaves out what tags can't express.
TEST(CallGrammar, TagsHoldWhatTextsMayBe) {
  const auto passes_with = [](const std::string& properties, const std::string& value) {
    const std::string tools =
        R"([{"function": {"name": "f", "strict": true, "parameters": {"type": "object", "required": ["a"],
             "properties": {"a": )" +
        properties + "}}}}]";
    const auto made = grammar_of("qwen3-coder", {.tools = tools});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() &&
           constrain::check_text(made->grammar, "<function=f>\n<parameter=a>\n" + value +
                                                    "\n</parameter>\n</function>")
               .passed;
  };
  EXPECT_TRUE(passes_with(R"({"enum": ["red", "blue"]})", "blue"));
  EXPECT_FALSE(passes_with(R"({"enum": ["red", "blue"]})", "\"blue\""));
  EXPECT_TRUE(passes_with(R"({"type": "string", "maxLength": 4})", "a\xC3\xA9\ncd"s.substr(0, 5)));
  EXPECT_FALSE(passes_with(R"({"type": "string", "maxLength": 4})", "abcde"));
  EXPECT_TRUE(passes_with(R"({"type": "string", "pattern": "^[0-9]{3}$"})", "007"));
  EXPECT_FALSE(passes_with(R"({"type": "string", "pattern": "^[0-9]{3}$"})", "07"));
  EXPECT_TRUE(passes_with(R"({"type": ["string", "null"]})", "\"x\""));
  EXPECT_TRUE(passes_with(R"({"type": ["string", "null"]})", "null"));
  EXPECT_TRUE(passes_with(R"({"type": ["string", "null"]})", "x\n2024-01-02 [a] \"b\""));
  EXPECT_TRUE(passes_with(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "nullify 1"));
  for (const char* not_text :
       {"7", " -1.5e3 ", "true", "{}", "[1]", "\"", "None"})  // the parser reads other values
    EXPECT_FALSE(passes_with(R"({"type": ["string", "null"]})", not_text)) << not_text;
  EXPECT_TRUE(passes_with(R"({"type": ["string", "integer"], "maxLength": 3})", "abc"));
  EXPECT_FALSE(passes_with(R"({"type": ["string", "integer"], "maxLength": 3})", "abcd"));
  EXPECT_TRUE(passes_with(R"({"enum": ["red", "1", 2, null]})", "red"));
  EXPECT_FALSE(passes_with(R"({"enum": ["red", "1", 2, null]})", "1"));
  EXPECT_FALSE(passes_with(R"({"type": ["integer", "null"]})", "x"));
  EXPECT_TRUE(passes_with(R"({"type": ["string", "null"], "maxLength": 100000})", "\"x\""));
  EXPECT_TRUE(passes_with(R"({"type": "array", "items": {"type": "string"}})", "[\"a<\"]"));
  // The parser would read this as the end of the value.
  EXPECT_FALSE(
      passes_with(R"({"type": "array", "items": {"type": "string"}})", "[\"</parameter>\"]"));
  const std::string either =
      R"([{"function": {"name": "f", "strict": %, "parameters": {"type": "object", "properties": {"a": {}, "b": {}},
           "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}}])";
  const auto with = [&](const char* strict) {
    std::string tools = either;
    tools.replace(tools.find('%'), 1, strict);
    return tools;
  };
  const auto refused = grammar_of("glm", {.tools = with("true")});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("anyOf"), std::string::npos)
      << refused.error().message();
  const auto warned = grammar_of("glm", {.tools = with("false")});
  ASSERT_TRUE(warned.ok());
  EXPECT_EQ(warned->warnings.size(), 1U);
}

// The masks of texts between tags are large. Tools whose arguments are the same kind of text share them, because they
// share the automaton.
TEST(CallGrammar, ToolsShareTheAutomataOfTheirTexts) {
  std::string tools;
  for (int i = 0; i < 12; ++i) {
    tools +=
        (i == 0 ? "[" : ", ") + R"({"function": {"name": "tool_)"s + std::to_string(i) +
        R"(", "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"},
             "c": {"type": ["string", "null"]}, "d": {"type": "array", "items": {"type": "string"}}}}}})";
  }
  const auto made = grammar_of("qwen3-coder", {.tools = tools + "]"});
  ASSERT_TRUE(made.ok()) << made.error().message();
  std::set<const constrain::Dfa*> texts, strings;
  std::size_t places = 0;
  for (const constrain::Node& node : made->grammar->nodes) {
    if (node.kind != constrain::NodeKind::kText) continue;
    texts.insert(made->grammar->automata[node.index].get());
    ++places;
  }
  for (const constrain::StringShape& shape : made->grammar->strings)
    strings.insert(shape.contents.get());
  EXPECT_GE(places, 36U);
  EXPECT_EQ(texts.size(), 2U);  // any text, and texts that are no JSON
  EXPECT_EQ(strings.size(), 1U);
}

// Returns how much more often `byte` is taken than others; otherwise texts would almost never end.
std::size_t weight(const std::string& text, unsigned char byte, const std::string& closing) {
  for (std::size_t begun = closing.size(); begun-- > 1;) {
    if (text.ends_with(closing.substr(0, begun)))
      return byte == static_cast<unsigned char>(closing[begun]) ? 800 : 1;
  }
  const bool closes = !closing.empty() && byte == static_cast<unsigned char>(closing[0]);
  return closes || byte == '"' || byte == '}' || byte == ']' ? 60 : 1;
}

// Returns a random text that the grammar accepts; empty if it became too long. `closing` ends plain texts in it.
std::string walk(const std::shared_ptr<const constrain::Grammar>& grammar,
                 const std::string& closing, std::mt19937& random) {
  constexpr std::size_t kMost = 3000;
  constrain::Automaton automaton(grammar);
  constrain::ConfigId at = automaton.start();
  std::string text;
  while (text.size() < kMost) {
    if (automaton.accepting(at) && random() % 3 == 0) return text;
    std::vector<unsigned char> ways;
    for (int byte = 0; byte < 256; ++byte) {
      const auto way = static_cast<unsigned char>(byte);
      if (automaton.step(at, way) != constrain::kNowhere)
        ways.insert(ways.end(), weight(text, way, closing), way);
    }
    if (ways.empty()) return automaton.accepting(at) ? text : "a dead end: " + text;
    text += static_cast<char>(ways[random() % ways.size()]);
    at = automaton.step(at, static_cast<unsigned char>(text.back()));
  }
  return {};
}

TEST(CallGrammar, HoldsArgumentsInOtherNotations) {
  for (const NotatedCalls& row : kNotatedCalls) {
    for (const std::string& text : row.right)
      EXPECT_TRUE(passes(row.family, text)) << text;
    for (const std::string& text : row.wrong)
      EXPECT_FALSE(passes(row.family, text)) << text;
  }
}

// Whatever a schema contains, the arguments that are read from a call in another notation are valid
// under it.
TEST(CallGrammar, ValuesOfAllKindsKeepTheirSchemaInEachNotation) {
  const char* const schema = R"({"type": "object", "additionalProperties": false,
      "properties": {"code": {"type": "string", "pattern": "^[a-z]{2}/[0-9]$"},
                     "kind": {"enum": ["a/b", "c\"d", null, true, 1.5, {"x": [false, "y"]}]},
                     "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
                     "map": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}, "maxProperties": 2},
                     "self": {"$ref": "#"}, "self_2": {"type": "integer"},
                     "short": {"type": "string", "minLength": 1, "maxLength": 3}},
      "required": ["kind", "short", "code", "list", "self_2"]})";
  const std::string tools =
      R"([{"function": {"name": "f", "strict": true, "parameters": )" + std::string(schema) + "}}]";
  const auto compiled = constrain::compile_schema(schema, constrain::Strictness::kStrict);
  ASSERT_TRUE(compiled.ok());
  std::mt19937 random(11);
  for (const NotatedCalls& row : kNotatedCalls) {
    const auto made = grammar_of(row.family, {.tools = tools, .one_call = true});
    ASSERT_TRUE(made.ok()) << made.error().message();
    int read = 0;
    for (int i = 0; i < 30 && !(kSample && read > 3); ++i) {
      const std::string text =
          walk(made->grammar, model::answer::family_named("gemma4")->calls.string_mark, random);
      if (text.empty()) continue;
      model::answer::AnswerParser parser(*model::answer::family_named(row.family),
                                         {*model::answer::Tools::from_json(tools), "", 1});
      model::answer::Message message;
      message.add(parser.feed(text));
      message.add(parser.finish(model::answer::Ended::kStop));
      ASSERT_EQ(message.calls.size(), 1U) << text;
      EXPECT_TRUE(constrain::check_text(compiled->grammar, message.calls[0].arguments).passed)
          << text << " is " << message.calls[0].arguments;
      ++read;
    }
    EXPECT_GT(read, kSample ? 3 : 10) << row.family;
  }
}

// The templates of Gemma sort the names of arguments, also of those within arguments.
TEST(CallGrammar, GemmaWritesArgumentsInTheOrderOfTheirNames) {
  const std::string tools =
      R"([{"function": {"name": "f", "parameters": {"type": "object", "required": ["zone", "Body"],
      "properties": {"zone": {"type": "string"}, "Body": {"type": "object", "properties": {"b": {}, "a": {"enum": [{"y": 1, "x": 2}]}}},
                     "properties": {"type": "integer"}}}}}])";
  const std::string call =
      R"(<|tool_call>call:f{Body:{a:{y:1,x:2},b:2},properties:3,zone:<|"|>x<|"|>}<tool_call|>)";
  EXPECT_TRUE(passes("gemma4", call, {.tools = tools}));
  EXPECT_FALSE(passes("gemma4", R"(<|tool_call>call:f{zone:<|"|>x<|"|>,Body:{}}<tool_call|>)",
                      {.tools = tools}));
}

// The grammar leaves out a name that it can't write, or refuses the tool if the name is required.
TEST(CallGrammar, NamesThatANotationCannotWriteAreNamed) {
  const auto tools = [](const char* strict) {
    return R"([{"function": {"name": "f", "strict": )" + std::string(strict) +
           R"(, "parameters": {"type": "object", "properties": {"a, b": {}, "c": {}}, "required": ["a, b"]}}}])";
  };
  const std::string strict = tools("true"), lenient = tools("false");
  for (const NotatedCalls& row : kNotatedCalls) {
    const auto refused = grammar_of(row.family, {.tools = strict});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message().find("a, b"), std::string::npos);
    const auto warned = grammar_of(row.family, {.tools = lenient});
    ASSERT_TRUE(warned.ok());
    EXPECT_EQ(warned->warnings.size(), 1U);
  }
}

TEST(CallGrammar, HoldsEachFamilysCallsToTheirSchemas) {
  for (const CallRow& row : kCallRows) {
    const auto call = [&](const std::string& arguments) {
      return row.before + arguments + row.behind;
    };
    EXPECT_TRUE(passes(row.family, call(R"({"city": "Oslo", "days": 2})"))) << call("...");
    EXPECT_TRUE(passes(row.family, call(R"({"city": "a } ] < \" b"})"))) << call("...");
    for (const char* bad : {R"({"city": 5})", R"({"days": 2})", R"({"city": "Oslo", "days": 0})",
                            R"({"city": "Oslo", "more": 1})", R"([])", R"({"city": "Oslo")"})
      EXPECT_FALSE(passes(row.family, call(bad))) << call(bad);
    std::string other = call("{}");
    other.replace(other.find("get_weather"), 11, "get_nothing");
    EXPECT_FALSE(passes(row.family, other)) << other;
  }
}

// The grammar and the parser are made from one row, and agree on what a call is.
TEST(CallGrammar, TheParserReadsAsCallsWhatItLetsThrough) {
  std::mt19937 random(7);
  const char* const mixed = R"({"type": "object", "required": ["city", "note"], "properties": {
      "city": {"type": "string"}, "note": {"type": ["string", "null"], "minLength": 2},
      "id": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]}}, "additionalProperties": false})";
  const auto plain = constrain::compile_schema(kWeatherSchema, constrain::Strictness::kStrict);
  const auto with_types = constrain::compile_schema(mixed, constrain::Strictness::kStrict);
  const std::string mixed_tools = R"([{"function": {"name": "get_weather", "parameters": )" +
                                  std::string(mixed) + R"(}}, {"function": {"name": "get_time"}}])";
  std::size_t tried = 0;
  for (const model::answer::Family& family : model::answer::families()) {
    if (family.calls.syntax == model::answer::CallSyntax::kNone) continue;
    if (tried++ % (kSample ? 2 * kStride : 1) != 0) continue;
    const bool tagged = family.calls.syntax == model::answer::CallSyntax::kTagged;
    const auto& schema = tagged ? with_types : plain;
    const std::string& tools = tagged ? mixed_tools : kCallTools;
    const auto made = grammar_of(family.name.c_str(), {.tools = tools});
    ASSERT_TRUE(made.ok());
    int read = 0;
    for (int i = 0; i < (tagged ? 30 : 12) && read < (kSample ? 1 : 6); ++i) {
      const model::answer::Tags& tags = family.calls.tags;
      std::string closing = (tags.strip_newlines ? "\n" : "") + tags.value_close;
      if (family.calls.syntax == model::answer::CallSyntax::kBareKeys)
        closing = family.calls.string_mark;
      const std::string text = walk(made->grammar, closing, random);
      if (text.empty()) continue;
      const bool channels = family.calls.syntax == model::answer::CallSyntax::kChannels;
      model::answer::AnswerParser parser(family, {*model::answer::Tools::from_json(tools),
                                                  channels ? "<|start|>assistant" : "", 1});
      model::answer::Message message;
      message.add(parser.feed(text));
      message.add(parser.finish(model::answer::Ended::kStop));
      EXPECT_EQ(message.content, "") << family.name << ": " << text;
      EXPECT_FALSE(message.calls.empty()) << family.name << ": " << text;
      for (const auto& call : message.calls) {
        if (call.name == "get_weather") {
          EXPECT_TRUE(constrain::check_text(schema->grammar, call.arguments).passed)
              << family.name << ": " << call.arguments;
        }
      }
      ++read;
    }
    EXPECT_GT(read, kSample ? 0 : 4) << family.name;
  }
}

TEST(CallGrammar, HasRowsOfEveryFamily) {
  for (const model::answer::Family& family : model::answer::families()) {
    if (family.calls.syntax == model::answer::CallSyntax::kNone) continue;
    EXPECT_TRUE(
        std::ranges::any_of(kCallRows,
                            [&](const CallRow& row) { return family.name == row.family; }) ||
        std::ranges::any_of(kTaggedCallRows,
                            [&](const TaggedCallRow& row) { return family.name == row.family; }) ||
        std::ranges::any_of(kNotatedCalls,
                            [&](const NotatedCalls& row) { return family.name == row.family; }))
        << family.name;
  }
}

// Families that are derived from a template have such sections.
TEST(CallGrammar, ASectionMayHoldCallsInJson) {
  model::answer::Family family = *model::answer::family_named("hermes");
  family.calls.section = "<calls>";
  family.calls.closers = {"</tool_call>", "</calls>"};
  engine::CallWish wish;
  wish.tools = kCallTools;
  const auto made = engine::make_call_grammar(family, wish, as_text);
  ASSERT_TRUE(made.ok()) << made.error().message();
  const std::string call =
      "<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\":\"a\"}}</tool_call>";
  for (const std::string& right :
       {"<calls>" + call + "</calls>", "<calls>\n" + call + "\n" + call + "\n</calls>", call})
    EXPECT_TRUE(constrain::check_text(made->grammar, right).passed) << right;
  EXPECT_FALSE(constrain::check_text(made->grammar, "<calls></calls>").passed);
}

// The grammar of a derived family lets through what the family's model says, and nothing that the
// tool's schema forbids.
TEST(CallGrammar, HoldsArgumentsBetweenDerivedTags) {
  for (const TaggedTemplate& row : tagged_templates()) {
    const auto chat = jinja::Chat::load(with_calls(row.calls), "", "");
    ASSERT_TRUE(chat.ok()) << chat.error().message();
    engine::CallWish wish;
    wish.tools = kTypedTools;
    const auto made =
        engine::make_call_grammar(model::answer::family_of_chat(*chat), wish, as_text);
    ASSERT_TRUE(made.ok()) << row.name << made.error().message();
    const auto passes = [&](const std::string& text) {
      return constrain::check_text(made->grammar, text).passed;
    };
    EXPECT_TRUE(passes(row.call)) << row.call;
    EXPECT_TRUE(passes(row.more)) << row.more;
    EXPECT_TRUE(passes(row.call + row.more)) << row.name;
    std::string wrong = row.call;
    wrong.replace(wrong.find('2'), 1, "many");
    EXPECT_FALSE(passes(wrong)) << wrong;
    std::string unknown = row.call;
    unknown.replace(unknown.find("get_weather"), 11, "get_nothing");
    EXPECT_FALSE(passes(unknown)) << unknown;
  }
}

// The grammar's nodes move in memory as it grows. With each number of tools they move at another step of its making.
TEST(CallGrammar, SeveralCallsWithAnyNumberOfTools) {
  std::string tools;
  for (int count = 1; count <= 80; ++count) {
    tools += std::string(count == 1 ? "" : ", ") + R"({"function": {"name": "t)" +
             std::to_string(count) + R"("}})";
    if (static_cast<std::size_t>(count) % kStride != 0) continue;
    const std::string all = "[" + tools + "]";
    const engine::CallWish wish{.tools = all};
    const std::string call = "<｜tool▁call▁begin｜>t1<｜tool▁sep｜>{}<｜tool▁call▁end｜>";
    EXPECT_TRUE(
        passes("deepseek", "<｜tool▁calls▁begin｜>" + call + call + "<｜tool▁calls▁end｜>", wish))
        << count;
    const std::string item = R"({"name": "t1", "arguments": {}})";
    EXPECT_TRUE(passes("mistral-list", "[TOOL_CALLS][" + item + ", " + item + "]", wish)) << count;
    EXPECT_TRUE(passes(
        "hermes", "<tool_call>" + item + "</tool_call><tool_call>" + item + "</tool_call>", wish))
        << count;
  }
}

TEST(CallGrammar, OneCallOrMore) {
  const std::string one = "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
  EXPECT_TRUE(passes("hermes", one + "\n" + one));
  EXPECT_FALSE(passes("hermes", one + "\n" + one, {.tools = kCallTools, .one_call = true}));
  const std::string item = R"({"name": "get_time", "arguments": {}})";
  const std::string list = "[TOOL_CALLS][" + item + ", " + item + "]";
  EXPECT_TRUE(passes("mistral-list", list));
  EXPECT_FALSE(passes("mistral-list", list, {.tools = kCallTools, .one_call = true}));
  EXPECT_FALSE(passes("mistral-list", "[TOOL_CALLS][]"));
}

// The text must be a call again if it follows the prompt of a request that leaves the choice to the model.
TEST(CallGrammar, ACallThatThePromptBeganBeginsWithItsName) {
  EXPECT_TRUE(passes("functionary-3.2", "get_weather\n{\"city\": \"Oslo\"}"));
  EXPECT_FALSE(passes("functionary-3.2", "\nget_weather\n{\"city\": \"Oslo\"}"));
  EXPECT_FALSE(passes("functionary-3.2", " get_weather\n{\"city\": \"Oslo\"}"));
  const std::string call = "get_weather\n{\"city\": \"Oslo\"}", next = ">>>get_time\n{}";
  EXPECT_TRUE(passes("functionary-3.2", call + next));
  EXPECT_TRUE(passes("functionary-3.2", ">>>" + call + next + next));
  EXPECT_FALSE(passes("functionary-3.2", call + call)) << "nothing separates the calls";
  EXPECT_FALSE(passes("functionary-3.2", call + next, {.tools = kCallTools, .one_call = true}));
}

TEST(CallGrammar, ANamedToolIsTheOnlyOne) {
  const engine::CallWish wish{.tools = kCallTools, .named = "get_weather", .one_call = true};
  EXPECT_TRUE(passes("mistral-args", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"\"}", wish));
  EXPECT_FALSE(passes("mistral-args", "[TOOL_CALLS]get_time[ARGS]{}", wish));
  EXPECT_FALSE(grammar_of("hermes", {.tools = kCallTools, .named = "nobody"}).ok());
}

TEST(CallGrammar, StrictToolsAreRefusedByTheirKeywordAndOthersAreWarnedOf) {
  const auto tools = [](const char* strict) {
    return R"([{"function": {"name": "f", "strict": )" + std::string(strict) +
           R"(, "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}}}])";
  };
  const std::string strict = tools("true"), lenient = tools("false");
  const auto refused = grammar_of("hermes", {.tools = strict});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("uniqueItems"), std::string::npos);
  EXPECT_NE(refused.error().message().find("'f'"), std::string::npos);
  const auto warned = grammar_of("hermes", {.tools = lenient});
  ASSERT_TRUE(warned.ok());
  ASSERT_EQ(warned->warnings.size(), 1U);
  EXPECT_NE(warned->warnings[0].find("uniqueItems"), std::string::npos);
}

// A schema that is invalid is no reason to refuse an agent's request.
TEST(CallGrammar, AToolWithAnImpossibleSchemaTakesAnyObject) {
  const char* const tools =
      R"([{"function": {"name": "f", "parameters": {"type": "object", "properties": 7}}}])";
  const auto made = grammar_of("hermes", {.tools = tools});
  ASSERT_TRUE(made.ok()) << made.error().message();
  EXPECT_EQ(made->warnings.size(), 1U);
  EXPECT_TRUE(
      constrain::check_text(made->grammar,
                            "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1]}}</tool_call>")
          .passed);
}

}  // namespace
}  // namespace bulkhead::test
