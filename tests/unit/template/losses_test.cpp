// Tests what is adapted or said where a template would silently lose a part of the conversation.
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/template/render.hpp"
#include "worker/model/template/chat.hpp"

namespace bulkhead::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kTool =
    R"(, "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}])";

// Returns messages in which the assistant calls a tool. `said` is JSON.
std::string called(const std::string& said, const std::string& more = "") {
  return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": )" +
         said + more + R"(, "tool_calls": [{"id": "1", "type": "function", "function": )" +
         R"({"name": "f", "arguments": "{\"key\": [1, \"é\"]}"}}]}, )" +
         R"({"role": "tool", "tool_call_id": "1", "content": "r"}])";
}

ChatPrompt rendered_by(std::string_view source, const std::string& request) {
  const Result<Chat> chat = Chat::load(source, "<s>", "</s>");
  if (!chat.ok()) return {{}, {chat.error().message()}};
  Result<ChatPrompt> prompt = chat.value().render({request, testing::at_noon().now, false});
  return prompt.ok() ? *std::move(prompt) : ChatPrompt{{}, {prompt.error().message()}};
}

// As Kimi-Audio's template in vLLM, which also has no place for a system message.
TEST(Losses, ConversationsAreGivenToATemplateThatAsksForThem) {
  constexpr char kSource[] =
      "{% set messages = conversations[0] if conversations else [] %}"
      "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif "
      "%}{% endfor %}";
  const ChatPrompt prompt = rendered_by(
      kSource,
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(prompt.text(), "<user>s\na<assistant>b");
  EXPECT_THAT(prompt.warnings, IsEmpty());
}

TEST(Losses, OfQuestionsAndAnswersAreSaid) {
  const std::string request =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]})";
  EXPECT_THAT(rendered_by("nothing", request).warnings, ElementsAre(HasSubstr("what users say")));
  EXPECT_THAT(rendered_by("{{ messages[-1].content }}", request).warnings,
              ElementsAre(HasSubstr("past answers")));
}

// As Mistral Nemo's, which writes the system message into the last message, if that is a user's.
TEST(Losses, OfTheSystemMessageWhereAResultComesLastAreSaid) {
  constexpr char kSource[] =
      "{% for m in messages if m.role != 'system' %}<{{ m.role }}>"
      "{% if loop.last and m.role == 'user' and messages[0].role == 'system' %}"
      "{{ messages[0].content }}|{% endif %}{{ m.content }}"
      "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
      "{{ tools }}";
  const auto with_system = [](std::string request) {
    return request.insert(request.find('[') + 1, R"({"role": "system", "content": "s"}, )");
  };
  const std::string question = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_EQ(rendered_by(kSource, with_system(question)).text(), "<user>s|a");
  EXPECT_THAT(rendered_by(kSource, with_system(question)).warnings, IsEmpty());
  const std::string result = called("\"\"") + std::string(kTool) + "}";
  EXPECT_THAT(rendered_by(kSource, result).warnings, IsEmpty());
  EXPECT_THAT(rendered_by(kSource, with_system(result)).warnings,
              ElementsAre(HasSubstr("leaves out the system message")));
  const std::string answer =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  EXPECT_THAT(rendered_by(kSource, answer).warnings, IsEmpty());
  EXPECT_THAT(rendered_by(kSource, with_system(answer)).warnings,
              ElementsAre(HasSubstr("leaves out the system message")));
}

// As Hunyuan-A13B's, which shows calls only to a model that is offered tools.
TEST(Losses, OfCallsWhereNoToolsAreOfferedAreSaid) {
  constexpr char kSource[] =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
      "{% if tools %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | "
      "tojson }}{% endfor %}"
      "{% endif %}{% endfor %}{% for t in tools %}{{ t.function.name }}{% endfor %}";
  EXPECT_THAT(rendered_by(kSource, called("\"\"") + "}").warnings,
              ElementsAre(HasSubstr("past tool calls where no tools are offered")));
  EXPECT_THAT(rendered_by(kSource, called("\"\"") + std::string(kTool) + "}").warnings, IsEmpty());
}

