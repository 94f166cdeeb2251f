#include "tests/unit/constrain/random_grammars.hpp"

#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "worker/constrain/constraint.hpp"
#include "worker/constrain/regex.hpp"
#include "worker/engine/call_grammar.hpp"

namespace bulkhead::constrain {
namespace {

using Json = nlohmann::ordered_json;

// Letters of which tokens and literals are made. `e`, the blank and `0` are the characters that masks try first.
const char* const kLetters[] = {"a",
                                "b",
                                "c",
                                "e",
                                "e",
                                "f",
                                "x",
                                "A",
                                "F",
                                "Z",
                                "0",
                                "0",
                                "1",
                                "7",
                                " ",
                                " ",
                                "-",
                                ".",
                                ",",
                                "_",
                                "\n",
                                "\t",
                                "\r",
                                "\v",
                                "\xC3\xA9",
                                "\xD0\xB6",
                                "\xE4\xB8\xAD",
                                "\xE4\xB8\xAE",
                                "<",
                                ">",
                                "/",
                                "{",
                                "}",
                                "[",
                                "]",
                                ":",
                                "\"",
                                "\\",
                                "!",
                                "@",
                                "=",
                                "|",
                                "~",
                                "\x7F"};
const char* const kRare[] = {
    "\xC2\x80",         "\xC2\xA0",         "\xDF\xBF",         "\xE0\xA0\x80",    "\xE2\x80\xA8",
    "\xE2\x80\xA9",     "\xE3\x80\x80",     "\xED\x9F\xBF",     "\xEE\x80\x80",    "\xEF\xBF\xBF",
    "\xF0\x90\x80\x80", "\xF0\x9F\x98\x80", "\xF1\x80\x80\x80", "\xF4\x8F\xBF\xBF"};
// ---- expressions ----

std::string escaped(const std::string& letter) {
  if (letter == "\n") return "\\n";
  if (letter == "\t") return "\\t";
  if (letter == "\r") return "\\r";
  if (letter == "\v") return "\\v";
  const bool sign =
      letter.size() == 1 && std::string_view("^$\\.*+?()[]{}|/-").find(letter) != std::string::npos;
  return sign ? "\\" + letter : letter;
}

std::string char_class(Source& from) {
  static const char* const kRanges[] = {"a-z",
                                        "A-F",
                                        "0-9",
                                        "a-f",
                                        "b-y",
                                        "!-~",
                                        "\xC3\xA0-\xC3\xBF",
                                        "\xD0\x80-\xDF\xBF",
                                        "\xE4\xB8\x80-\xE9\xBF\xBF",
                                        "\xEA\x80\x80-\xF0\x90\x80\x80"};
  std::string out = from.one_in(2) ? "[" : "[^";
  for (std::size_t left = 1 + from.below(4); left > 0; --left)
    out += from.one_in(2) ? from.of(kRanges) : escaped(from.letter());
  return out + "]";
}

std::string expression(Source& from, int depth);

std::string atom(Source& from, int depth) {
  switch (from.below(depth > 0 ? 9 : 7)) {
    case 0:
    case 1:
      return escaped(from.letter());
    case 2:
    case 3:
      return char_class(from);
    case 4:
      return ".";
    case 5:
      return from.of(
          std::vector<const char*>{"\\d", "\\w", "\\s", "\\S", "\\D", "\\W", "\\p{L}", "\\P{L}"});
    case 6:
      return from.of(
          std::vector<const char*>{"[^<]", "[^\"]", "(?:[^<]|<[^/])", "[^\\n]", "[a-z ]"});
    default:
      return (from.one_in(2) ? "(" : "(?:") + expression(from, depth - 1) + ")";
  }
}

std::string quantifier(Source& from) {
  static const char* const kSome[] = {"*",     "+",    "?",      "*",     "{2}",    "{0,3}",
                                      "{1,9}", "{3,}", "{0,40}", "{2,5}", "{0,200}"};
  return from.one_in(2) ? from.of(kSome) : "";
}

std::string expression(Source& from, int depth) {
  std::string out;
  for (std::size_t ways = from.one_in(3) ? 2 : 1; ways > 0; --ways) {
    for (std::size_t left = 1 + from.below(3); left > 0; --left)
      out += atom(from, depth) + quantifier(from);
    if (ways > 1) out += "|";
  }
  return out;
}

// Texts that continue freely in several ways, and may end in some of them.
std::string free_expression(Source& from) {
  static const char* const kFree[] = {
      "[^<]*",      ".*",      "[^;]*",    "[^a]*", "[^<\\n]*", "[^\xE4\xB8\xAD]*",
      "[^<]{0,30}", ".{2,30}", "[^;]{3,}", ".{0,5}"};
  static const char* const kBefore[] = {"x", "[^x<]", "[a-f]", "", "[^a]", "0", "<"};
  static const char* const kBehind[] = {"", "", ";", "[0-9]", "<", "e"};
  std::string out;
  if (from.one_in(2)) {
    // Most characters begin the second way, and one begins the first or none.
    const std::string one = from.of(std::vector<const char*>{"a", "0", "x"});
    const std::string first = one + from.of(kFree) + from.of(kBehind) + "|";
    return (from.one_in(3) ? "" : first) + "[^" + one + "<]" + from.of(kFree) + from.of(kBehind);
  }
  for (std::size_t ways = 1 + from.below(3); ways > 0; --ways) {
    out += std::string(from.of(kBefore)) + from.of(kFree) + from.of(kBehind);
    if (ways > 1) out += "|";
  }
  return out;
}

std::string pattern(Source& from) {
  if (from.one_in(3)) return "^(?:" + free_expression(from) + ")$";
  const std::string inner = expression(from, 1);
  if (from.one_in(4)) return inner;
  return "^(?:" + inner + ")$";
}

// ---- schemas ----

Json string_schema(Source& from) {
  static const char* const kFormats[] = {"date",     "time",   "date-time", "email",
                                         "hostname", "ipv4",   "uuid",      "json-pointer",
                                         "uri",      "base64", "duration"};
  Json out = {{"type", "string"}};
  if (from.one_in(3)) {
    out["pattern"] = pattern(from);
  } else if (from.one_in(4)) {
    out["format"] = from.of(kFormats);
  } else if (from.one_in(6)) {
    out["not"] = {{"pattern", pattern(from)}};
  }
  if (from.one_in(3)) out["minLength"] = from.below(6);
  if (from.one_in(2)) out["maxLength"] = from.one_in(5) ? 100 : 1 + from.below(12);
  return out;
}

Json number_schema(Source& from) {
  Json out = {{"type", from.one_in(2) ? "integer" : "number"}};
  const int low = static_cast<int>(from.below(200)) - 100;
  if (from.one_in(2)) out[from.one_in(2) ? "minimum" : "exclusiveMinimum"] = low;
  if (from.one_in(2))
    out[from.one_in(2) ? "maximum" : "exclusiveMaximum"] =
        low + static_cast<int>(from.below(3000)) + 2;
  if (from.one_in(6)) out["multipleOf"] = 1 + from.below(7);
  return out;
}

Json constant(Source& from) {
  switch (from.below(4)) {
    case 0:
      return from.below(1000);
    case 1:
      return from.one_in(2);
    default:
      return from.word(4);
  }
}

Json schema(Source& from, int depth);

Json object_schema(Source& from, int depth) {
  Json out = {{"type", "object"}, {"properties", Json::object()}};
  for (std::size_t left = from.below(4); left > 0; --left) {
    const std::string name = from.one_in(3)
                                 ? from.word(3)
                                 : from.of(std::vector<const char*>{"a", "ab", "city", "text"});
    out["properties"][name] = from.one_in(20) ? Json{{"$ref", "#"}} : schema(from, depth - 1);
    if (from.one_in(2)) out["required"].push_back(name);
  }
  if (from.one_in(2))
    out["additionalProperties"] = from.one_in(2) ? Json(false) : schema(from, depth - 1);
  if (from.one_in(8)) out["minProperties"] = 1;
  if (from.one_in(8)) out["patternProperties"] = {{pattern(from), schema(from, depth - 1)}};
  return out;
}

Json array_schema(Source& from, int depth) {
  Json out = {{"type", "array"}, {"items", schema(from, depth - 1)}};
  if (from.one_in(3)) out["minItems"] = from.below(3);
  if (from.one_in(3)) out["maxItems"] = 2 + from.below(3);
  if (from.one_in(6)) out["prefixItems"] = {schema(from, depth - 1)};
  if (from.one_in(8)) out["contains"] = number_schema(from);
  return out;
}

Json schema(Source& from, int depth) {
  switch (from.below(depth > 0 ? 12 : 7)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return string_schema(from);
    case 4:
      return number_schema(from);
    case 5: {
      Json out;
      for (std::size_t left = 1 + from.below(4); left > 0; --left)
        out["enum"].push_back(constant(from));
      return out;
    }
    case 6:
      return from.one_in(2) ? Json{{"type", "boolean"}} : Json{{"type", {"string", "null"}}};
    case 7:
    case 8:
      return object_schema(from, depth);
    case 9:
      return array_schema(from, depth);
    case 10:
      return {{"anyOf", {schema(from, depth - 1), schema(from, depth - 1)}}};
    default:
      return {{"allOf", {string_schema(from), string_schema(from)}}};
  }
}

// ---- other grammars ----

std::string gbnf_text(Source& from) {
  std::string out = "\"";
  const std::string text = from.word(4);
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r' || c == '\v') {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string gbnf(Source& from) {
  static const char* const kClasses[] = {"[a-z]",
                                         "[^<]",
                                         ".",
                                         "[^\"]",
                                         "[0-9]",
                                         "[^a-f]",
                                         "[^\xE4\xB8\xAD<]",
                                         "[\xC3\xA0-\xE9\xBF\xBF ]"};
  static const char* const kMany[] = {"*", "+", "?", "{2,4}", "{0,30}", "", "", ""};
  const std::vector<std::string> names = {"root", "one", "two"};
  std::string out;
  for (const std::string& name : names) {
    out += name + " ::= ";
    for (std::size_t ways = 1 + from.below(2); ways > 0; --ways) {
      for (std::size_t left = 1 + from.below(3); left > 0; --left) {
        // A rule may call itself after a text only.
        if (from.one_in(3)) {
          out += name == "two" ? gbnf_text(from) + " " + from.of(names)
                               : from.of(std::vector<const char*>{"two", "(two)"});
        } else {
          out += from.one_in(3) ? gbnf_text(from) : from.of(kClasses);
          out += from.of(kMany);
        }
        out += " ";
      }
      if (ways > 1) out += "| ";
    }
    if (name != "root") out += "| \"" + name.substr(0, 1) + "\"";
    out += "\n";
  }
  return out;
}

// Texts between tags: most are free but for their closing tag.
Made tagged(Source& from) {
  Made made;
  Grammar grammar;
  made.behind =
      from.of(std::vector<const char*>{"</v>", "\n</v>", ";", "<", "\xFFmark", "e<", "e", "e</v>"});
  const auto without = texts_without(made.behind == "\xFFmark" ? "</v>" : made.behind);
  NodeId at = grammar.add(Node{});
  for (std::size_t left = 1 + from.below(3); left > 0; --left) {
    const std::string text = from.one_in(4) ? expression(from, 1) : free_expression(from);
    made.text = "\"" + text + "\" " + made.behind + " " + made.text;
    Result<DfaPtr> contents =
        regex_automaton(text, from.one_in(3) ? Match::kAnywhere : Match::kWhole);
    if (contents.ok() && from.one_in(4)) contents = complement(**contents);
    // Otherwise it is ambiguous where the text ends.
    if (contents.ok() && !from.one_in(3)) contents = intersect(*contents, *without);
    if (!contents.ok()) return made;
    const NodeId behind = at;
    const RuleId rule = grammar.add_rule();
    grammar.rules[rule] = grammar.leaf(NodeKind::kText, *contents, grammar.add(Node{}));
    const NodeId closed = grammar.bytes(made.behind, behind);
    at = from.one_in(4) ? grammar.leaf(NodeKind::kText, *contents, closed)
                        : grammar.add(NodeKind::kCall, rule, closed);
    // The text may be missing, or another may begin at the same place.
    std::vector<NodeId> ways = {at};
    if (from.one_in(3)) ways.push_back(behind);
    if (from.one_in(3))
      ways.push_back(grammar.add(NodeKind::kCall, rule, grammar.bytes("<o>", behind)));
    at = grammar.add(Node{.kind = NodeKind::kSplit, .branches = ways});
  }
  grammar.root = grammar.add_rule();
  grammar.rules[grammar.root] = at;
  if (grammar.finish().ok()) made.grammar = std::make_shared<const Grammar>(std::move(grammar));
  return made;
}

Made calls(Source& from) {
  Made made;
  Json tools;
  for (const char* name : {"get", "put"}) {
    Json parameters = object_schema(from, 2);
    parameters["properties"]["text"] =
        from.one_in(2) ? Json{{"type", "string"}} : string_schema(from);
    tools.push_back({{"function", {{"name", name}, {"parameters", parameters}}}});
    if (from.one_in(2)) break;
  }
  std::vector<const model::answer::Family*> families;
  for (const model::answer::Family& family : model::answer::families()) {
    using model::answer::CallSyntax;
    if (family.calls.syntax == CallSyntax::kNone) continue;
    families.insert(families.end(), family.calls.syntax == CallSyntax::kTagged ? 3 : 1, &family);
  }
  const model::answer::Family& family = *from.of(families);
  const bool marked = from.one_in(3);  // each mark is a token of its own, which no text contains
  const std::string text = tools.dump();
  made.text = family.name + (marked ? " (marks) " : " ") + text;
  const auto compiled = engine::make_call_grammar(
      family, {.tools = text, .one_call = from.one_in(2)},
      [&](std::string_view mark) { return (marked ? "\xFF" : "") + std::string(mark); });
  if (compiled.ok()) made.grammar = compiled->grammar;
  return made;
}

}  // namespace

std::string Source::letter() {
  return one_in(12) ? of(kRare) : of(kLetters);
}

std::string Source::word(std::size_t most) {
  std::string out;
  for (std::size_t left = 1 + below(most); left > 0; --left)
    out += letter();
  return out;
}

Made random_grammar(Source& from) {
  Made made;
  switch (from.below(11)) {
    case 0:
    case 1: {
      made.text = from.one_in(4) ? free_expression(from) : expression(from, 2);
      if (const auto compiled = compile_regex(made.text); compiled.ok()) {
        made.grammar = compiled->grammar;
        made.whole = *regex_automaton(made.text, Match::kWhole);
      }
      return made;
    }
    case 2: {
      made.text = gbnf(from);
      if (const auto compiled = compile_gbnf(made.text); compiled.ok())
        made.grammar = compiled->grammar;
      return made;
    }
    case 3:
    case 4:
      return calls(from);
    case 5:
    case 6:
    case 7:
      return tagged(from);
    default: {
      made.text = schema(from, 3).dump();
      if (const auto compiled = compile_schema(made.text, Strictness::kLenient); compiled.ok())
        made.grammar = compiled->grammar;
      return made;
    }
  }
}

}  // namespace bulkhead::constrain
