// Families of templates that the table does not have.
#include "worker/model/answer/derived_family.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fixtures.hpp"
#include "tests/support/tagged_templates.hpp"
#include "worker/model/answer/answer_parser.hpp"

namespace bulkhead::model::answer {
namespace {

using test::kTypedTools;
using test::tagged_templates;
using test::TaggedTemplate;
using test::with_calls;

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}])";

const Family& family_of(const std::string& source) {
  const Result<jinja::Chat> chat = jinja::Chat::load(source, "", "");
  EXPECT_TRUE(chat.ok()) << chat.error().message();
  return family_of_chat(*chat);
}

Message read(const Family& family, std::string_view raw, std::size_t piece = 1000,
             const char* tools = kTools) {
  AnswerParser parser(family, {.tools = *Tools::from_json(tools), .prompt_end = {}, .id_seed = 1});
  Message message;
  for (std::size_t at = 0; at < raw.size(); at += piece)
    message.add(parser.feed(raw.substr(at, piece)));
  message.add(parser.finish(Ended::kStop));
  return message;
}

void expect_weather(const Family& family, const std::string& raw) {
  for (const std::size_t piece : {1, 1000}) {
    const Message message = read(family, raw, piece);
    EXPECT_EQ(message.content, "");
    ASSERT_EQ(message.calls.size(), 1U) << raw;
    EXPECT_EQ(message.calls[0].name, "get_weather");
    EXPECT_EQ(message.calls[0].arguments, R"({"city": "Oslo"})");
  }
}

constexpr const char* kEach =
    "{% for c in m.tool_calls %}<call>{\"fn\":{{ c.function.name | tojson }},\"args\":"
    "{{ c.function.arguments | tojson }}}</call>{% endfor %}";

TEST(DerivedFamily, HasAnObjectBetweenItsMarks) {
  const Family& family = family_of(with_calls(kEach));
  EXPECT_EQ(family.name, "derived");
  EXPECT_EQ(family.calls.opens, std::vector<std::string>{"<call>"});
  EXPECT_EQ(family.calls.closers, std::vector<std::string>{"</call>"});
  EXPECT_EQ(family.calls.section, "");
  expect_weather(family, R"(<call>{"fn": "get_weather", "args": {"city": "Oslo"}}</call>)");
  const Message two = read(family,
                           "On it.\n<call>{\"fn\":\"now\",\"args\":{}}</call>\n"
                           "<call>{\"fn\":\"get_weather\",\"args\":{\"city\":1}}</call>");
  EXPECT_EQ(two.content, "On it.");
  EXPECT_EQ(two.calls.size(), 2U);
}

TEST(DerivedFamily, HasASectionAroundSeveralCalls) {
  const Family& family = family_of(with_calls("<calls>\n" + std::string(kEach) + "\n</calls>"));
  EXPECT_EQ(family.calls.section, "<calls>");
  EXPECT_EQ(family.calls.opens, std::vector<std::string>{"<call>"});
  EXPECT_EQ(family.calls.closers, (std::vector<std::string>{"</call>", "</calls>"}));
  expect_weather(family,
                 "<calls>\n<call>{\"fn\": \"get_weather\", \"args\": {\"city\": \"Oslo\"}}</call>\n"
                 "</calls>");
}

TEST(DerivedFamily, HasAListOfCalls) {
  const Family& family =
      family_of(with_calls("[[do]][{% for c in m.tool_calls %}{{ \", \" if not loop.first "
                           "}}{\"tool\": \"{{ c.function.name "
                           "}}\", \"input\": {{ c.function.arguments | tojson }}, \"id\": \"{{ "
                           "c.id }}\"}{% endfor %}]"));
  EXPECT_EQ(family.calls.syntax, CallSyntax::kJsonList);
  EXPECT_TRUE(family.calls.keys.id_last);
  const Message message =
      read(family, R"([[do]][{"tool": "get_weather", "input": {"city": 1}, "id": "abcdefghi"}])");
  ASSERT_EQ(message.calls.size(), 1U);
  EXPECT_EQ(message.calls[0].id, "abcdefghi");
}

