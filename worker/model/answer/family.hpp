// How the models of one family write reasoning and tool calls. A family is a row of a table (families.cpp). The row
// has two uses: the parser reads answers with it (answer_parser.hpp), and a grammar that keeps a call to its schema
// is made from it. This header knows neither of the two.
//
// The shape of an answer:
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
  kNone,       // no calls: whatever looks like a call is text
  kJson,       // {"name": N, "arguments": {...}}
  kJsonList,   // [{"name": N, "arguments": {...}}, ...]
  kKeyedList,  // [{N: {...}}, ...]
  kNamed,      // N, one of name_ends, then a JSON object
  kTagged,     // N, one of name_ends, then a pair of tags for each argument
  kBareKeys,   // N{key:value,...}: keys without quotes, strings between marks (Gemma 4)
  kPython,     // [N(key=value, ...), ...]
  kChannels,   // harmony (gpt-oss): messages with a header that names channel and recipient
};

// What stands where a name is expected.
enum class NameForm : std::uint8_t {
  kPlain,
  kWithIndex,  // functions.NAME:INDEX, which is also the call's id (Kimi)
  kTyped,      // NAME; or `function`, name_ends, and then the name on a line of its own (DeepSeek)
  kCallWord,   // call:NAME (Gemma 4)
};

struct Reasoning {
  std::string open = {};  // empty: this family has no reasoning
  std::string close = {};
  // False: there is one block, at the very start of an answer; later its marks are plain text. True: the marks are
  // tokens of their own, which no text can contain, and they count everywhere.
  bool anywhere = false;
  bool ends_at_call = false;     // a call ends an open block
  bool ends_at_section = false;  // the same, but only a call behind the mark of a section
  bool close_alone = false;      // an answer without reasoning begins with `close`
};

// The marks that most families write around reasoning.
inline const Reasoning kThink{.open = "<think>", .close = "</think>"};

// Marks around the content, which do not belong to it.
struct Response {
  std::string open = {};
  std::string close = {};
};

// In the API's own shape, which some models write, an object of this name has the call's name and arguments.
inline constexpr std::string_view kFunctionKey = "function";

struct JsonKeys {
  std::string name = "name";
  std::vector<std::string> arguments = {"arguments", "parameters"};
  std::string id = {};   // empty: the format has no ids
  bool id_last = false;  // the id comes behind the arguments, so a call waits for the end of its object
};

// kTagged: param_open KEY key_close [value_open] VALUE value_close ... call_close
struct Tags {
  std::string param_open = {};
  std::string key_close = {};
  std::string value_open = {};  // may be empty
  std::string value_close = {};
  std::string call_close = {};
  bool strip_newlines = false;  // one newline at each end of a value belongs to the tags
  // An attribute that gives the value's type follows key_close, and then type_end: ` string="true"` and `>`.
  std::string type_end = {};     // empty: no type is given
  std::string text_type = {};    // the attribute of text
  std::string other_types = {};  // a regular expression for the attribute of any other value
  bool cdata = false;            // a value may be enclosed in <![CDATA[ ]]>
  // The key is the tag's own name: it and `>` end value_close, and what a value contains may be such tags again,
  // called `item` in a list (MiniMax M3).
  bool elements = false;
};

struct Calls {
  CallSyntax syntax = CallSyntax::kNone;
  std::string section = {};  // stands before the first call; may be empty, and models may omit it
  std::vector<std::string> opens = {};  // each of these begins a call, or a list of calls
  // What may follow a call: each at most once, in this order.
  std::vector<std::string> closers = {};
  // the family's own models omit them: the parser accepts them, the grammar never asks for them
  bool closers_left_out = false;
  // An answer that begins with `{` (where calls are a list, also with `[`) may be a call without any
  // mark. It is held back until it is known to be one; a key or a name that can't belong to a call decides that it is
  // none.
  bool bare_json = false;
  // An answer begins behind the first of `opens`, because the prompt ends with it (functionary 3.2).
  bool begun_by_prompt = false;
  // The model also writes `opens` around text that is no call (Llama 4). The text does not contain these marks.
  bool around_text = false;
  bool adjacent = false;  // only blanks separate calls in JSON (MiniMax M1)
  JsonKeys keys = {};
  NameForm name_form = NameForm::kPlain;
  std::vector<std::string> name_ends = {};   // end a name and belong to the syntax
  std::vector<std::string> name_stops = {};  // end a name and belong to what follows
  std::string name_tail =
      {};  // text behind a name's end, up to this mark, has no meaning (Kimi K3: index="1"<|sep|>)
  std::string id_open = {};    // one of name_ends: an id follows, up to another of them (Mistral)
  std::string id_close = {};   // an id stands before the name, up to this mark (Solar Open)
  std::string code_open = {};  // begins a call of the tool `python` with plain code (functionary)
  Tags tags = {};
  std::string string_mark = {};  // kBareKeys: stands before and behind a string
  // Marks of the syntax that are in no other field: those of headers and strings.
  std::vector<std::string> other_marks = {};
};

// Returns what a call without any mark may begin with.
inline std::string_view bare_begins(const Calls& calls) {
  if (!calls.bare_json) return {};
  return calls.syntax == CallSyntax::kJson ? "{" : "[{";
}

struct Family {
  std::string name = {};
  std::vector<std::string> signs = {};  // a template that contains all of these belongs to this family
  Reasoning reasoning = {};
  Response response = {};
  Calls calls = {};
  // Marks without meaning, which are dropped wherever text may stand: those of messages within an answer.
  std::vector<std::string> skips = {};
  // The header of a message to a tool: these two marks with an offered tool's name between them. It is dropped, too.
  std::string skip_before_name = {};
  std::string skip_behind_name = {};
};

// Returns the rows, in the order in which they are tried.
const std::vector<Family>& families();

// Returns the family of a chat template's text. If no row of the table matches: a family without calls, and with
// <think> reasoning if the template's text contains </think>.
const Family& family_of_template(std::string_view template_text);

// A family without marks: all of an answer is content.
const Family& plain_family();

// Returns whether one of the family's marks contains `text` (not empty): a special token with this name is syntax.
bool has_mark(const Family& family, std::string_view text);

// Returns the row with this name, or null.
const Family* family_named(std::string_view name);

}  // namespace bulkhead::model::answer
