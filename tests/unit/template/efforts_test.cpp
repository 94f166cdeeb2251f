// Tests which effort of reasoning a template gets when a client asks for another one.
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

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

// Compares the prompts of a template for some efforts, as pairs of an effort and its prompt.
void expect_prompts(std::string_view source,
                    std::initializer_list<std::pair<const char*, const char*>> wanted) {
  for (const auto& [effort, prompt] : wanted)
    EXPECT_EQ(prompt_for(source, effort), prompt) << effort;
}

// gpt-oss writes the effort into the prompt, and was trained for three.
TEST(Efforts, BecomeOneThatTheModelWasTrainedForWhereTheTemplateShowsThem) {
  constexpr char kShows[] =
      "{% if reasoning_effort is not defined %}{% set reasoning_effort = \"medium\" %}{% endif %}"
      "Reasoning: {{ reasoning_effort }}";
  expect_prompts(kShows, {{"none", "Reasoning: low"},
                          {"minimal", "Reasoning: low"},
                          {"low", "Reasoning: low"},
                          {"medium", "Reasoning: medium"},
                          {"high", "Reasoning: high"},
                          {"xhigh", "Reasoning: high"},
                          {"max", "Reasoning: high"},
                          {"a lot", "Reasoning: a lot"}});
}

TEST(Efforts, StayWhatTheyAreWhereTheTemplateNamesThem) {
  constexpr char kNames[] =
      "{% if reasoning_effort in ['minimal', \"xhigh\"] %}!{% endif %}{{ reasoning_effort }}";
  expect_prompts(
      kNames,
      {{"minimal", "!minimal"}, {"xhigh", "!xhigh"}, {"max", "!xhigh"}, {"none", "!minimal"}});
}

// As DeepSeek V4's does.
TEST(Efforts, BeyondHighAreTheOneThatTheTemplateLooksFor) {
  constexpr char kLooks[] = "{% if reasoning_effort == 'max' %}Think hard.{% endif %}a";
  expect_prompts(kLooks, {{"xhigh", "Think hard.a"}, {"max", "Think hard.a"}, {"high", "a"}});
}

// As Hunyuan 3's does. Without this, a client that always says medium would fail at its first request.
TEST(Efforts, ThatATemplateRefusesBecomeTheNearestThatItTakes) {
  constexpr char kRefuses[] =
      "{% if not reasoning_effort is defined %}{% set reasoning_effort = 'no_think' %}"
      "{% elif reasoning_effort not in ['high', 'low', 'no_think'] %}"
      "{{ raise_exception('should be no_think/low/high') }}{% endif %}{{ reasoning_effort }}";
  expect_prompts(kRefuses,
                 {{"none", "no_think"}, {"minimal", "low"}, {"medium", "high"}, {"max", "high"}});
}

TEST(Efforts, AreNothingToTemplatesThatDoNotAsk) {
  EXPECT_EQ(prompt_for("{% if enable_thinking %}on{% else %}off{% endif %}", "minimal"), "off");
  EXPECT_EQ(prompt_for("{% if enable_thinking %}on{% else %}off{% endif %}", "xhigh"), "on");
}

// A client of the Messages API gives the effort, and a separate field says whether the model thinks.
TEST(Efforts, MayBeGivenWithoutAWordOnWhetherTheModelThinks) {
  const Result<Chat> chat = Chat::load(
      "{% if reasoning_effort == 'max' %}Hard.{% endif %}{{ enable_thinking is defined }}", "", "");
  ASSERT_TRUE(chat.ok());
  constexpr char kTold[] =
      R"({"messages": [{"role": "user", "content": "a"}], "template_effort": "xhigh"})";
  EXPECT_EQ(chat.value().render({kTold, testing::at_noon().now, false}).value().text(),
            "Hard.False");
}

std::string prompt_with(std::string_view source, const std::string& members) {
  const Result<Chat> chat = Chat::load(source, "<s>", "</s>");
  if (!chat.ok()) return chat.error().message();
  const std::string json = R"({"messages": [{"role": "user", "content": "a"}])" +
                           (members.empty() ? "" : ", " + members) + "}";
  const Result<ChatPrompt> prompt = chat.value().render({json, testing::at_noon().now, false});
  return prompt.ok() ? prompt.value().text() : prompt.error().message();
}