TEST(DerivedFamily, HasANameAndThenAnObject) {
  for (const char* between : {"\">\n", ": ", ""}) {
    const Family& family = family_of(
        with_calls("{% for c in m.tool_calls %}<use tool=\"{{ c.function.name }}" +
                   std::string(between) + "{{ c.function.arguments | tojson }}</use>{% endfor %}"));
    EXPECT_EQ(family.calls.syntax, CallSyntax::kNamed) << between;
    expect_weather(family,
                   "<use tool=\"get_weather" + std::string(between) + R"({"city": "Oslo"}</use>)");
  }
  // The blank belongs to the mark, because a grammar writes the name directly behind it.
  const Family& spaced =
      family_of(with_calls("{% for c in m.tool_calls %}[to {{ c.function.name }}]{{ "
                           "c.function.arguments | tojson }}[/to]\n"
                           "{% endfor %}"));
  EXPECT_EQ(spaced.calls.opens, std::vector<std::string>{"[to "});
  expect_weather(spaced, R"([to get_weather]{"city": "Oslo"}[/to])");
}

TEST(DerivedFamily, MayHaveNoMark) {
  const Family& family = family_of(with_calls(
      "{% for c in m.tool_calls %}{\"action\": \"{{ c.function.name }}\", \"action_input\": "
      "{{ c.function.arguments | tojson }}}{% endfor %}"));
  EXPECT_TRUE(family.calls.bare_json);
  expect_weather(family, R"({"action": "get_weather", "action_input": {"city": "Oslo"}})");
  EXPECT_EQ(read(family, R"({"action": "think"})").content, R"({"action": "think"})");
}

TEST(DerivedFamily, MayHaveAListWithoutAnyMark) {
  const Family& family =
      family_of(with_calls("[{% for c in m.tool_calls %}{{ \", \" if not loop.first }}{\"name\": "
                           "\"{{ c.function.name }}\", "
                           "\"arguments\": {{ c.function.arguments | tojson }}}{% endfor %}]"));
  expect_weather(family, R"([{"name": "get_weather", "arguments": {"city": "Oslo"}}])");
  const Message two =
      read(family, R"([{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}])");
  EXPECT_EQ(two.calls.size(), 2U);
  for (const char* text :
       {R"([{"name": "think"}])", "[1, 2]", "[]", "[1] is a note.", "[{\"a\": 1}]"}) {
    for (const std::size_t piece : {1, 1000})
      EXPECT_EQ(read(family, text, piece).content, text);
  }
}

TEST(DerivedFamily, MayBePythonsNotation) {
  const std::string each =
      "{% for c in m.tool_calls %}{{ SEP if not loop.first }}{{ c.function.name }}({% for k, v in "
      "c.function.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %}){% endfor %}";
  const Family& bare = family_of(with_calls("{% set SEP = ', ' %}[" + each + "]"));
  expect_weather(bare, R"([get_weather(city="Oslo")])");
  EXPECT_EQ(read(bare, R"([now(), get_weather(city='Oslo')])").calls.size(), 2U);
  for (const char* text : {"[then(a=1)]", "[now]", "now()", "[1] is a note."})
    EXPECT_EQ(read(bare, text).content, text);
  const Family& marked =
      family_of(with_calls("{% set SEP = '\n' %}<calls>\n" + each + "\n</calls>"));
  expect_weather(marked, "<calls>\nget_weather(city=\"Oslo\")\n</calls>");
  const Message two = read(marked, "On it.\n<calls>\nnow()\nget_weather(city=\"Oslo\")\n</calls>");
  EXPECT_EQ(two.content, "On it.");
  EXPECT_EQ(two.calls.size(), 2U);
}

