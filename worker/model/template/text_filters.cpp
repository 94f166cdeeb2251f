// Filters that turn text into text.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/html_text.hpp"
#include "worker/model/template/interpreter.hpp"
#include "worker/model/template/text_tools.hpp"

namespace bulkhead::jinja {
namespace {

template <Case to>
Value change_case(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("upper or lower", arguments, {});
  return with_case(str(run, self), to);
}

Value capitalize(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("capitalize", arguments, {});
  const Text text = str(run, self);
  run.tick(scan_steps(text.size()));
  return capitalized(text);
}

// A word begins after blanks, hyphens and opening brackets.
Value title(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("title", arguments, {});
  const Text text = str(run, self);
  run.tick(text.size());
  TextBuilder out;
  std::size_t word = 0;
  for_chars(text.view(), [&](char32_t code, std::size_t at, std::size_t bytes) {
    const bool separates =
        is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    if (!separates) return;
    out.append(word_case(text.sub(word, at - word)));
    out.append(text.sub(at, bytes));
    word = at + bytes;
  });
  out.append(word_case(text.sub(word)));
  return out.take();
}

Value trim(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const Text text = str(run, self);
  run.tick(copy_steps(text.size()));
  if (bound[0] == nullptr || bound[0]->none()) return stripped(text, Side::kBoth);
  return stripped(run, text, Side::kBoth, bound.text(0).view());
}

Value replace(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  return replaced(run, str(run, self), str(run, *bound[0]), str(run, *bound[1]),
                  bound.integer(2, -1));
}

Value center(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("center", arguments, {"width"});
  return padded(run, str(run, self), bound.integer(0, 80), Text(" ", Origin::kTemplate), 1);
}

Value indent(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  Text by;
  if (bound[0] != nullptr && bound[0]->as_text() != nullptr) {
    by = *bound[0]->as_text();
  } else {
    const auto width = std::max<std::int64_t>(0, bound.integer(0, 4));
    by = padded(run, {}, width, Text(" ", Origin::kTemplate), 0);
  }
  const bool first = bound.flag(1, false);
  const bool blank = bound.flag(2, false);
  TextBuilder whole;
  whole.append(str(run, self));
  whole.append("\n", Origin::kTemplate);  // so that a line end at the end makes a last, empty line
  const List* lines = split_lines(run, whole.take(), false);
  TextBuilder out;
  for (std::size_t i = 0; i < lines->items.size(); ++i) {
    const Text& line = *lines->items[i].as_text();
    run.tick(1 + copy_steps(by.size()));
    if (i > 0) out.append("\n", Origin::kTemplate);
    const bool indents = i == 0 ? first : (blank || !line.empty());
    if (indents) out.append(by);
    out.append(line);
  }
  return out.take();
}

Value wordcount(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("wordcount", arguments, {});
  const Text text = str(run, self);
  run.tick(text.size());
  std::int64_t words = 0;
  bool inside = false;
  for_chars(text.view(), [&](char32_t code, std::size_t, std::size_t) {
    const bool word =
        code == '_' || is_kind(code, CharKind::kLetter) || is_kind(code, CharKind::kNumber);
    words += word && !inside ? 1 : 0;
    inside = word;
  });
  return words;
}

// Cuts between words, unless `killwords` is set. Does not cut text that is too long by at most `leeway`.
Value truncate(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const Text text = str(run, self);
  const std::int64_t length = bound.integer(0, 255);
  const Text end = bound.text(2, "...");
  const std::int64_t leeway = bound.integer(3, 5);
  const auto ending = static_cast<std::int64_t>(char_count(end));
  if (length < ending) fail("truncates to a length below that of the text it ends with");
  run.tick(scan_steps(text.size()));
  if (static_cast<std::int64_t>(char_count(text)) <= length + std::max<std::int64_t>(0, leeway))
    return text;
  Text kept = char_slice(text, 0, static_cast<std::size_t>(length - ending));
  if (!bound.flag(1, false)) {
    const std::size_t blank = kept.view().rfind(' ');
    if (blank != std::string_view::npos) kept = kept.sub(0, blank);
  }
  TextBuilder out;
  out.append(kept);
  out.append(end);
  return out.take();
}

Value wordwrap(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("wordwrap", arguments,
                    {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  const std::int64_t width = bound.integer(0, 79);
  if (width <= 0) fail("wraps words to a width below 1");
  const bool given = bound[2] != nullptr && !bound[2]->none();
  const Text separator = given ? bound.text(2) : Text("\n", Origin::kTemplate);
  const LineWidth wanted = {static_cast<std::size_t>(width), bound.flag(1, true),
                            bound.flag(3, true)};
  const List* lines = split_lines(run, str(run, self), false);
  TextBuilder out;
  for (std::size_t i = 0; i < lines->items.size(); ++i) {
    if (i > 0) out.append(separator);
    TextBuilder wrapped;
    wrap_line(run, *lines->items[i].as_text(), wanted, separator, wrapped);
    out.append(wrapped.take());
  }
  return out.take();
}

// ---- HTML and URLs ----

Value escape(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("escape", arguments, {});
  const Text text = str(run, self);
  return text.markup() ? text : escaped_html(run, text).as_markup();
}

Value striptags(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("striptags", arguments, {});
  return without_tags(run, str(run, self));
}

void append_url(Run& run, const Text& text, std::string_view kept, TextBuilder& out) {
  run.tick(text.size());
  text.for_runs([&](std::string_view part, Origin origin) {
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      const bool plain = std::isalnum(byte) != 0 || std::string_view("_.-~").find(c) != part.npos ||
                         kept.find(c) != kept.npos;
      if (c == ' ' && kept.empty()) {
        out.append("+", origin);
        continue;
      }
      char code[4];
      std::snprintf(code, sizeof code, "%%%02X", byte);
      out.append(plain && byte < 0x80 ? std::string_view(&c, 1) : std::string_view(code), origin);
    }
  });
}

Value urlencode(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("urlencode", arguments, {});
  TextBuilder out;
  if (self.as_dict() == nullptr && (self.as_list() == nullptr)) {
    append_url(run, str(run, self), "/", out);
    return out.take();
  }
  const auto pair = [&](const Value& key, const Value& value) {
    if (out.size() > 0) out.append("&", Origin::kTemplate);
    append_url(run, str(run, key), "", out);
    out.append("=", Origin::kTemplate);
    append_url(run, str(run, value), "", out);
  };
  if (const Dict* dict = self.as_dict()) {
    for (const Dict::Entry& entry : dict->entries)
      pair(entry.key, entry.value);
    return out.take();
  }
  for (const Value& each : iterate(run, self)->items) {
    const List* parts = iterate(run, each);
    if (parts->items.size() != 2) fail("encodes a list for a URL whose items are no pairs");
    pair(parts->items[0], parts->items[1]);
  }
  return out.take();
}

Value xmlattr(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("xmlattr", arguments, {"autospace"});
  if (self.as_dict() == nullptr) fail("'xmlattr' needs a dict, and gets " + a_type(self));
  TextBuilder out;
  for (const Dict::Entry& entry : self.as_dict()->entries) {
    if (entry.value.none() || entry.value.undefined()) continue;
    run.tick(4);
    const Text key = str(run, entry.key);
    if (key.view().find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos)
      fail("'xmlattr' gets a key that can't be an attribute's name");
    if (out.size() > 0 || bound.flag(0, true)) out.append(" ", Origin::kTemplate);
    out.append(escaped_html(run, key));
    out.append("=\"", Origin::kTemplate);
    out.append(escaped_html(run, str(run, entry.value)));
    out.append("\"", Origin::kTemplate);
  }
  return out.take();
}

// ---- others ----

Value as_string(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("string", arguments, {});
  return str(run, self);
}

Value safe(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("safe", arguments, {});
  return str(run, self).as_markup();
}

Value force_escape(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("forceescape", arguments, {});
  return escaped_html(run, str(run, self)).as_markup();
}

Value format(Interpreter& run, const Value& self, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keyword.empty())
    fail("'format' takes values or name=value, not both");
  List* tuple = run.heap().list(Flavour::kTuple);
  tuple->items = arguments.positional;
  Dict* dict = run.heap().make<Dict>();
  for (const auto& [name, value] : arguments.keyword)
    dict->set(Text(name, Origin::kTemplate), value);
  return format_percent(run, str(run, self),
                        arguments.keyword.empty() ? Value(tuple) : Value(dict));
}

Value filesizeformat(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("filesizeformat", arguments, {"binary"});
  Arguments none;
  run.tick(4);
  const Value number = self.as_text() != nullptr ? run.filter("float", self, none) : self;
  require_defined(number);
  if (!is_number(number)) fail("'filesizeformat' needs a number");
  const bool binary = bound.flag(0, false);
  const double base = binary ? 1024 : 1000;
  const double bytes = to_double(number);
  if (bytes == 1) return Text("1 Byte", Origin::kTemplate);
  char text[64];
  if (bytes < base) {
    std::snprintf(text, sizeof text, "%.0f Bytes", std::trunc(bytes));
    return Text(text, Origin::kTemplate);
  }
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  std::size_t i = 0;
  while (i + 1 < kPrefixes.size() && bytes >= unit * base) {
    unit *= base;
    ++i;
  }
  const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
  std::snprintf(text, sizeof text, "%.1f %c%s", bytes / unit, prefix, binary ? "iB" : "B");
  return Text(text, Origin::kTemplate);
}

// Numbers come before text, as "int" before "str" in Python; other keys keep their order behind these.
bool key_before(Run& run, const Dict::Entry& a, const Dict::Entry& b) {
  const auto rank = [](const Value& key) { return is_number(key) ? 0 : key.as_text() ? 1 : 2; };
  if (rank(a.key) != rank(b.key)) return rank(a.key) < rank(b.key);
  return rank(a.key) < 2 && compare(run, a.key, b.key) == Ordering::kLess;
}

Value with_sorted_keys(Run& run, const Value& value) {
  const Deeper deeper(run);
  run.tick();
  if (const Dict* dict = value.as_dict()) {
    run.tick(dict->entries.size());
    CountedVector<Dict::Entry> entries(dict->entries.begin(), dict->entries.end());
    std::stable_sort(entries.begin(), entries.end(),
                     [&run](const auto& a, const auto& b) { return key_before(run, a, b); });
    Dict* sorted = run.heap().make<Dict>();
    for (const Dict::Entry& entry : entries)
      sorted->set(entry.key, with_sorted_keys(run, entry.value));
    return sorted;
  }
  const List* list = value.as_list();
  if (list == nullptr || (list->flavour != Flavour::kList && list->flavour != Flavour::kTuple))
    return value;
  List* copy = run.heap().list(list->flavour);
  for (const Value& item : list->items)
    copy->items.push_back(with_sorted_keys(run, item));
  return copy;
}

Value pprint(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("pprint", arguments, {});
  TextBuilder out;
  append_repr(run, with_sorted_keys(run, self), out);
  return out.take();
}

constexpr NativeFunction kRows[] = {
    {"upper", change_case<Case::kUpper>},
    {"lower", change_case<Case::kLower>},
    {"capitalize", capitalize},
    {"title", title},
    {"trim", trim},
    {"replace", replace},
    {"center", center},
    {"indent", indent},
    {"wordcount", wordcount},
    {"truncate", truncate},
    {"wordwrap", wordwrap},
    {"escape", escape},
    {"e", escape},
    {"forceescape", force_escape},
    {"striptags", striptags},
    {"urlencode", urlencode},
    {"xmlattr", xmlattr},
    {"string", as_string},
    {"safe", safe},
    {"format", format},
    {"filesizeformat", filesizeformat},
    {"pprint", pprint},
};

}  // namespace

std::span<const NativeFunction> text_filters() {
  return kRows;
}

}  // namespace bulkhead::jinja
