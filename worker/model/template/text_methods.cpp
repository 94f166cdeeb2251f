// Methods of strings, as Python's str has them.
#include <algorithm>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/interpreter.hpp"
#include "worker/model/template/text_tools.hpp"

namespace bulkhead::jinja {
namespace {

const Text& text_of(Interpreter& run, const Value& self) {
  const Text& text = *self.as_text();
  run.tick(scan_steps(text.size()));
  return text;
}

template <Side side>
Value strip(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("strip", arguments, {"chars"});
  const Text& text = text_of(run, self);
  if (bound[0] == nullptr || bound[0]->none()) return stripped(text, side);
  return stripped(run, text, side, bound.text(0).view());
}

template <Case to>
Value change_case(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("upper or lower", arguments, {});
  return with_case(text_of(run, self), to);
}

Value capitalize(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("capitalize", arguments, {});
  return capitalized(text_of(run, self));
}

// Every run of letters is a word.
Value title(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("title", arguments, {});
  const Text& text = text_of(run, self);
  TextBuilder out;
  bool inside = false;
  for_chars(text.view(), [&](char32_t code, std::size_t at, std::size_t bytes) {
    run.tick();
    const bool letter = is_kind(code, CharKind::kLetter);
    out.append(letter ? with_case(text.sub(at, bytes), inside ? Case::kLower : Case::kUpper)
                      : text.sub(at, bytes));
    inside = letter;
  });
  return out.take();
}

Value swapcase(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("swapcase", arguments, {});
  const Text& text = text_of(run, self);
  TextBuilder out;
  for_chars(text.view(), [&](char32_t code, std::size_t at, std::size_t bytes) {
    run.tick();
    out.append(with_case(text.sub(at, bytes),
                         is_kind(code, CharKind::kUpper) ? Case::kLower : Case::kUpper));
  });
  return out.take();
}

// The characters [start, end) of `text`, as the arguments after the searched text say, and their position in bytes.
struct Window {
  Text text;
  std::size_t begin = 0;
  std::int64_t first_char = 0;
  bool valid = true;  // false: start is behind the end of the text
};

Window window(const Text& text, const Bound& bound, std::size_t start_at) {
  Window out{text};
  if (bound[start_at] == nullptr && bound[start_at + 1] == nullptr) return out;
  const auto size = static_cast<std::int64_t>(char_count(text));
  std::int64_t start = bound.integer(start_at, 0);
  std::int64_t end = bound.integer(start_at + 1, size);
  if (start < 0) start = std::max<std::int64_t>(0, start + size);
  if (end < 0) end = std::max<std::int64_t>(0, end + size);
  out.valid = start <= size && start <= std::min(end, size);
  out.first_char = start;
  out.begin = char_offset(text, static_cast<std::size_t>(start));
  out.text = char_slice(text, static_cast<std::size_t>(start),
                        static_cast<std::size_t>(std::min(end, size)));
  return out;
}

enum class End : bool { kStart, kEnd };

template <End end>
Value has_affix(Interpreter& run, const Value& self, Arguments& arguments) {
  const char* name = end == End::kStart ? "startswith" : "endswith";
  const Bound bound(name, arguments, {"prefix", "start", "end"}, 1);
  const Window in = window(text_of(run, self), bound, 1);
  const auto fits = [&run, &in](std::string_view part) {
    run.tick(copy_steps(std::min(part.size(), in.text.size())));
    return end == End::kStart ? in.text.view().starts_with(part) : in.text.view().ends_with(part);
  };
  const List* several = bound[0]->as_list();
  if (several == nullptr || several->flavour != Flavour::kTuple)
    return in.valid && fits(bound.text(0).view());
  return in.valid &&
         std::any_of(several->items.begin(), several->items.end(), [&](const Value& each) {
           if (each.as_text() == nullptr) fail("'startswith' and 'endswith' need strings");
           return fits(each.as_text()->view());
         });
}

template <End end>
Value without_affix(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("removeprefix or removesuffix", arguments, {"affix"}, 1);
  const Text& text = text_of(run, self);
  const Text affix = bound.text(0);
  if (end == End::kStart)
    return text.view().starts_with(affix.view()) ? text.sub(affix.size()) : text;
  return text.view().ends_with(affix.view()) ? text.sub(0, text.size() - affix.size()) : text;
}

template <End from, bool fails>
Value find(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("find", arguments, {"sub", "start", "end"}, 1);
  const Text& text = text_of(run, self);
  const Window in = window(text, bound, 1);
  const std::string_view sought = bound.text(0).view();
  const std::size_t at = from == End::kStart ? find_text(run, in.text.view(), sought)
                                             : rfind_text(run, in.text.view(), sought);
  if (at == std::string_view::npos || !in.valid) {
    if (fails) fail("'index' does not find the string");
    return std::int64_t{-1};
  }
  return in.first_char + static_cast<std::int64_t>(char_count(in.text.sub(0, at)));
}

Value count(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("count", arguments, {"sub", "start", "end"}, 1);
  const Window in = window(text_of(run, self), bound, 1);
  const Text sought = bound.text(0);
  if (!in.valid) return std::int64_t{0};
  if (sought.empty()) return static_cast<std::int64_t>(char_count(in.text)) + 1;
  std::int64_t found = 0;
  const std::string_view view = in.text.view();
  for (std::size_t at = find_text(run, view, sought.view()); at != view.npos;
       at = find_text(run, view, sought.view(), at + sought.size()))
    ++found;
  return found;
}

Value replace(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  return replaced(run, *self.as_text(), bound.text(0), bound.text(1), bound.integer(2, -1));
}

// ---- splitting ----

void split_at_blanks(Interpreter& run, const Text& text, std::int64_t most, End from, List& parts) {
  const std::string_view view = text.view();
  struct Word {
    std::size_t begin;
    std::size_t end;
  };
  CountedVector<Word> words;
  bool inside = false;
  for_chars(view, [&](char32_t code, std::size_t at, std::size_t bytes) {
    const bool blank = is_space(code);
    if (!blank && !inside) words.push_back({at, at});
    if (!blank) words.back().end = at + bytes;
    inside = !blank;
  });
  run.tick(words.size());
  const auto count = static_cast<std::int64_t>(words.size());
  const bool all = most < 0 || most >= count;
  std::size_t first = 0;
  std::size_t end = words.size();
  if (!all && from == End::kStart) end = static_cast<std::size_t>(most);
  if (!all && from == End::kEnd) first = static_cast<std::size_t>(count - most);
  if (first > 0) parts.items.emplace_back(text.sub(0, words[first - 1].end));
  for (std::size_t i = first; i < end; ++i)
    parts.items.emplace_back(text.sub(words[i].begin, words[i].end - words[i].begin));
  if (end < words.size())
    parts.items.emplace_back(stripped(text.sub(words[end].begin), Side::kRight));
  if (!all && from == End::kStart && end < words.size())  // str.split keeps the blanks at the end
    parts.items.back() = text.sub(words[end].begin);
}

template <End from>
Value split(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("split", arguments, {"sep", "maxsplit"});
  const Text& text = text_of(run, self);
  const std::int64_t most = bound.integer(1, -1);
  List* parts = run.heap().list();
  if (bound[0] == nullptr || bound[0]->none()) {
    split_at_blanks(run, text, most, from, *parts);
    return parts;
  }
  const Text separator = bound.text(0);
  if (separator.empty()) fail("splits a string at an empty separator");
  const std::string_view view = text.view();
  std::size_t done = from == End::kStart ? 0 : view.size();
  for (std::int64_t left = most; left != 0; --left) {
    run.tick();
    if (from == End::kStart) {
      const std::size_t at = find_text(run, view, separator.view(), done);
      if (at == view.npos) break;
      parts->items.emplace_back(text.sub(done, at - done));
      done = at + separator.size();
    } else {
      if (done < separator.size()) break;
      const std::size_t at = rfind_text(run, view, separator.view(), done - separator.size());
      if (at == view.npos) break;
      parts->items.emplace_back(text.sub(at + separator.size(), done - at - separator.size()));
      done = at;
    }
  }
  if (from == End::kStart) {
    parts->items.emplace_back(text.sub(done));
  } else {
    parts->items.emplace_back(text.sub(0, done));
    std::reverse(parts->items.begin(), parts->items.end());
  }
  return parts;
}

template <End from>
Value partition(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("partition", arguments, {"sep"}, 1);
  const Text& text = text_of(run, self);
  const Text separator = bound.text(0);
  if (separator.empty()) fail("splits a string at an empty separator");
  const std::size_t at = from == End::kStart ? find_text(run, text.view(), separator.view())
                                             : rfind_text(run, text.view(), separator.view());
  List* parts = run.heap().list(Flavour::kTuple);
  if (at != std::string_view::npos)
    parts->items = {text.sub(0, at), separator, text.sub(at + separator.size())};
  else if (from == End::kStart)
    parts->items = {text, Text(), Text()};
  else
    parts->items = {Text(), Text(), text};
  return parts;
}

Value splitlines(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("splitlines", arguments, {"keepends"});
  return split_lines(run, *self.as_text(), bound.flag(0, false));
}

Value join(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("join", arguments, {"iterable"}, 1);
  require_defined(*bound[0]);
  const List* items = iterate(run, *bound[0]);
  for (const Value& item : items->items)
    if (item.as_text() == nullptr)
      fail("joins " + a_type(item) + " to strings; use the filter 'join', or '| string'");
  return joined(run, *self.as_text(), *items);
}

// ---- filling ----

template <std::size_t left_share>
Value pad(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("ljust, rjust or center", arguments, {"width", "fillchar"}, 1);
  const Text fill = bound.text(1, " ");
  if (char_count(fill) != 1) fail("fills with a string that is not one character");
  return padded(run, *self.as_text(), bound.integer(0, 0), fill, left_share);
}

Value zfill(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("zfill", arguments, {"width"}, 1);
  const Text& text = *self.as_text();
  const bool sign = text.view().starts_with('-') || text.view().starts_with('+');
  TextBuilder out;
  out.append(text.sub(0, sign ? 1 : 0));
  out.append(padded(run, text.sub(sign ? 1 : 0), bound.integer(0, 0) - (sign ? 1 : 0),
                    Text("0", Origin::kTemplate), 2));
  return out.take();
}

Value expandtabs(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("expandtabs", arguments, {"tabsize"});
  const std::int64_t size = bound.integer(0, 8);
  if (size > 1000) fail("'expandtabs' makes tabs of over 1,000 columns");
  const Text& text = text_of(run, self);
  TextBuilder out;
  std::int64_t column = 0;
  for_chars(text.view(), [&](char32_t code, std::size_t at, std::size_t bytes) {
    run.tick();
    if (code != '\t') {
      out.append(text.sub(at, bytes));
      column = code == '\n' || code == '\r' ? 0 : column + 1;
      return;
    }
    for (std::int64_t blanks = size > 0 ? size - column % size : 0; blanks > 0; --blanks, ++column)
      out.append(" ", Origin::kTemplate);
  });
  return out.take();
}

// ---- asking ----

// Says whether all characters are of one of the kinds, and there is at least one.
template <CharKind... kinds>
Value all_of(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("a test of characters", arguments, {});
  const Text& text = text_of(run, self);
  bool all = !text.empty();
  for_chars(text.view(), [&](char32_t code, std::size_t, std::size_t) {
    all = all && (is_kind(code, kinds) || ...);
  });
  return all;
}

template <Case wanted>
Value is_cased(Interpreter& run, const Value& self, Arguments& arguments) {
  return find_test(wanted == Case::kUpper ? "upper" : "lower")->call(run, self, arguments);
}

Value all_space(Interpreter& run, const Value& self, Arguments&) {
  const Text& text = text_of(run, self);
  return !text.empty() && stripped(text, Side::kBoth).empty();
}
Value all_ascii(Interpreter& run, const Value& self, Arguments&) {
  const std::string_view view = text_of(run, self).view();
  return std::all_of(view.begin(), view.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}
Value all_printable(Interpreter& run, const Value& self, Arguments&) {
  bool all = true;
  for_chars(text_of(run, self).view(), [&all](char32_t code, std::size_t, std::size_t) {
    all = all && (code == ' ' || !is_kind(code, CharKind::kUnprintable));
  });
  return all;
}
Value is_identifier(Interpreter& run, const Value& self, Arguments&) {
  bool all = !self.as_text()->empty();
  for_chars(text_of(run, self).view(), [&all](char32_t code, std::size_t at, std::size_t) {
    all = all && (code == '_' || is_kind(code, CharKind::kLetter) ||
                  (at > 0 && is_kind(code, CharKind::kDecimal)));
  });
  return all;
}
Value is_title(Interpreter& run, const Value& self, Arguments& arguments) {
  const Value titled = title(run, self, arguments);
  bool cased = false;
  for_chars(self.as_text()->view(), [&cased](char32_t code, std::size_t, std::size_t) {
    cased = cased || is_kind(code, CharKind::kUpper);
  });
  return cased && titled.as_text()->view() == self.as_text()->view();
}

Value format(Interpreter& run, const Value& self, Arguments& arguments) {
  return format_braces(run, *self.as_text(), arguments);
}
Value format_map(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("format_map", arguments, {"mapping"}, 1);
  if (bound[0]->as_dict() == nullptr) fail("'format_map' needs a dict");
  Arguments named;
  for (const Dict::Entry& entry : bound[0]->as_dict()->entries)
    if (const Text* key = entry.key.as_text()) named.keyword.emplace_back(key->view(), entry.value);
  return format_braces(run, *self.as_text(), named);
}

constexpr NativeFunction kRows[] = {
    {"strip", strip<Side::kBoth>},
    {"lstrip", strip<Side::kLeft>},
    {"rstrip", strip<Side::kRight>},
    {"upper", change_case<Case::kUpper>},
    {"lower", change_case<Case::kLower>},
    {"casefold", change_case<Case::kLower>},
    {"capitalize", capitalize},
    {"title", title},
    {"swapcase", swapcase},
    {"startswith", has_affix<End::kStart>},
    {"endswith", has_affix<End::kEnd>},
    {"removeprefix", without_affix<End::kStart>},
    {"removesuffix", without_affix<End::kEnd>},
    {"find", find<End::kStart, false>},
    {"rfind", find<End::kEnd, false>},
    {"index", find<End::kStart, true>},
    {"rindex", find<End::kEnd, true>},
    {"count", count},
    {"replace", replace},
    {"split", split<End::kStart>},
    {"rsplit", split<End::kEnd>},
    {"partition", partition<End::kStart>},
    {"rpartition", partition<End::kEnd>},
    {"splitlines", splitlines},
    {"join", join},
    {"ljust", pad<0>},
    {"center", pad<1>},
    {"rjust", pad<2>},
    {"zfill", zfill},
    {"expandtabs", expandtabs},
    {"isalpha", all_of<CharKind::kLetter>},
    {"isalnum", all_of<CharKind::kLetter, CharKind::kNumber>},
    {"isdigit", all_of<CharKind::kDecimal>},
    {"isdecimal", all_of<CharKind::kDecimal>},
    {"isnumeric", all_of<CharKind::kNumber>},
    {"isupper", is_cased<Case::kUpper>},
    {"islower", is_cased<Case::kLower>},
    {"istitle", is_title},
    {"isspace", all_space},
    {"isascii", all_ascii},
    {"isprintable", all_printable},
    {"isidentifier", is_identifier},
    {"format", format},
    {"format_map", format_map},
};

}  // namespace

std::span<const NativeFunction> text_methods() {
  return kRows;
}

}  // namespace bulkhead::jinja
