// Two tools, and how each family of models writes calls of them: the rows that call_grammar_test.cpp goes through.
#pragma once

#include <string>
#include <vector>

namespace bulkhead::test {

inline const char* const kWeatherSchema = R"({"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"], "additionalProperties": false})";
inline const std::string kCallTools = R"([
  {"type": "function", "function": {"name": "get_weather", "parameters": )" +
                                      std::string(kWeatherSchema) + R"(}},
  {"type": "function", "function": {"name": "get_time"}}])";

// A call whose arguments are one JSON object.
struct CallRow {
  const char* family;
  const char* before;  // the text of a call before its arguments
  const char* behind;
};
inline const CallRow kCallRows[] = {
    {"hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ", "}\n</tool_call>"},
    {"ernie-4.5", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ", "}\n</tool_call>"},
    {"llama3-json", "{\"name\": \"get_weather\", \"parameters\": ", "}"},
    {"llama3-json", "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": ", "}"},
    {"mistral-list",
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": ", ", \"id\": \"a1B2c3D4e\"}]"},
    {"mistral-list", "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": ", "}]"},
    {"mistral-args", "[TOOL_CALLS]get_weather[ARGS]", ""},
    {"mistral-args", "[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]", ""},
    {"gpt-oss", "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>", ""},
    {"gpt-oss", "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>",
     ""},
    {"deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>",
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n",
     "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"kimi-k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_"
     "begin|>",
     "<|tool_call_end|><|tool_calls_section_end|>"},
    {"granite-3.3", "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": ", "}]"},
    {"phi-4-mini", "<|tool_call|>{\"name\": \"get_weather\", \"arguments\": ", "}<|/tool_call|>"},
    {"phi-4-mini-list",
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": ", "}]<|/tool_call|>"},
    {"nemotron-v2", "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": ", "}]</TOOLCALL>"},
    {"command-r",
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", "
     "\"parameters\": ",
     "}\n]<|END_ACTION|>"},
    {"apertus", "<|tools_prefix|>[{\"get_weather\": ", "}]<|tools_suffix|>"},
    {"apriel", "<tool_calls>[{\"name\": \"get_weather\", \"arguments\": ", "}]</tool_calls>"},
    {"functionary", "<function=get_weather>", "</function>"},
    {"functionary-3.2", "get_weather\n", ""},
    {"functionary-3.2", ">>>get_weather\n", ""},
    {"hunyuan-a13b", "<tool_calls>[{\"name\": \"get_weather\", \"arguments\": ", "}]</tool_calls>"},
    {"functools", "functools[{\"name\": \"get_weather\", \"arguments\": ", "}]"},
    {"command-r-text",
     "<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", "
     "\"parameters\": ",
     "}\n]<|END_ACTION|>"},
    {"solar-open",
     "<|tool_calls|><|tool_call:begin|>call_1<|tool_call:name|>get_weather<|tool_call:args|>",
     "<|tool_call:end|><|calls|>"},
};

