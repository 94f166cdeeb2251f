// Turns arguments in notations that are nearly JSON into JSON as they come: Gemma 4's objects with bare keys and
// marked strings, and Python's calls with keyword arguments (LFM2). Each open bracket takes one bit, so depth costs
// nothing.
#include <algorithm>

#include "worker/model/answer/json_text.hpp"
#include "worker/model/answer/machine.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::model::answer {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::size_t leading(std::string_view text, std::string_view of, std::size_t most) {
  const std::size_t end = text.find_first_not_of(of);
  return std::min({end == std::string_view::npos ? text.size() : end, text.size(), most});
}

// Writes the escape of a Python string that begins behind `\` in the form of a JSON string. Returns how many bytes it
// took. `text` holds the longest possible escape, or the rest of the answer.
std::size_t python_escape(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  constexpr std::string_view kNames = "\\'\"abfnrtv";
  constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
  const char kind = text[0];
  if (kind == '\n') return 1;
  if (const std::size_t at = kNames.find(kind); at != std::string_view::npos) {
    append_escaped(out, kValues.substr(at, 1));
    return 1;
  }
  const std::string_view behind = text.substr(1);
  if (kind == 'u' && leading(behind, kHex, 4) == 4) {
    out += "\\u" + std::string(behind.substr(0, 4));  // JSON has the same escape, also in pairs
    return 5;
  }
  const std::size_t digits = kind == 'x' ? 2 : 8;
  const bool hex = (kind == 'x' || kind == 'U') && leading(behind, kHex, digits) == digits;
  const std::size_t octal = leading(text, "01234567", 3);
  if (hex || octal > 0) {
    const std::string number(hex ? behind.substr(0, digits) : text.substr(0, octal));
    const unsigned long code = std::stoul(number, nullptr, hex ? 16 : 8);
    const bool valid = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    std::string character;
    append_utf8(character, valid ? static_cast<char32_t>(code) : char32_t{0xFFFD});
    append_escaped(out, character);
    return hex ? 1 + digits : octal;
  }
  out += "\\\\";  // this is not an escape, so Python keeps the backslash
  return 0;
}

}  // namespace

Routine Machine::bare_keys_call() {
  CallName name;
  if (!co_await call_name(name)) co_return false;
  bool whole = co_await blanks();
  if (whole && front() == '{') whole = co_await literal(false, {});
  if (whole || arguments_over()) end_call();
  co_return true;
}

Routine Machine::python_list(bool strict) {
  if (!strict) co_await skip_fence();
  if (!co_await blanks()) co_return false;
  const bool listed = front() == '[';
  if (listed) take(1);
  bool any = false;
  while (co_await blanks()) {
    const char c = front();
    if (listed && c == ']') {
      take(1);
      break;
    }
    if (c == ',' && any) {
      take(1);
      continue;
    }
    if (any && !listed && !is_word(c) && c != '{') break;
    begin_attempt();
    CallName name;
    const bool json = c == '{';
    Routine item = json ? json_call(strict) : call_name(name);
    if (!co_await item) co_return false;
    if (!json) co_await python_call(*tools_.find(name.name));
    any = true;
  }
  co_return any;
}

Routine Machine::python_call(const Tool& tool) {
  std::size_t position = 0;
  bool whole = false;  // what was read so far may be all arguments
  while (co_await blanks()) {
    const char c = front();
    if (c == ')') take(1);
    whole = c == ')' || c == ']' || c == '}';
    if (whole) break;
    if (c == ',') {
      take(1);
      continue;
    }
    std::string word;
    bool is_key = false;
    if (!co_await python_key(word, is_key)) break;
    std::string key = word;
    if (!is_key)
      key = position < tool.parameters.size() ? tool.parameters[position].first
                                              : "argument" + std::to_string(position + 1);
    out_.arguments_later((position++ == 0 ? "{" : ", ") + json_quoted(key) + ": ");
    whole = co_await literal(true, is_key ? std::string_view() : std::string_view(word));
    if (!whole) break;
  }
  if (ended_ && at_end() && (cut() || !(whole || (position == 0 && needs_no_arguments()))))
    co_return true;
  out_.drop_later();
  if (out_.has_arguments()) out_.arguments("}");
  end_call();
  co_return true;
}

// Reads `word =`, or a word that begins a value. Gives false if the answer ended.
Routine Machine::python_key(std::string& word, bool& is_key) {
  for (;;) {
    std::size_t bytes = 0;
    while (bytes < rest().size() && is_word(rest()[bytes]))
      ++bytes;
    word += rest().substr(0, bytes);
    take(bytes);
    if (!at_end()) break;
    if (ended_) co_return false;
    co_await input();
  }
  if (word.empty()) co_return true;
  if (!co_await blanks()) co_return false;
  is_key = front() == '=';
  if (is_key) take(1);
  co_return true;
}

// Reads one value. `begun`: a bare word whose beginning has been read. Gives false if the answer ended.
Routine Machine::literal(bool python, std::string_view begun) {
  Nesting nesting;
  if (!begun.empty()) co_return co_await bare_word(nesting, python, begun);
  do {
    if (!co_await blanks()) co_return false;
    const bool nested = !nesting.objects.empty();
    if (nested && closes(nesting, python)) continue;
    if (nested && front() == ',') {
      take(1);
      out_.arguments_later(", ");
      nesting.expects_key = nesting.objects.back();
      continue;
    }
    if (nested && nesting.objects.back() && front() == ':') {
      take(1);
      out_.arguments_later(nesting.expects_key ? "\"\": " : ": ");
      nesting.expects_key = false;
      continue;
    }
    if (opens(nesting, python)) continue;
    if (!co_await scalar(nesting, python)) co_return false;
  } while (!nesting.objects.empty());
  co_return true;
}