// The template is written like Phi-4-mini's in vLLM. The model writes JSON, so its prompt must not show arguments in
// Python's form.
TEST(Losses, OfCallsBesideTextAreSaidAndArgumentsStayJson) {
  constexpr char kSource[] =
      "{% for m in messages %}<{{ m.role }}>{% if m.content %}{{ m.content }}{% elif m.tool_calls "
      "%}"
      "{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ "
      "c.function.arguments }}}"
      "{% endfor %}{% endif %}{% endfor %}{{ tools }}";
  const ChatPrompt alone = rendered_by(kSource, called("null") + "}");
  EXPECT_EQ(alone.text(),
            R"(<user>a<assistant>{"name": "f", "arguments": {"key": [1, "é"]}}<tool>r)");
  EXPECT_THAT(alone.warnings, IsEmpty());
  EXPECT_THAT(rendered_by(kSource, called("\"b\"") + "}").warnings,
              ElementsAre(HasSubstr("past tool calls beside text")));
}

// As gpt-oss's, which takes both for the analysis, and refuses a message that has both.
TEST(Losses, TextBesideThinkingAndCallsBecomesThinking) {
  constexpr char kSource[] =
      "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% if m.content and m.thinking %}"
      "{{ raise_exception('Not both') }}{% endif %}{{ m.content or m.thinking }}"
      "{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}{% "
      "endfor %}{{ tools }}";
  EXPECT_EQ(rendered_by(kSource, called("\"b\"", R"(, "reasoning_content": "t")") + "}").text(),
            "<user>a<assistant>t\n\nb{\"key\": [1, \"é\"]}<tool>r");
  EXPECT_EQ(rendered_by(kSource, called("\"b\"") + "}").text(),
            "<user>a<assistant>b{\"key\": [1, \"é\"]}<tool>r");
}

// As gpt-oss's, which takes such text for reasoning.
TEST(Losses, OfTextBesideOldCallsAreSaid) {
  constexpr char kSource[] =
      "{% set ns = namespace(last=-1) %}"
      "{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}{% set ns.last = "
      "loop.index0 %}"
      "{% endif %}{% endfor %}"
      "{% for m in messages %}{% if not m.tool_calls or loop.index0 > ns.last %}{{ m.content }}{% "
      "endif %}"
      "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ "
      "tools }}";
  const std::string begun = called("\"b\"");
  EXPECT_THAT(rendered_by(kSource, begun + "}").warnings, IsEmpty());
  const std::string answered =
      begun.substr(0, begun.size() - 1) +
      R"(, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]})";
  const ChatPrompt prompt = rendered_by(kSource, answered);
  EXPECT_EQ(prompt.text(), R"(a{"key": [1, "é"]}rcd)");
  EXPECT_THAT(prompt.warnings, ElementsAre(HasSubstr("that an answer has followed")));
}

// A call that was cut comes back so. The request is at fault, so the message does not speak of the template's lines.
TEST(Losses, ArgumentsThatAreNoJsonAreRefusedWithWhatToSend) {
  constexpr char kSource[] =
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | "
      "tojson }}{% endfor %}"
      "{% endfor %}{{ tools }}";
  EXPECT_THAT(
      rendered_by(
          kSource,
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls":
          [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"key\": "}}]}]})")
          .warnings,
      ElementsAre("messages[1].tool_calls[0].function.arguments is no JSON, and this model's "
                  "template needs its "
                  "parts; send an object, such as {} in place of one that was cut"));
}

// Clients of OpenRouter and of newer versions of vLLM send reasoning back under this name.
TEST(Losses, ReasoningMayHaveItsOtherName) {
  constexpr char kSource[] =
      "{% for m in messages %}[{{ m.reasoning_content }}]{{ m.content }}{% endfor %}";
  EXPECT_EQ(
      rendered_by(kSource, R"({"messages": [{"role": "assistant", "content": "a", "reasoning": "t"},
          {"role": "assistant", "content": "b", "reasoning": "t", "reasoning_content": "u"},
          {"role": "assistant", "content": "c", "reasoning": null},
          {"role": "user", "content": "d", "reasoning": "t"}]})")
          .text(),
      "[t]a[u]b[]c[]d");
}

}  // namespace
}  // namespace bulkhead::jinja
