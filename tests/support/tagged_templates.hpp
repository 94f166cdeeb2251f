// Chat templates of made-up models that write calls with a pair of tags for each argument, and what their models say.
#pragma once

#include <string>
#include <vector>

namespace bulkhead::test {

// Returns a template whose assistant writes calls as `calls` says; `calls` sees them as `m.tool_calls`.
inline std::string with_calls(const std::string& calls) {
  return "{% for m in messages %}<|{{ m.role }}|>\n{% if m.tool_calls %}" + calls +
         "{% else %}{{ m.content }}{% endif %}<|over|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>\n{% endif %}";
}

// A template's way to write a call with a pair of tags for each argument, and what its model then says.
struct TaggedTemplate {
  const char* name;
  std::string calls;  // the template's part
  std::string call;   // get_weather(city="Oslo", days=2)
  std::string more;   // add(note=" a\n<b>", at={"x": [1]})
};

inline std::vector<TaggedTemplate> tagged_templates() {
  const std::string each = "{% for c in m.tool_calls %}", done = "{% endfor %}";
  const std::string name = "{{ c.function.name }}";
  const std::string arguments = "{% for k, v in c.function.arguments.items() %}";
  const std::string value = "{{ v if v is string else v | tojson }}";
  return {
      {"attributes that tell the type, in a section",
       "<|X|calls>\n" + each + "<|X|invoke name=\"" + name + "\">\n" + arguments +
           "<|X|arg name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">" + value +
           "</|X|arg>\n" + done + "</|X|invoke>\n" + done + "</|X|calls>",
       "<|X|calls>\n<|X|invoke name=\"get_weather\">\n<|X|arg name=\"city\" "
       "string=\"true\">Oslo</|X|arg>\n<|X|arg name=\"days\" string=\"false\">2</|X|arg>\n"
       "</|X|invoke>\n</|X|calls>",
       "<|X|calls>\n<|X|invoke name=\"add\">\n<|X|arg name=\"note\" string=\"true\"> "
       "a\n<b></|X|arg>\n<|X|arg name=\"at\" string=\"false\">{\"x\": [1]}</|X|arg>\n"
       "</|X|invoke>\n</|X|calls>"},
      {"one mark between key and value",
       each + "<|call|>" + name + "\n" + arguments + "<|arg|>{{ k }}<|is|>" + value + "<|/arg|>\n" +
           done + "<|/call|>" + done,
       "<|call|>get_weather\n<|arg|>city<|is|>Oslo<|/arg|>\n<|arg|>days<|is|>2<|/arg|>\n<|/call|>",
       "<|call|>add\n<|arg|>note<|is|> a\n<b><|/arg|>\n<|arg|>at<|is|>{\"x\": "
       "[1]}<|/arg|>\n<|/call|>"},
      {"a tag for the key and one for the value, in a section",
       "<y|calls>" + each + "\n<y|call>" + name + "\n" + arguments +
           "<y|key>{{ k }}</y|key>\n<y|value>" + value + "</y|value>\n" + done + "</y|call>" +
           done + "\n</y|calls>",
       "<y|calls>\n<y|call>get_weather\n<y|key>city</y|key>\n<y|value>Oslo</y|value>\n"
       "<y|key>days</y|key>\n<y|value>2</y|value>\n</y|call>\n</y|calls>",
       "<y|calls>\n<y|call>add\n<y|key>note</y|key>\n<y|value> a\n<b></y|value>\n"
       "<y|key>at</y|key>\n<y|value>{\"x\": [1]}</y|value>\n</y|call>\n</y|calls>"},
      {"a tag for the type",
       each + "<use " + name + ">" + arguments +
           "<k>{{ k }}</k><t>{{ 'text' if v is string else 'number' if v is number else 'any' "
           "}}</t>"
           "<v>" +
           value + "</v>" + done + "</use>" + done,
       "<use get_weather><k>city</k><t>text</t><v>Oslo</v><k>days</k><t>number</t><v>2</v></use>",
       "<use add><k>note</k><t>text</t><v> a\n<b></v><k>at</k><t>any</t><v>{\"x\": [1]}</v></use>"},
      {"values on lines of their own, within two marks",
       each + "[use]\n[to " + name + "]\n" + arguments + "[set {{ k }}]\n" + value + "\n[/set]\n" +
           done + "[/to]\n[/use]\n" + done,
       "[use]\n[to get_weather]\n[set city]\nOslo\n[/set]\n[set days]\n2\n[/set]\n[/to]\n[/use]",
       "[use]\n[to add]\n[set note]\n a\n<b>\n[/set]\n[set at]\n{\"x\": "
       "[1]}\n[/set]\n[/to]\n[/use]"},
  };
}

inline constexpr const char* kTypedTools =
    R"([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
         "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object",
         "properties": {"note": {"type": "string"}, "at": {"type": "object"}}}}}])";

}  // namespace bulkhead::test