Routine Machine::scalar(Nesting& nesting, bool python) {
  const char c = front();
  bool whole = false;
  if (python && (c == '"' || c == '\'')) {
    whole = co_await python_string(nesting);
  } else if (c == '"') {
    whole = co_await json_value(Sink::kArguments, nullptr);
  } else {
    const std::string_view mark = family_.calls.string_mark;
    const Marks marks = {python ? std::string_view() : mark};
    Scan next = scan(marks);
    while (next.found == Found::kUndecided) {
      co_await input();
      next = scan(marks);
    }
    Routine value = next.found == Found::kMark ? marked_string() : bare_word(nesting, python, {});
    whole = co_await value;
  }
  nesting.expects_key = false;
  co_return whole;
}

bool Machine::closes(Nesting& nesting, bool python) {
  if (front() != '}' && front() != ']' && !(python && front() == ')')) return false;
  take(1);
  out_.drop_later();  // nothing follows this comma
  out_.arguments(nesting.objects.back() ? "}" : "]");
  nesting.objects.pop_back();
  nesting.expects_key = false;
  return true;
}

bool Machine::opens(Nesting& nesting, bool python) {
  const bool object = front() == '{';
  if (!object && front() != '[' && !(python && front() == '(')) return false;
  take(1);
  out_.arguments(object ? "{" : "[");
  nesting.objects.push_back(object);
  nesting.expects_key = object;
  return true;
}

// Reads a number, a word or a bare key, up to the character that ends it.
Routine Machine::bare_word(const Nesting& nesting, bool python, std::string_view begun) {
  const bool key = nesting.expects_key;
  const std::string ends = std::string(python ? ",)]}" : ",}]") + (key ? ":" : "");
  std::string word(begun);
  bool whole = false;
  for (;;) {
    const std::size_t end = rest().find_first_of(ends);
    whole = end != std::string_view::npos;
    const std::size_t bytes = whole ? end : rest().size();
    word += rest().substr(0, bytes);
    take(bytes);
    if (whole || ended_) break;
    co_await input();
  }
  if (!whole && cut()) co_return false;
  const std::string_view text = trimmed(word);
  if (key) {
    out_.arguments_later(json_quoted(text));
  } else {
    out_.arguments(text.empty() ? "null" : typed_value(text));
  }
  co_return whole;
}

Routine Machine::marked_string() {
  const Marks marks = {family_.calls.string_mark};
  take(marks[0].size());
  out_.arguments("\"");
  for (;;) {
    const Scan next = scan(marks);
    if (next.found == Found::kUndecided) {
      co_await input();
      continue;
    }
    std::string piece;
    if (next.found == Found::kText) {
      append_escaped(piece, next.text);
      out_.arguments(piece);
      take(next.text.size());
      continue;
    }
    const bool whole = next.found == Found::kMark;
    take(whole ? marks[0].size() : next.text.size());
    if (whole) out_.arguments("\"");
    co_return whole;
  }
}

Routine Machine::python_string(const Nesting& nesting) {
  const bool argument = nesting.objects.empty();
  const std::string_view ends = argument                 ? ",)"
                                : nesting.expects_key    ? ":"
                                : nesting.objects.back() ? ",}"
                                                         : ",])";
  constexpr std::size_t kLongestEscape = 10;  // \UXXXXXXXX
  while (rest().size() < 3 && !ended_)
    co_await input();
  if (rest().size() < 3 && cut()) {  // there may be three quotes, or one
    take(rest().size());
    co_return false;
  }
  const std::string quote(1, front());
  const std::string triple = quote + quote + quote;
  const std::string close = rest().starts_with(triple) ? triple : quote;
  take(close.size());
  out_.arguments("\"");
  const Marks marks = {close, "\\"};
  for (;;) {
    const Scan next = scan(marks);
    std::string piece;
    if (next.found == Found::kUndecided) {
      co_await input();
    } else if (next.found == Found::kText) {
      append_escaped(piece, next.text);
      take(next.text.size());
      out_.arguments(piece);
    } else if (next.found == Found::kMark && next.index == 1) {
      while (rest().size() < kLongestEscape && !ended_)
        co_await input();
      if (rest().size() < kLongestEscape && cut()) {  // this may be half an escape
        take(rest().size());
        co_return false;
      }
      take(1);
      if (!at_end()) take(python_escape(rest(), piece));
      out_.arguments(piece);
    } else if (next.found == Found::kMark && close == quote && !co_await string_ends(ends)) {
      if (ended_ && cut()) {  // the quote may be the string's end, or not
        take(rest().size());
        co_return false;
      }
      append_escaped(piece, quote);
      take(1);
      out_.arguments(piece);
    } else {
      const bool whole = next.found == Found::kMark;
      take(whole ? close.size() : next.text.size());
      if (whole) out_.arguments("\"");
      co_return whole;
    }
  }
}

// Says whether the quote that comes next ends its string. Some templates (LFM2.5) write texts between quotes without
// escapes, and models repeat that; so a quote belongs to the text unless one of `ends` follows it.
Routine Machine::string_ends(std::string_view ends) {
  for (;;) {
    const std::size_t next = rest().find_first_not_of(kBlanks, 1);
    if (next != std::string_view::npos) co_return ends.find(rest()[next]) != std::string_view::npos;
    if (ended_) co_return !cut();
    co_await input();
  }
}

}  // namespace bulkhead::model::answer
