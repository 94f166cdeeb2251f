// Raw answers of every family: this project's cases, which are beside this file, and the fixtures' cases if they are
// there.
#include "tests/unit/answer/cases.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "config/base/splitmix.hpp"
#include "tests/support/fixtures.hpp"
#include "tests/support/sample.hpp"

namespace bulkhead::model::answer::testing {
namespace {

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const std::filesystem::path source = BULKHEAD_SOURCE_DIR;
  for (const auto& folder :
       {source / "tests/unit/answer/cases", test::fixtures() / "templates/output"}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const std::vector<Case> some = read_cases(file.path());
      cases.insert(cases.end(), some.begin(), some.end());
    }
  }
  return cases;
}

TEST(AnswerCases, EveryFamilyHasSome) {
  const std::vector<Case> cases = all_cases();
  for (const Family& family : families()) {
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const Case& each) {
      return each.family == family.name;
    })) << family.name;
  }
}

TEST(AnswerCases, GiveTheirMessageWholeAndInPieces) {
  for (const Case& each : all_cases()) {
    for (const std::size_t step : {0, 1, 2, 3, 7})
      expect_whole(each, step);
  }
}

TEST(AnswerCases, CanBeCutAnywhere) {
  for (const Case& each : all_cases())
    expect_cut_anywhere(each);
}

// Answers as no model writes them: a part of one is left out, written twice, or put into another. A limit may cut them
// anywhere, too, and the arguments so far must be a beginning of the whole arguments.
TEST(AnswerCases, CutArgumentsBeginTheWholeOnesWhateverWasWritten) {
  std::uint64_t state = 1;
  const auto below = [&](std::size_t bound) { return splitmix(state += kSplitmixStep) % bound; };
  const std::vector<Case> cases = all_cases();
  for (const Case& each : cases) {
    if (each.raw.empty()) continue;
    const std::size_t at = below(each.raw.size()), bytes = 1 + below(12);
    const std::string part = each.raw.substr(at, bytes);
    std::string without = each.raw, twice = each.raw, within = each.raw;
    without.erase(at, bytes);
    twice.insert(at, part);
    within.insert(below(within.size()), part);
    for (const std::string& raw : {without, twice, within}) {
      const Message whole = parse(each, raw, 0, Ended::kStop);
      for (std::size_t end = 0; end < raw.size(); end += test::kStride) {
        SCOPED_TRACE(each.family + "/" + each.name + ": " + raw.substr(0, end));
        const Message cut = parse(each, raw.substr(0, end), 0, Ended::kLength);
        for (std::size_t i = 0; i < std::min(cut.calls.size(), whole.calls.size()); ++i) {
          if (cut.calls[i].name != whole.calls[i].name) continue;
          EXPECT_TRUE(whole.calls[i].arguments.starts_with(cut.calls[i].arguments))
              << cut.calls[i].arguments << " and not " << whole.calls[i].arguments;
        }
      }
    }
  }
}

TEST(AnswerCases, GiveDeltasAsSoonAsTheyAreDecided) {
  for (const Case& each : all_cases())
    expect_deltas_keep_up(each);
}

TEST(AnswerCases, GiveTheSameDeltasAgain) {
  for (const Case& each : all_cases()) {
    AnswerParser one = parser_for(each);
    AnswerParser other = parser_for(each);
    for (const char byte : each.raw)
      EXPECT_EQ(one.feed({&byte, 1}), other.feed({&byte, 1}));
    EXPECT_EQ(one.finish(each.ended), other.finish(each.ended));
  }
}

