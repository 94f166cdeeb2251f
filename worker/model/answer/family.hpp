// How the models of one family write reasoning and tool calls. A family is one row of a table
// (families.cpp); the row serves twice: the parser reads answers by it (answer_parser.hpp), and a
// grammar that holds a call to its schema is made from it. This header knows neither of the two.
//
// Shape of an answer, in the words used here:
//
//   reasoning.open ... reasoning.close  response.open CONTENT response.close
//   calls.section  [ calls.opens NAME ARGUMENTS calls.closers ]...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bulkhead::model::answer {

enum class CallSyntax : std::uint8_t {
  kNone,       // no calls: whatever looks like one is text
  kJson,       // {"name": N, "arguments": {...}}
  kJsonList,   // [{"name": N, "arguments": {...}}, ...]
  kKeyedList,  // [{N: {...}}, ...]
  kNamed,      // N, one of name_ends, a JSON object
  kTagged,     // N, one of name_ends, then a pair of tags for each argument
  kBareKeys,   // N{key:value,...}: bare keys, strings between marks (Gemma 4)
  kPython,     // [N(key=value, ...), ...]
  kChannels,   // harmony (gpt-oss): messages with a header that names channel and recipient
};

// kBareKeys: stands before and behind a string.
inline constexpr std::string_view kStringMark = "<|\"|>";

// What stands where a name is expected.
enum class NameForm : std::uint8_t {
  kPlain,
  kWithIndex,  // functions.NAME:INDEX, which is the call's id as well (Kimi)
  kTyped,      // NAME, or `function`, name_ends and then the name on a line of its own (DeepSeek)
  kCallWord,   // call:NAME (Gemma 4)
};

struct Reasoning {
  std::string open = {};  // empty: this family has none
  std::string close = {};
  // False: one block, at the very start of an answer; afterwards its marks are plain text.
  // True: the marks are tokens of their own, which no text can hold, and hold everywhere.
  bool anywhere = false;
  bool ends_at_call = false;  // a call ends an open block
};

// Marks around the content, which are not part of it.
struct Response {
  std::string open = {};
  std::string close = {};
};

struct JsonKeys {
  std::string name = "name";
  std::vector<std::string> arguments = {"arguments", "parameters"};
  std::string id = {};   // empty: the format has no ids
  bool id_last = false;  // the id comes behind the arguments, so a call waits for its object's end
};

// kTagged: param_open KEY key_close [value_open] VALUE value_close ... call_close
struct Tags {
  std::string param_open = {};
  std::string key_close = {};
  std::string value_open = {};  // may be empty
  std::string value_close = {};
  std::string call_close = {};
  bool strip_newlines = false;  // one at each end of a value belongs to the tags
  // key_close is followed by ` string="true">` or ` string="false">`, which gives the value's type.
  bool typed = false;
};

struct Calls {
  CallSyntax syntax = CallSyntax::kNone;
  std::string section = {};  // stands before the first call; may be empty, may be forgotten
  std::vector<std::string> opens = {};  // each begins a call, or a list of calls
  // What may follow a call, in this order, each of them once or not at all.
  std::vector<std::string> closers = {};
  bool closers_left_out = false;  // by the family's own models: read, never asked for
  // An answer that begins with `{` may be a call without any mark. Until it is known to be one it
  // is held back, and it is none once a key or a name shows that it can't be.
  bool bare_json = false;
  JsonKeys keys = {};
  NameForm name_form = NameForm::kPlain;
  std::vector<std::string> name_ends = {};   // end a name and are part of the syntax
  std::vector<std::string> name_stops = {};  // end a name and belong to what follows
  std::string id_open = {};    // one of name_ends: an id follows, up to another of them (Mistral)
  std::string code_open = {};  // begins a call of the tool `python` with plain code (functionary)
  Tags tags = {};
  // Of the syntax, and in no other field: headers' marks, strings'.
  std::vector<std::string> other_marks = {};
};

struct Family {
  std::string name = {};
  std::vector<std::string> signs = {};  // a template that has all of these is of this family
  Reasoning reasoning = {};
  Response response = {};
  Calls calls = {};
};

// The rows, in the order in which they are asked for.
const std::vector<Family>& families();

// The family that a chat template's text belongs to. Where it is none of the table's: a family
// without calls, and with <think> reasoning where the template's text has </think>.
const Family& family_of_template(std::string_view template_text);

// Nothing is marked: all of an answer is content.
const Family& plain_family();

// Whether one of the family's marks holds `text` (not empty): a special token of this name is syntax.
bool has_mark(const Family& family, std::string_view text);

// The row of this name, or null.
const Family* family_named(std::string_view name);

}  // namespace bulkhead::model::answer