// A call whose arguments stand between tags: the text before the city's value, from there to the days' value, and the
// rest.
struct TaggedCallRow {
  const char* family;
  const char* before;
  const char* between;
  const char* behind;
};
inline const TaggedCallRow kTaggedCallRows[] = {
    {"glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>",
     "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"},
    {"glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>",
     "</arg_value><arg_key>days</arg_key><arg_value>", "</arg_value></tool_call>"},
    {"minimax-m2", "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">",
     "</parameter>\n<parameter name=\"days\">", "</parameter>\n</invoke>\n</minimax:tool_call>"},
    {"qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\n",
     "\n</parameter>\n<parameter=days>\n", "\n</parameter>\n</function>\n</tool_call>"},
    {"qwen3-coder", "<function=get_weather>\n<parameter=city>\n",
     "\n</parameter>\n<parameter=days>\n", "\n</parameter>\n</function>"},
    {"seed-oss", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>",
     "</parameter>\n<parameter=days>", "</parameter>\n</function>\n</seed:tool_call>"},
    {"deepseek-v3.2",
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
     "name=\"city\" string=\"true\">",
     "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">",
     "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
    {"deepseek-v4",
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
     "name=\"city\" string=\"true\">",
     "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">",
     "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
    {"hunyuan-3",
     "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>",
     "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>",
     "</arg_value>\n</tool_call>\n</tool_calls>"},
    {"hunyuan-3-open",
     "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
     "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>",
     "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n"
     "<arg_value:opensource>",
     "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"},
    {"longcat",
     "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
     "<longcat_arg_value>",
     "</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>",
     "</longcat_arg_value>\n</longcat_tool_call>"},
    {"kimi-k3",
     "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|>"
     "<|open|>argument key=\"city\" type=\"string\"<|sep|>",
     "<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>",
     "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"},
    {"muse",
     "<atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter name=\"city\">",
     "</atem:parameter>\n<atem:parameter name=\"days\">",
     "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"},
    {"minicpm5", "<function name=\"get_weather\"><param name=\"city\">",
     "</param><param name=\"days\">", "</param></function>"},
    {"minimax-m3",
     "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>",
     "]<]minimax[>[</city>]<]minimax[>[<days>",
     "]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"},
};

// Calls with the same arguments in each family's notation, right ones and wrong ones.
struct NotatedCalls {
  const char* family;
  std::vector<std::string> right;
  std::vector<std::string> wrong;
};
inline const std::vector<NotatedCalls> kNotatedCalls = {
    {"gemma4",
     {R"(<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>)",
      R"(<|tool_call>call:get_weather{city:<|"|>a "}\n] é<|"|>}<tool_call|>)",
      R"(<|tool_call>call:get_time{}<tool_call|>)",
      R"(<|tool_call>call:get_time{a_1:[1,true,null,{b:<|"|><|"|>}]}<tool_call|>)"},
     {R"(<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:0}<tool_call|>)",
      R"(<|tool_call>call:get_weather{days:2}<tool_call|>)",
      R"(<|tool_call>call:get_weather{"city":<|"|>Oslo<|"|>}<tool_call|>)",
      R"(<|tool_call>call:get_weather{city:"Oslo"}<tool_call|>)",
      R"(<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,more:1}<tool_call|>)",
      R"(<|tool_call>call:get_weather{cit:<|"|>Oslo<|"|>}<tool_call|>)",
      R"(<|tool_call>call:get_nothing{}<tool_call|>)"}},
    {"llama4",
     {R"([get_weather(city="Oslo", days=2)])", R"(<|python_start|>[get_time()])",
      R"([get_time(), get_time(a=[True, None, {"b": False}])])"},
     {R"([get_weather(city="Oslo", days=0)])", R"(get_time())", R"([get_nothing()])"}},
    {"function-gemma",
     {"<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:2}<end_function_call>"},
     {"<start_function_call>call:get_weather{days:2}<end_function_call>"}},
    {"minicpm3",
     {"<|tool_call_start|>[get_weather(city=\"Oslo\", days=2)]\n```\n<|tool_call_end|>"},
     {"<|tool_call_start|>[get_weather(days=2)]\n```\n<|tool_call_end|>"}},
    {"lfm2",
     {R"(<|tool_call_start|>[get_weather(city="Oslo", days=2)]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_weather(city="a \")\n\\ \u00e9 é")]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_time(), get_time(a=[True, None, {"b": False}])]<|tool_call_end|>)"},
     {R"(<|tool_call_start|>[get_weather(city="Oslo", days=0)]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_weather(days=2)]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_weather("Oslo")]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_weather(city="a\/b")]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_weather(city="Oslo", more=1)]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_time(a=true)]<|tool_call_end|>)",
      R"(<|tool_call_start|>[get_time(a={"b/c": "\/"})]<|tool_call_end|>)",
      R"(<|tool_call_start|>[]<|tool_call_end|>)"}},
};

}  // namespace bulkhead::test