TEST(AnswerFamilies, AreToldFromATemplatesText) {
  const std::filesystem::path folder = test::fixtures() / "templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no fixtures; set BULKHEAD_FIXTURES";
  const std::pair<const char*, const char*> rows[] = {
      {"Apertus-8B-Instruct", "apertus"},
      {"Bielik-11B-v3.0-Instruct", "hermes"},
      {"ByteDance-Seed-OSS", "seed-oss"},
      {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r"},
      {"GLM-4.6", "glm"},
      {"HuggingFaceTB-SmolLM3-3B", "think"},
      {"Kimi-K2-Thinking", "kimi-k2"},
      {"LFM2-8B-A1B", "lfm2"},
      {"MiniMax-M2", "minimax-m2"},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3-coder"},
      {"NVIDIA-Nemotron-Nano-v2", "nemotron-v2"},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"},
      {"Qwen3.5-4B", "qwen3-coder"},
      {"StepFun3.5-Flash", "qwen3-coder"},
      {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek"},
      {"deepseek-ai-DeepSeek-V3.1", "deepseek"},
      {"deepseek-ai-DeepSeek-V3.2", "deepseek-v3.2"},
      {"google-gemma-2-2b-it", "plain"},
      {"google-gemma-4-31B-it", "gemma4"},
      {"ibm-granite-granite-3.3-2B-Instruct", "granite-3.3"},
      {"ibm-granite-granite-4.0", "hermes"},
      {"meetkai-functionary-medium-v3.1", "functionary"},
      {"meta-llama-Llama-3.2-3B-Instruct", "llama3-json"},
      {"microsoft-Phi-3.5-mini-instruct", "plain"},
      {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral-args"},
      {"mistralai-Mistral-Nemo-Instruct-2407", "mistral-list"},
      {"openai-gpt-oss-120b", "gpt-oss"},
      {"unsloth-Apriel-1.5", "apriel"},
  };
  for (const auto& [file, family] : rows) {
    std::ifstream in(folder / (std::string(file) + ".jinja"));
    const std::string text(std::istreambuf_iterator<char>(in), {});
    EXPECT_EQ(family_of_template(text).name, family) << file;
  }
}

TEST(AnswerFamilies, AreToldFromTemplatesThatNameFewMarks) {
  EXPECT_EQ(family_of_template("'<|tool_call|>' ~ call ~ '<|/tool_call|>'").name, "phi-4-mini");
  EXPECT_EQ(family_of_template("'<|tool|>' + message['tools'] + '<|/tool|>'").name,
            "phi-4-mini-list");
  EXPECT_EQ(family_of_template("'<|tool_call|>' ~ calls").name, "granite-3.3");
  EXPECT_EQ(family_of_template("\"List of tools: [\" + '</think>'").name, "lfm2");
  EXPECT_EQ(family_of_template("'<|tool_call_start|>['").name, "lfm2");
}

// The client has the beginning of the message already, so no delta repeats it.
TEST(ContinuedAnswers, GoOnWhereTheMessageEnds) {
  const auto rest_of = [](const char* family, const char* prompt_end, const char* continued,
                          const std::string& raw) {
    AnswerParser parser(*family_named(family),
                        {.tools = *Tools::from_json(R"([{"type": "function", "function":
                             {"name": "f", "parameters": {"type": "object"}}}])"),
                         .prompt_end = prompt_end,
                         .id_seed = 1,
                         .continued = continued});
    Message message;
    for (const char c : raw)
      message.add(parser.feed({&c, 1}));
    message.add(parser.finish(Ended::kStop));
    std::string all = message.reasoning + "|" + message.content;
    for (const Call& call : message.calls)
      all += "|" + call.name + call.arguments;
    return all;
  };
  const auto hermes = [&](const char* continued, const std::string& raw) {
    return rest_of("hermes", "<|im_start|>assistant\n", continued, raw);
  };
  EXPECT_EQ(hermes("<think>\nLet me", " think.\n</think>\nHi"), " think.|Hi");
  EXPECT_EQ(hermes("<think>\nLet me</thi", "nk>Hi"), "|Hi");
  EXPECT_EQ(hermes("<think>\nLet me</thi", "s"), "s|");
  EXPECT_EQ(hermes("<thi", "nk>a</think>Hi"), "a|Hi");
  EXPECT_EQ(hermes("<thi", "s"), "|s");
  EXPECT_EQ(hermes("One, two, ", "three"), "|three");
  EXPECT_EQ(hermes("One, <", " three"), "| three");
  EXPECT_EQ(hermes("I call <tool_call>", R"({"name": "f", "arguments": {}}</tool_call>)"), "||f{}");
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "f", "arguments": {"a")", ": 1}}</tool_call>"),
            "|: 1}}</tool_call>")
      << "a part of a call is no call";
  EXPECT_EQ(rest_of("llama3-json", "assistant\n\n", "{", "\"a\": 1}"), "|\"a\": 1}");
  EXPECT_EQ(rest_of("gpt-oss", "<|start|>assistant<|channel|>final<|message|>", "One", " two"),
            "| two");
}

// The parser is shown special tokens if a family writes with them, and otherwise not.
TEST(Families, KnowTheirMarks) {
  const auto knows = [](const char* family, const char* mark) {
    return has_mark(*family_named(family), mark);
  };
  EXPECT_TRUE(knows("hermes", "<tool_call>"));
  EXPECT_TRUE(knows("hermes", "</think>"));
  EXPECT_FALSE(knows("hermes", "<|im_start|>"));
  EXPECT_FALSE(knows("hermes", ""));
  EXPECT_TRUE(knows("gpt-oss", "<|channel|>"));
  EXPECT_TRUE(knows("gemma4", "<|\"|>"));
  EXPECT_TRUE(knows("mistral-args", "[ARGS]"));
  EXPECT_FALSE(has_mark(plain_family(), "<tool_call>"));
}

}  // namespace
}  // namespace bulkhead::model::answer::testing