TEST(DerivedFamily, MayHaveOnlyBlanksBetweenCallsInASection) {
  const Family& family = family_of(
      with_calls("<calls>\n{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", "
                 "\"arguments\": {{ c.function.arguments | tojson }}}\n{% endfor %}</calls>"));
  expect_weather(
      family,
      "<calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</calls>");
  for (const std::size_t piece : {1, 1000}) {
    const Message two = read(family,
                             "<calls>\n{\"name\": \"now\", \"arguments\": {}}\n"
                             "{\"name\": \"get_weather\", \"arguments\": {}}\n</calls>",
                             piece);
    EXPECT_EQ(two.content, "");
    EXPECT_EQ(two.calls.size(), 2U);
  }
}

TEST(DerivedFamily, TakesArgumentsThatAreAText) {
  const Family& family = family_of(
      with_calls("{% for c in m.tool_calls %}<call>{\"fn\": \"{{ c.function.name }}\", \"args\": "
                 "{{ c.function.arguments }}}</call>{% endfor %}"));
  expect_weather(family, R"(<call>{"fn": "get_weather", "args": {"city": "Oslo"}}</call>)");
}

TEST(DerivedFamily, HasTheMarksOfReasoning) {
  const Family& family = family_of(
      "{% for m in messages %}<|{{ m.role }}|>\n{% if m.reasoning_content %}<musing>\n"
      "{{ m.reasoning_content }}\n</musing>\n\n{% endif %}{{ m.content }}<|over|>\n{% endfor %}");
  EXPECT_EQ(family.reasoning.open, "<musing>");
  EXPECT_EQ(family.reasoning.close, "</musing>");
  const Message message = read(family, "<musing>\nWell.\n</musing>\n\nYes.");
  EXPECT_EQ(message.reasoning, "Well.");
  EXPECT_EQ(message.content, "Yes.");
}

TEST(DerivedFamily, MayHaveTagsForEachArgument) {
  for (const TaggedTemplate& row : tagged_templates()) {
    const Family& family = family_of(with_calls(row.calls));
    EXPECT_EQ(family.calls.syntax, CallSyntax::kTagged) << row.name;
    for (const std::size_t piece : {1, 3, 1000}) {
      const Message message =
          read(family, "On it.\n" + row.call + "\n" + row.more, piece, kTypedTools);
      EXPECT_EQ(message.content, "On it.") << row.name;
      ASSERT_EQ(message.calls.size(), 2U) << row.name;
      EXPECT_EQ(message.calls[0].name, "get_weather");
      EXPECT_EQ(message.calls[0].arguments, R"({"city": "Oslo", "days": 2})") << row.name;
      EXPECT_EQ(message.calls[1].name, "add");
      EXPECT_EQ(message.calls[1].arguments, R"({"note": " a\n<b>", "at": {"x": [1]}})") << row.name;
    }
  }
}

// Blanks beside a value would belong to it, and a template may write arguments so that nothing closes a value.
TEST(DerivedFamily, IsNoneWhereTagsCantBeToldApart) {
  for (const char* argument :
       {"<p>{{ k }}</p> {{ v }} <q>", "{{ k }} is {{ v }}\n", "<{{ k }}>{{ v }}</{{ k }}>"}) {
    const std::string calls =
        "{% for c in m.tool_calls %}<call>{{ c.function.name }}{% for k, v in "
        "c.function.arguments.items() %}" +
        std::string(argument) + "{% endfor %}</call>{% endfor %}";
    EXPECT_EQ(&family_of(with_calls(calls)), &plain_family()) << argument;
  }
}