// MiniMax M3 and Cohere's newer templates have variables of their own in place of enable_thinking.
TEST(Thinking, IsSwitchedByTheVariableThatTheTemplateHas) {
  constexpr const char* kTemplates[] = {
      ("{% if thinking_mode is defined %}{% if thinking_mode == 'disabled' %}off{% elif "
       "thinking_mode == 'enabled' %}on{% endif %}{% else %}free{% endif %}"),
      "{% if reasoning is defined %}{{ 'on' if reasoning else 'off' }}{% else %}free{% endif %}",
      "{% if thinking is defined %}{{ 'on' if thinking else 'off' }}{% else %}free{% endif %}"};
  for (const char* source : kTemplates) {
    EXPECT_EQ(prompt_with(source, ""), "free") << source;
    EXPECT_EQ(prompt_with(source, R"("enable_thinking": true)"), "on") << source;
    EXPECT_EQ(prompt_with(source, R"("enable_thinking": false)"), "off") << source;
    EXPECT_EQ(prompt_with(source, R"("reasoning_effort": "none")"), "off") << source;
    EXPECT_EQ(prompt_with(source, R"("reasoning_effort": "high")"), "on") << source;
    EXPECT_EQ(prompt_with(source, R"("reasoning_effort": "high", "enable_thinking": false)"), "off")
        << source;
  }
  // A variable of this name is none of those if the template has enable_thinking.
  EXPECT_EQ(
      prompt_with("{{ enable_thinking }} {{ reasoning is defined }}", R"("enable_thinking": true)"),
      "True False");
}

// As templates of Mistral and Hunyuan do, which have no other variable.
TEST(Thinking, IsSwitchedByTheEffortWhereATemplateKnowsNone) {
  constexpr char kSource[] =
      "{% set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'none' %}"
      "{% if reasoning_effort not in ['none', 'low', 'high'] %}{{ raise_exception('no') }}{% endif "
      "%}"
      "{% if reasoning_effort != 'none' %}think {{ 'hard' if reasoning_effort == 'high' }}{% endif "
      "%}";
  EXPECT_EQ(prompt_with(kSource, ""), "");
  EXPECT_EQ(prompt_with(kSource, R"("enable_thinking": true)"), "think hard");
  EXPECT_EQ(prompt_with(kSource, R"("enable_thinking": false)"), "");
  EXPECT_EQ(prompt_with(kSource, R"("enable_thinking": true, "template_effort": "low")"), "think ");
  EXPECT_EQ(prompt_with(kSource, R"("enable_thinking": false, "template_effort": "low")"), "");
  EXPECT_EQ(prompt_with(kSource, R"("enable_thinking": false, "reasoning_effort": "high")"), "");
  EXPECT_EQ(prompt_with(kSource, R"("enable_thinking": true, "reasoning_effort": "low")"),
            "think ");
  // gpt-oss writes any effort into its prompt, and always reasons: its effort stays what it is.
  constexpr char kShows[] = "Reasoning: {{ reasoning_effort | default('medium') }}";
  EXPECT_EQ(prompt_with(kShows, R"("enable_thinking": true)"), "Reasoning: medium");
  EXPECT_EQ(prompt_with(kShows, R"("enable_thinking": false)"), "Reasoning: medium");
}

// GLM, DeepSeek V4 and Nemotron say what they drop; Qwen and LFM2 say what they keep.
TEST(Thinking, OfTheHistoryIsKeptByTheVariableThatTheTemplateHas) {
  for (const char* name : {"preserve_thinking", "keep_past_thinking"}) {
    const std::string source =
        fmt::format("{{% if {0} is defined %}}{{{{ {0} }}}}{{% else %}}free{{% endif %}}", name);
    EXPECT_EQ(prompt_with(source, ""), "free") << name;
    EXPECT_EQ(prompt_with(source, R"("keep_reasoning": true)"), "True") << name;
    EXPECT_EQ(prompt_with(source, R"("keep_reasoning": false)"), "False") << name;
  }
  for (const char* name : {"clear_thinking", "drop_thinking", "truncate_history_thinking"}) {
    const std::string source =
        fmt::format("{{% if {0} is defined %}}{{{{ {0} }}}}{{% else %}}free{{% endif %}}", name);
    EXPECT_EQ(prompt_with(source, ""), "free") << name;
    EXPECT_EQ(prompt_with(source, R"("keep_reasoning": true)"), "False") << name;
    EXPECT_EQ(prompt_with(source, R"("keep_reasoning": false)"), "True") << name;
    EXPECT_EQ(prompt_with(source, R"("keep_reasoning": true, "chat_template_kwargs": {")" +
                                      std::string(name) + R"(": true})"),
              "True")
        << name;
  }
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
