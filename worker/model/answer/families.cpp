// The table of families: one row for each way of writing reasoning and calls. A new family needs a row here and its
// cases in tests/unit/answer/, and nothing else if its CallSyntax exists.
#include <string>
#include <utility>
#include <vector>

#include "worker/model/answer/family.hpp"

namespace bulkhead::model::answer {
namespace {

Family glm() {
  return {.name = "glm",
          .signs = {"<arg_key>"},
          .reasoning = kThink,
          .calls = {.syntax = CallSyntax::kTagged,
                    .opens = {"<tool_call>"},
                    .closers = {"</tool_call>"},
                    .name_stops = {"\n", "<arg_key>", "</tool_call>"},
                    .tags = {.param_open = "<arg_key>",
                             .key_close = "</arg_key>",
                             .value_open = "<arg_value>",
                             .value_close = "</arg_value>",
                             .call_close = "</tool_call>"}}};
}

// Calls as GLM writes them, with an ending of its own in every mark.
Family hunyuan3(std::string name, std::vector<std::string> signs, const std::string& ending) {
  return {.name = std::move(name),
          .signs = std::move(signs),
          .reasoning = {.open = "<think" + ending, .close = "</think" + ending},
          .calls = {.syntax = CallSyntax::kTagged,
                    .section = "<tool_calls" + ending,
                    .opens = {"<tool_call" + ending},
                    .closers = {"</tool_call" + ending, "</tool_calls" + ending},
                    .name_ends = {"<tool_sep" + ending},
                    .tags = {.param_open = "<arg_key" + ending,
                             .key_close = "</arg_key" + ending,
                             .value_open = "<arg_value" + ending,
                             .value_close = "</arg_value" + ending,
                             .call_close = "</tool_call" + ending}}};
}

Family longcat() {
  return {.name = "longcat",
          .signs = {"<longcat_arg_key>"},
          .reasoning = {.open = "<longcat_think>", .close = "</longcat_think>"},
          .calls = {.syntax = CallSyntax::kTagged,
                    .opens = {"<longcat_tool_call>"},
                    .closers = {"</longcat_tool_call>"},
                    .name_stops = {"\n", "<longcat_arg_key>", "</longcat_tool_call>"},
                    .tags = {.param_open = "<longcat_arg_key>",
                             .key_close = "</longcat_arg_key>",
                             .value_open = "<longcat_arg_value>",
                             .value_close = "</longcat_arg_value>",
                             .call_close = "</longcat_tool_call>"}}};
}

Family minimax() {
  return {.name = "minimax-m2",
          .signs = {"<minimax:tool_call>"},
          .reasoning = kThink,
          .calls = {.syntax = CallSyntax::kTagged,
                    .section = "<minimax:tool_call>",
                    .opens = {"<invoke name=\""},
                    .closers = {"</invoke>", "</minimax:tool_call>"},
                    .name_ends = {"\">"},
                    .tags = {.param_open = "<parameter name=\"",
                             .key_close = "\">",
                             .value_close = "</parameter>",
                             .call_close = "</invoke>"}}};
}

Family minimax_m3() {
  const std::string space = "]<]minimax[>[";
  return {.name = "minimax-m3",
          .signs = {space},
          .reasoning = {.open = "<mm:think>", .close = "</mm:think>", .close_alone = true},
          .calls = {.syntax = CallSyntax::kTagged,
                    .section = space + "<tool_call>",
                    .opens = {space + "<invoke name=\""},
                    .closers = {space + "</invoke>", space + "</tool_call>"},
                    .name_ends = {"\">"},
                    .tags = {.param_open = space + "<",
                             .key_close = ">",
                             .value_close = space + "</",
                             .call_close = space + "</invoke>",
                             .elements = true}}};
}

Family minicpm5() {
  return {.name = "minicpm5",
          .signs = {"<function name=\"", "<param name=\""},
          .reasoning = kThink,
          .calls = {.syntax = CallSyntax::kTagged,
                    .opens = {"<function name=\""},
                    .closers = {"</function>"},
                    .name_ends = {"\">"},
                    .tags = {.param_open = "<param name=\"",
                             .key_close = "\">",
                             .value_close = "</param>",
                             .call_close = "</function>",
                             .cdata = true}}};
}

Family kimi_k3() {
  return {.name = "kimi-k3",
          .signs = {"<|open|>", "<|sep|>"},
          .reasoning = {.open = "<|open|>think<|sep|>", .close = "<|close|>think<|sep|>"},
          .response = {.open = "<|open|>response<|sep|>", .close = "<|close|>response<|sep|>"},
          .calls = {.syntax = CallSyntax::kTagged,
                    .section = "<|open|>tools<|sep|>",
                    .opens = {"<|open|>call tool=\""},
                    .closers = {"<|close|>call<|sep|>", "<|close|>tools<|sep|>"},
                    .name_ends = {"\""},
                    .name_tail = "<|sep|>",
                    .tags = {.param_open = "<|open|>argument key=\"",
                             .key_close = "\"",
                             .value_close = "<|close|>argument<|sep|>",
                             .call_close = "<|close|>call<|sep|>",
                             .type_end = "<|sep|>",
                             .text_type = " type=\"string\"",
                             .other_types = " type=\"(number|boolean|null|object|array)\""}},
          .skips = {"<|close|>message<|sep|>"}};
}

Family solar_open() {
  return {.name = "solar-open",
          .signs = {"<|tool_call:begin|>"},
          .reasoning = {.open = "<|think|>", .close = "<|end|>"},
          .response = {.open = "<|content|>", .close = "<|end|>"},
          .calls = {.syntax = CallSyntax::kNamed,
                    .section = "<|tool_calls|>",
                    .opens = {"<|tool_call:begin|>"},
                    .closers = {"<|tool_call:end|>", "<|calls|>"},
                    .name_ends = {"<|tool_call:args|>"},
                    .id_close = "<|tool_call:name|>"},
          .skips = {"<|begin|>assistant"}};
}

Family kimi() {
  return {
      .name = "kimi-k2",
      .signs = {"<|tool_calls_section_begin|>"},
      // K2 Thinking often calls before it has closed its reasoning; the marks are tokens that no text has.
      .reasoning = {.open = "<think>", .close = "</think>", .ends_at_call = true},
      .calls = {.syntax = CallSyntax::kNamed,
                .section = "<|tool_calls_section_begin|>",
                .opens = {"<|tool_call_begin|>"},
                .closers = {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
                .name_form = NameForm::kWithIndex,
                .name_ends = {"<|tool_call_argument_begin|>"}}};
}

Family gpt_oss() {
  return {.name = "gpt-oss",
          .signs = {"<|channel|>"},
          .reasoning = {.open = "analysis", .close = "<|end|>", .anywhere = true},
          .calls = {.syntax = CallSyntax::kChannels,
                    .other_marks = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                    "<|end|>", "<|return|>", "<|call|>"}}};
}

// Headers as in harmony, which name the recipient, but calls in tags.
Family muse() {
  return {.name = "muse",
          .signs = {"<atem:invoke"},
          .reasoning = {.open = " to=self<|message|>", .close = "<|eom|>", .anywhere = true},
          .calls = {.syntax = CallSyntax::kTagged,
                    .section = "<atem:function_calls>",
                    .opens = {"<atem:invoke name=\""},
                    .closers = {"</atem:invoke>", "</atem:function_calls>"},
                    .name_ends = {"\">"},
                    .tags = {.param_open = "<atem:parameter name=\"",
                             .key_close = "\">",
                             .value_close = "</atem:parameter>",
                             .call_close = "</atem:invoke>"}},
          .skips = {" to=user<|message|>", "<|eom|>", "<|start|>assistant"},
          .skip_before_name = " to=",
          .skip_behind_name = "<|message|>"};
}

Family gemma4() {
  return {.name = "gemma4",
          .signs = {"<|tool_call>call:"},
          .reasoning = {.open = "<|channel>thought", .close = "<channel|>", .anywhere = true},
          .calls = {.syntax = CallSyntax::kBareKeys,
                    .opens = {"<|tool_call>"},
                    .closers = {"<tool_call|>"},
                    .name_form = NameForm::kCallWord,
                    .name_stops = {"{", "<tool_call|>"},
                    .string_mark = "<|\"|>"}};
}

Family function_gemma() {
  return {.name = "function-gemma",
          .signs = {"<start_function_call>"},
          .calls = {.syntax = CallSyntax::kBareKeys,
                    .opens = {"<start_function_call>"},
                    .closers = {"<end_function_call>"},
                    .name_form = NameForm::kCallWord,
                    .name_stops = {"{", "<end_function_call>"},
                    .string_mark = "<escape>"},
          .skips = {"<start_function_response>"}};
}

// V3.2 and V4 differ in the section's name only.
Family deepseek_dsml(std::string name, std::vector<std::string> signs, const std::string& section) {
  return {.name = std::move(name),
          .signs = std::move(signs),
          .reasoning = kThink,
          .calls = {.syntax = CallSyntax::kTagged,
                    .section = "<｜DSML｜" + section + ">",
                    .opens = {"<｜DSML｜invoke name=\""},
                    .closers = {"</｜DSML｜invoke>", "</｜DSML｜" + section + ">"},
                    .name_ends = {"\">"},
                    .tags = {.param_open = "<｜DSML｜parameter name=\"",
                             .key_close = "\"",
                             .value_close = "</｜DSML｜parameter>",
                             .call_close = "</｜DSML｜invoke>",
                             .type_end = ">",
                             .text_type = " string=\"true\"",
                             .other_types = " string=\"false\""}}};
}

Family deepseek() {
  return {.name = "deepseek",
          .signs = {"tool▁sep"},
          .reasoning = kThink,
          .calls = {.syntax = CallSyntax::kNamed,
                    .section = "<｜tool▁calls▁begin｜>",
                    .opens = {"<｜tool▁call▁begin｜>"},
                    .closers = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
                    .name_form = NameForm::kTyped,
                    .name_ends = {"<｜tool▁sep｜>"}}};
}

Family mistral_args() {
  return {.name = "mistral-args",
          .signs = {"[ARGS]"},
          .reasoning = {.open = "[THINK]", .close = "[/THINK]"},
          .calls = {.syntax = CallSyntax::kNamed,
                    .opens = {"[TOOL_CALLS]"},
                    .name_ends = {"[ARGS]", "[CALL_ID]"},
                    .name_stops = {"{"},
                    .id_open = "[CALL_ID]"}};
}

Family mistral_list() {
  return {.name = "mistral-list",
          .signs = {"[TOOL_CALLS]"},
          .calls = {.syntax = CallSyntax::kJsonList,
                    .opens = {"[TOOL_CALLS]"},
                    .closers = {"[/TOOL_CALLS]"},
                    .closers_left_out = true,
                    .keys = {.id = "id", .id_last = true}}};
}

// `response`: the word in the marks around content.
Family command_r(std::string name, std::vector<std::string> signs, const std::string& response) {
  return {
      .name = std::move(name),
      .signs = std::move(signs),
      .reasoning = {.open = "<|START_THINKING|>", .close = "<|END_THINKING|>", .anywhere = true},
      .response = {.open = "<|START_" + response + "|>", .close = "<|END_" + response + "|>"},
      .calls = {.syntax = CallSyntax::kJsonList,
                .opens = {"<|START_ACTION|>"},
                .closers = {"<|END_ACTION|>"},
                .keys = {.name = "tool_name", .arguments = {"parameters"}, .id = "tool_call_id"}}};
}

// Makes the row for a list of calls in JSON between two marks.
Family json_list(std::string name, std::string sign, std::string open, std::string close) {
  Family family{.name = std::move(name),
                .signs = {std::move(sign)},
                .reasoning = kThink,
                .calls = {.syntax = CallSyntax::kJsonList, .opens = {std::move(open)}}};
  if (!close.empty()) family.calls.closers = {std::move(close)};
  return family;
}

// Python's notation within a fence, one call a line.
Family minicpm3() {
  return {.name = "minicpm3",
          .signs = {"<|tool_call_start|>", "```python"},
          .reasoning = {.open = "<|thought_start|>", .close = "<|thought_end|>"},
          .calls = {.syntax = CallSyntax::kPython,
                    .opens = {"<|tool_call_start|>"},
                    .closers = {"```", "<|tool_call_end|>"},
                    .name_ends = {"("}}};
}

Family phi4_mini() {
  return {
      .name = "phi-4-mini",
      .signs = {"<|/tool_call|>"},
      .reasoning = kThink,
      .calls = {
          .syntax = CallSyntax::kJson, .opens = {"<|tool_call|>"}, .closers = {"<|/tool_call|>"}}};
}

// Templates may show a call without the word.
Family functools() {
  Family family = json_list("functools", "functools[", "functools", "");
  family.calls.bare_json = true;
  return family;
}

Family granite33() {
  Family family = json_list("granite-3.3", "<|tool_call|>", "<|tool_call|>", "");
  family.response = {.open = "<response>", .close = "</response>"};
  return family;
}

Family hunyuan_a13b() {
  Family family = json_list("hunyuan-a13b", "<tool_calls>[", "<tool_calls>", "</tool_calls>");
  family.signs.emplace_back("</think>");
  family.response = {.open = "<answer>", .close = "</answer>"};
  return family;
}

Family apriel() {
  Family family = json_list("apriel", "<tool_calls>[", "<tool_calls>", "</tool_calls>");
  family.reasoning = {.open = "Here are my reasoning steps:",
                      .close = "[BEGIN FINAL RESPONSE]",
                      .ends_at_call = true};
  family.response = {.open = "[BEGIN FINAL RESPONSE]", .close = "[END FINAL RESPONSE]"};
  return family;
}

Family apertus() {
  return {.name = "apertus",
          .signs = {"<|tools_prefix|>"},
          .reasoning = {.open = "<|inner_prefix|>",
                        .close = "<|inner_suffix|>",
                        .anywhere = true,
                        .ends_at_call = true},
          .calls = {.syntax = CallSyntax::kKeyedList,
                    .opens = {"<|tools_prefix|>"},
                    .closers = {"<|tools_suffix|>"}}};
}

// Templates of LFM2.5 contain no mark of the model's calls, so they are recognised by how they list the tools.
Family lfm2(std::string sign) {
  return {.name = "lfm2",
          .signs = {std::move(sign)},
          .reasoning = kThink,
          .calls = {.syntax = CallSyntax::kPython,
                    .opens = {"<|tool_call_start|>"},
                    .closers = {"<|tool_call_end|>"},
                    .name_ends = {"("}}};
}

// Makes the row for <function=NAME> with a pair of <parameter=KEY> tags for each argument.
Family function_tags(std::string name, std::vector<std::string> signs, const std::string& outer,
                     bool strip_newlines) {
  return {.name = std::move(name),
          .signs = std::move(signs),
          .reasoning = kThink,
          .calls = {.syntax = CallSyntax::kTagged,
                    .section = "<" + outer + ">",
                    .opens = {"<function="},
                    .closers = {"</function>", "</" + outer + ">"},
                    .name_ends = {">"},
                    .tags = {.param_open = "<parameter=",
                             .key_close = ">",
                             .value_close = "</parameter>",
                             .call_close = "</function>",
                             .strip_newlines = strip_newlines}}};
}

// Qwen 3.5 often calls before it has closed its reasoning.
Family qwen3_coder() {
  Family family = function_tags("qwen3-coder", {"<function=", "<parameter="}, "tool_call", true);
  family.reasoning.ends_at_section = true;
  return family;
}

Family seed_oss() {
  Family family = function_tags("seed-oss", {"<seed:tool_call>"}, "seed:tool_call", false);
  family.reasoning = {.open = "<seed:think>", .close = "</seed:think>"};
  return family;
}

// Each part of an answer begins with its recipient on a line of its own; `all` is the user.
Family functionary32() {
  return {.name = "functionary-3.2",
          .signs = {">>>all"},
          .calls = {.syntax = CallSyntax::kNamed,
                    .opens = {">>>"},
                    .begun_by_prompt = true,
                    .name_ends = {"\n"},
                    .code_open = ">>>python\n"},
          .skips = {">>>all\n"}};
}

Family functionary() {
  return {.name = "functionary",
          .signs = {"<function="},
          .calls = {.syntax = CallSyntax::kNamed,
                    .opens = {"<function="},
                    .closers = {"</function>"},
                    .name_ends = {">"},
                    .code_open = "<|python_tag|>"}};
}

// The template shows calls in JSON behind both marks; models also write Python's notation, with marks or without.
Family llama4() {
  return {
      .name = "llama4",
      .signs = {"<|python_start|>"},
      .calls = {.syntax = CallSyntax::kPython,
                .opens = {"<|python_start|>", "<|python_start|><|python_end|>", "<|python_end|>"},
                .closers = {"<|python_end|>"},
                .closers_left_out = true,
                .bare_json = true,
                .around_text = true,
                .name_ends = {"("}}};
}

Family llama3() {
  return {.name = "llama3-json",
          .signs = {"\"parameters\": dictionary"},
          .calls = {.syntax = CallSyntax::kJson, .opens = {"<|python_tag|>"}, .bare_json = true}};
}

// As hermes, but what is said to the user stands between marks.
Family ernie() {
  return {.name = "ernie-4.5",
          .signs = {"<tool_call>", "<response>"},
          .reasoning = kThink,
          .response = {.open = "<response>", .close = "</response>"},
          .calls = {
              .syntax = CallSyntax::kJson, .opens = {"<tool_call>"}, .closers = {"</tool_call>"}}};
}

Family hermes() {
  return {.name = "hermes",
          .signs = {"<tool_call>"},
          .reasoning = kThink,
          .calls = {
              .syntax = CallSyntax::kJson, .opens = {"<tool_call>"}, .closers = {"</tool_call>"}}};
}

std::vector<Family> rows() {
  return {
      hunyuan3("hunyuan-3-open", {"<tool_sep", "<arg_key", ":opensource"}, ":opensource>"),
      hunyuan3("hunyuan-3", {"<tool_sep>", "<arg_key>"}, ">"),
      longcat(),
      glm(),
      minimax(),
      minimax_m3(),
      minicpm5(),
      kimi(),
      kimi_k3(),
      solar_open(),
      muse(),
      gpt_oss(),
      gemma4(),
      function_gemma(),
      deepseek_dsml("deepseek-v4", {"DSML", "tool_calls>"}, "tool_calls"),
      deepseek_dsml("deepseek-v3.2", {"DSML"}, "function_calls"),
      deepseek(),
      mistral_args(),
      mistral_list(),
      command_r("command-r-text", {"<|START_ACTION|>", "<|START_TEXT|>"}, "TEXT"),
      command_r("command-r", {"<|START_ACTION|>"}, "RESPONSE"),
      json_list("nemotron-v2", "<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>"),
      apertus(),
      minicpm3(),
      lfm2("<|tool_list_start|>"),
      lfm2("<|tool_call_start|>"),
      lfm2("\"List of tools: [\""),
      phi4_mini(),
      json_list("phi-4-mini-list", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>"),
      functools(),
      granite33(),
      hunyuan_a13b(),
      apriel(),
      seed_oss(),
      qwen3_coder(),
      functionary32(),
      functionary(),
      llama4(),
      llama3(),
      ernie(),
      hermes(),
  };
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> table = rows();
  return table;
}

}  // namespace bulkhead::model::answer