// DeepSeek V4.1 has a space in its tags, and each release of Hunyuan an ending of its own.
TEST(DerivedFamily, TakesThePlaceOfARowWhoseTagsTheTemplateDoesNotWrite) {
  const std::string dsml =
      "<｜DSML｜ calls>\n{% for c in m.tool_calls %}<｜DSML｜ invoke name=\"{{ c.function.name "
      "}}\">\n"
      "{% for k, v in c.function.arguments.items() %}<｜DSML｜ parameter name=\"{{ k }}\" "
      "string=\"{{ 'true' if v is string else 'false' }}\">{{ v if v is string else v | tojson }}"
      "</｜DSML｜ parameter>\n{% endfor %}</｜DSML｜ invoke>\n{% endfor %}</｜DSML｜ calls>";
  const Family& spaced = family_of(with_calls(dsml));
  EXPECT_EQ(spaced.calls.section, "<｜DSML｜ calls>");
  EXPECT_EQ(spaced.calls.opens, std::vector<std::string>{"<｜DSML｜ invoke name=\""});
  EXPECT_EQ(spaced.reasoning.open, "<think>");
  expect_weather(spaced,
                 "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter "
                 "name=\"city\" string=\"true\">Oslo</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
                 "</｜DSML｜ calls>");
  const std::string ended =
      "{% set T = ':6124' %}{% set sep = '<tool_sep{}>'.format(T) %}{% set key = "
      "'<arg_key{}>'.format(T) %}{{ '<tool_calls{}>'.format(T) }}\n{% for c in m.tool_calls %}"
      "{{ '<tool_call{}>'.format(T) + c.function.name + sep }}\n{% for k, v in "
      "c.function.arguments.items() %}{{ key + k + '</arg_key{}>'.format(T) }}\n"
      "{{ '<arg_value{}>'.format(T) }}{{ v if v is string else v | tojson }}"
      "{{ '</arg_value{}>'.format(T) }}\n{% endfor %}{{ '</tool_call{}>'.format(T) }}\n{% endfor %}"
      "{{ '</tool_calls{}>'.format(T) }}";
  const Family& suffixed = family_of(with_calls(ended));
  EXPECT_EQ(suffixed.calls.opens, std::vector<std::string>{"<tool_call:6124>"});
  expect_weather(suffixed,
                 "<tool_calls:6124>\n<tool_call:6124>get_weather<tool_sep:6124>\n"
                 "<arg_key:6124>city</arg_key:6124>\n<arg_value:6124>Oslo</arg_value:6124>\n"
                 "</tool_call:6124>\n</tool_calls:6124>");
}

// Hunyuan's templates end the last message's turn behind a call, and not behind a text.
TEST(DerivedFamily, HasNoMarkThatEndsATurn) {
  const Family& family = family_of(
      "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}{% for c in m.tool_calls "
      "%}<call>{\"fn\":{{ c.function.name | tojson }},\"args\":{{ c.function.arguments | "
      "tojson }}}</call>{% endfor %}<|over|>{% else %}{{ m.content }}{% if not loop.last "
      "%}<|over|>{% endif %}{% endif %}{% endfor %}");
  EXPECT_EQ(family.calls.closers, std::vector<std::string>{"</call>"});
}

TEST(DerivedFamily, HasTheMarksOfAnEmptyBlockOfReasoning) {
  const Family& family = family_of(
      "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}"
      "<think:x9></think:x9>{% endif %}{{ m.content }}<|over|>\n{% endfor %}");
  EXPECT_EQ(family.reasoning.open, "<think:x9>");
  EXPECT_EQ(family.reasoning.close, "</think:x9>");
  EXPECT_EQ(read(family, "<think:x9>Well.</think:x9>Yes.").reasoning, "Well.");
}

// EXAONE Deep's template shows no past reasoning.
TEST(DerivedFamily, HasTheMarksOfReasoningThatThePromptOpens) {
  const Family& family = family_of(
      "{% for m in messages %}[|{{ m.role }}|]{{ m.content.split('</thought>')[-1] }}"
      "[|endofturn|]\n{% endfor %}{% if add_generation_prompt %}[|assistant|]<thought>\n"
      "{% endif %}");
  EXPECT_EQ(family.reasoning.open, "<thought>");
  EXPECT_EQ(family.reasoning.close, "</thought>");
  AnswerParser parser(family,
                      {.tools = {}, .prompt_end = "[|assistant|]<thought>\n", .id_seed = 1});
  Message message;
  message.add(parser.feed("Well.\n</thought>\n\nYes."));
  message.add(parser.finish(Ended::kStop));
  EXPECT_EQ(message.reasoning, "Well.");
  EXPECT_EQ(message.content, "Yes.");
}

