// Which effort of reasoning a template is given for the one that a client asked for.
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/fixtures.hpp"
#include "tests/unit/template/render.hpp"
#include "worker/model/template/chat.hpp"

namespace bulkhead::jinja {
namespace {

std::string prompt_for(std::string_view source, const std::string& effort) {
  const Result<Chat> chat = Chat::load(source, "<s>", "</s>");
  if (!chat.ok()) return chat.error().message();
  const std::string json =
      R"({"messages": [{"role": "user", "content": "a"}], "reasoning_effort": ")" + effort + "\"}";
  const Result<ChatPrompt> prompt = chat.value().render({json, testing::at_noon().now, false});
  return prompt.ok() ? prompt.value().text() : prompt.error().message();
}

// gpt-oss writes the effort into the prompt, and was trained for three.
TEST(Efforts, BecomeOneThatTheModelWasTrainedForWhereTheTemplateShowsThem) {
  constexpr char kShows[] =
      "{% if reasoning_effort is not defined %}{% set reasoning_effort = \"medium\" %}{% endif %}"
      "Reasoning: {{ reasoning_effort }}";
  EXPECT_EQ(prompt_for(kShows, "none"), "Reasoning: low");
  EXPECT_EQ(prompt_for(kShows, "minimal"), "Reasoning: low");
  EXPECT_EQ(prompt_for(kShows, "low"), "Reasoning: low");
  EXPECT_EQ(prompt_for(kShows, "medium"), "Reasoning: medium");
  EXPECT_EQ(prompt_for(kShows, "high"), "Reasoning: high");
  EXPECT_EQ(prompt_for(kShows, "xhigh"), "Reasoning: high");
  EXPECT_EQ(prompt_for(kShows, "max"), "Reasoning: high");
  EXPECT_EQ(prompt_for(kShows, "a lot"), "Reasoning: a lot");
}

TEST(Efforts, StayWhatTheyAreWhereTheTemplateNamesThem) {
  constexpr char kNames[] =
      "{% if reasoning_effort in ['minimal', \"xhigh\"] %}!{% endif %}{{ reasoning_effort }}";
  EXPECT_EQ(prompt_for(kNames, "minimal"), "!minimal");
  EXPECT_EQ(prompt_for(kNames, "xhigh"), "!xhigh");
  EXPECT_EQ(prompt_for(kNames, "max"), "!xhigh");
  EXPECT_EQ(prompt_for(kNames, "none"), "!minimal");
}

// As DeepSeek V4's does.
TEST(Efforts, BeyondHighAreTheOneThatTheTemplateLooksFor) {
  constexpr char kLooks[] = "{% if reasoning_effort == 'max' %}Think hard.{% endif %}a";
  EXPECT_EQ(prompt_for(kLooks, "xhigh"), "Think hard.a");
  EXPECT_EQ(prompt_for(kLooks, "max"), "Think hard.a");
  EXPECT_EQ(prompt_for(kLooks, "high"), "a");
}

// As Hunyuan 3's does. Without this, a client that always says medium would fail at its first request.
TEST(Efforts, ThatATemplateRefusesBecomeTheNearestThatItTakes) {
  constexpr char kRefuses[] =
      "{% if not reasoning_effort is defined %}{% set reasoning_effort = 'no_think' %}"
      "{% elif reasoning_effort not in ['high', 'low', 'no_think'] %}"
      "{{ raise_exception('should be no_think/low/high') }}{% endif %}{{ reasoning_effort }}";
  EXPECT_EQ(prompt_for(kRefuses, "none"), "no_think");
  EXPECT_EQ(prompt_for(kRefuses, "minimal"), "low");
  EXPECT_EQ(prompt_for(kRefuses, "medium"), "high");
  EXPECT_EQ(prompt_for(kRefuses, "max"), "high");
}

TEST(Efforts, AreNothingToTemplatesThatDoNotAsk) {
  EXPECT_EQ(prompt_for("{% if enable_thinking %}on{% else %}off{% endif %}", "minimal"), "off");
  EXPECT_EQ(prompt_for("{% if enable_thinking %}on{% else %}off{% endif %}", "xhigh"), "on");
}

// A user who names the template's own variable knows what it takes.
TEST(Efforts, OfChatTemplateKwargsAreTheUsersOwn) {
  const Result<Chat> chat = Chat::load("Reasoning: {{ reasoning_effort }}", "<s>", "</s>");
  ASSERT_TRUE(chat.ok());
  constexpr char kOwn[] =
      R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"reasoning_effort": "xhigh"}})";
  EXPECT_EQ(chat.value().render({kOwn, testing::at_noon().now, false}).value().text(),
            "Reasoning: xhigh");
}

}  // namespace
}  // namespace bulkhead::jinja