TEST(DerivedFamily, HasTheMarksAroundWhatIsSaid) {
  const Family& family = family_of(
      "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}<response>\n"
      "{{ m.content.split('</think>')[-1] }}\n</response>\n{% else %}{{ m.content }}{% endif %}"
      "<|over|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}");
  EXPECT_EQ(family.response.open, "<response>");
  EXPECT_EQ(family.response.close, "</response>");
  const Message message =
      read(family, "<think>\nWell.\n</think>\n\n<response>\nYes.\n</response>\n");
  EXPECT_EQ(message.reasoning, "Well.");
  EXPECT_EQ(message.content, "Yes.");
  // These tags enclose the whole turn.
  EXPECT_EQ(
      &family_of("{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
                 "{% if add_generation_prompt %}<assistant>{% endif %}"),
      &plain_family());
}

TEST(DerivedFamily, IsNoneWhereTheTemplateShowsNoCall) {
  const char* const ignores = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  EXPECT_EQ(&family_of(ignores), &plain_family());
  // This is neither JSON nor JSON with a name before it.
  EXPECT_EQ(&family_of(with_calls("{{ m.tool_calls }}")), &plain_family());
  EXPECT_EQ(&family_of(with_calls("a call")), &plain_family());
}

TEST(DerivedFamily, OfAKnownTemplateIsTheTables) {
  const auto folder = test::fixtures() / "templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no fixtures; set BULKHEAD_FIXTURES";
  const auto source = [&](const char* name) {
    std::ifstream in(folder / (std::string(name) + ".jinja"));
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(&family_of(source("Qwen-Qwen2.5-7B-Instruct")), family_named("hermes"));
  for (const char* name : {"microsoft-Phi-3.5-mini-instruct", "google-gemma-2-2b-it"})
    EXPECT_EQ(family_of(source(name)).calls.syntax, CallSyntax::kNone) << name;
  // For these, the table's row can also be derived from the template.
  for (const char* name : {"Qwen-Qwen2.5-7B-Instruct", "NVIDIA-Nemotron-Nano-v2",
                           "mistralai-Mistral-Nemo-Instruct-2407", "deepseek-ai-DeepSeek-V3.1"}) {
    const Result<jinja::Chat> chat = jinja::Chat::load(source(name), "", "");
    ASSERT_TRUE(chat.ok());
    const auto derived = derive_family(*chat, plain_family());
    const Family& known = family_of_template(source(name));
    ASSERT_TRUE(derived.has_value()) << name;
    EXPECT_EQ(derived->calls.syntax, known.calls.syntax) << name;
    EXPECT_EQ(derived->calls.section, known.calls.section) << name;
    EXPECT_EQ(derived->calls.opens, known.calls.opens) << name;
  }
  for (const char* name : {"GLM-4.6", "Qwen3-Coder", "MiniMax-M2", "deepseek-ai-DeepSeek-V3.2",
                           "ByteDance-Seed-OSS", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"}) {
    const Result<jinja::Chat> chat = jinja::Chat::load(source(name), "", "");
    ASSERT_TRUE(chat.ok());
    const auto derived = derive_family(*chat, plain_family());
    ASSERT_TRUE(derived.has_value()) << name;
    const Calls &calls = derived->calls, &known = family_of_template(source(name)).calls;
    EXPECT_EQ(calls.syntax, CallSyntax::kTagged) << name;
    EXPECT_EQ(calls.section, known.section) << name;
    EXPECT_EQ(calls.opens, known.opens) << name;
    EXPECT_EQ(calls.closers, known.closers) << name;
    EXPECT_EQ(calls.name_ends, known.name_ends) << name;
    EXPECT_EQ(calls.name_stops, known.name_stops) << name;
    const auto marks = [](const Tags& tags) {
      return std::vector<std::string>{tags.param_open,  tags.key_close,  tags.value_open,
                                      tags.value_close, tags.call_close, tags.type_end,
                                      tags.text_type,   tags.other_types};
    };
    EXPECT_EQ(marks(calls.tags), marks(known.tags)) << name;
    EXPECT_EQ(calls.tags.strip_newlines, known.tags.strip_newlines) << name;
  }
}

}  // namespace
}  // namespace bulkhead::model::answer
