// "%d of %s" % values and "{:>8}".format(value): those parts of them that templates use.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/characters.hpp"
#include "worker/model/template/interpreter.hpp"
#include "worker/model/template/text_tools.hpp"

namespace bulkhead::jinja {
namespace {

constexpr std::int64_t kMostDigits = 1000;

// How one value is written, for both kinds of format.
struct Spec {
  Text fill;        // empty: a blank
  char align = 0;   // < > ^ =
  char sign = '-';  // + - or blank
  bool alternate = false;
  bool zero = false;
  char group = 0;  // , or _: stands between groups of three digits
  std::int64_t width = 0;
  std::optional<std::int64_t> precision;
  char type = 0;
};

std::int64_t read_number(std::string_view text, std::size_t& at) {
  std::int64_t number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    number = number * 10 + (text[at++] - '0');
    if (number > 1'000'000) fail("formats to a width or precision of over a million");
  }
  return number;
}

bool is_float_type(char type) {
  return std::string_view("eEfFgG%").find(type) != std::string_view::npos;
}
bool is_integer_type(char type) {
  return std::string_view("dxXobn").find(type) != std::string_view::npos;
}

std::string grouped(std::string digits, char mark) {
  const std::size_t whole = std::min(digits.find_first_of(".e"), digits.size());
  for (std::size_t at = whole; at > 3; at -= 3)
    digits.insert(at - 3, 1, mark);
  return digits;
}

// `value` is not negative.
std::string in_base(const Integer& value, char type) {
  if (type == 'd') return value.str();
  const unsigned bits_of_digit = type == 'o' ? 3 : type == 'b' ? 1 : 4;
  const unsigned bits = value == 0 ? 1U : static_cast<unsigned>(msb(value)) + 1;
  std::string out;
  for (unsigned at = 0; at < bits; at += bits_of_digit) {
    unsigned digit = 0;
    for (unsigned i = 0; i < bits_of_digit; ++i)
      digit |= (bit_test(value, at + i) ? 1U : 0U) << i;
    out += (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[digit];
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::string float_digits(double value, const Spec& spec) {
  const std::int64_t precision = spec.precision.value_or(6);
  if (precision > kMostDigits) fail("formats a number with over 1,000 digits");
  char pattern[16];
  // snprintf gets the type, and would take some others for a pointer.
  if (!is_float_type(spec.type)) fail(std::string("formats a float as '") + spec.type + "'");
  const char type = spec.type == '%' ? 'f' : spec.type;
  std::snprintf(pattern, sizeof pattern, "%%%s.*%c", spec.alternate ? "#" : "", type);
  std::string out(static_cast<std::size_t>(precision) + 400, '\0');
  const int size =
      std::snprintf(out.data(), out.size(), pattern, static_cast<int>(precision), std::fabs(value));
  out.resize(static_cast<std::size_t>(std::max(0, size)));
  return out;
}

// "{:.3}": as "{:.3g}" does it, but a number never looks like an integer.
std::string rounded_digits(double value, Spec spec) {
  const std::int64_t precision = std::max<std::int64_t>(1, *spec.precision);
  spec.precision = precision - 1;
  spec.type = 'e';
  std::string digits = float_digits(value, spec);
  const std::size_t mark = digits.find('e');
  const int exponent = std::stoi(digits.substr(mark + 1));
  spec.precision = precision;
  spec.type = 'g';
  if (exponent >= -4 && exponent < precision - 1) {
    digits = float_digits(value, spec);
    return digits.find('.') == digits.npos ? digits + ".0" : digits;
  }
  std::string shown = digits.substr(0, mark);
  if (shown.find('.') != shown.npos) {
    shown.erase(shown.find_last_not_of('0') + 1);
    if (shown.back() == '.') shown.pop_back();
  }
  return shown + digits.substr(mark);
}

// An odd blank stands on the right of a centred text, where str.center may put it on the left.
Text aligned(Run& run, const Text& text, const Text& fill, std::int64_t width, char align) {
  if (align != '^') return padded(run, text, width, fill, align == '<' ? 0 : 2);
  const auto size = static_cast<std::int64_t>(char_count(text));
  const std::int64_t left = std::max<std::int64_t>(0, width - size) / 2;
  return padded(run, padded(run, text, size + left, fill, 2), width, fill, 0);
}

// Puts the sign, the prefix and the digits together, and fills up to the width.
Text number_text(Run& run, bool negative, std::string_view prefix, std::string digits,
                 const Spec& spec) {
  if (spec.group != 0) digits = grouped(std::move(digits), spec.group);
  std::string head = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  head += prefix;
  const bool zeros = spec.align == '=' || (spec.zero && spec.align == 0);
  const Text fill = spec.zero && spec.fill.empty() ? Text("0", Origin::kTemplate)
                    : spec.fill.empty()            ? Text(" ", Origin::kTemplate)
                                                   : spec.fill;
  const Text body(zeros ? digits : head + digits, Origin::kTemplate);
  const std::int64_t width =
      zeros ? spec.width - static_cast<std::int64_t>(head.size()) : spec.width;
  TextBuilder out;
  if (zeros) out.append(head, Origin::kTemplate);
  out.append(aligned(run, body, fill, width, spec.align));
  return out.take();
}

Text integer_text(Run& run, const Integer& value, const Spec& spec) {
  if (value != 0 && msb(abs(value)) > 63) run.tick(2000);  // the text may have thousands of digits
  const char base = static_cast<char>(spec.type | 0x20);
  const std::string prefix = !spec.alternate || base == 'd' ? "" : std::string("0") + spec.type;
  std::string digits = in_base(abs(value), spec.type == 0 || spec.type == 'n' ? 'd' : spec.type);
  const auto wanted = static_cast<std::size_t>(std::min(spec.precision.value_or(0), kMostDigits));
  if (digits.size() < wanted) digits.insert(0, wanted - digits.size(), '0');
  return number_text(run, value < 0, prefix, std::move(digits), spec);
}

Text float_text_of(Run& run, double value, Spec spec) {
  run.tick(100);  // the text may have hundreds of digits
  if (spec.type == '%') value *= 100;
  std::string digits;
  if (!std::isfinite(value))
    digits = std::isnan(value) ? "nan" : "inf";
  else if (spec.type == 0 && !spec.precision)
    digits = float_text(std::fabs(value));
  else if (spec.type == 0)
    digits = rounded_digits(value, spec);
  else
    digits = float_digits(value, spec);
  if (spec.type == '%') digits += '%';
  return number_text(run, std::signbit(value) && !std::isnan(value), "", std::move(digits), spec);
}

Text plain_text(Run& run, Text text, const Spec& spec) {
  if (spec.precision) text = char_slice(text, 0, static_cast<std::size_t>(*spec.precision));
  const Text fill = spec.fill.empty() ? Text(" ", Origin::kTemplate) : spec.fill;
  return aligned(run, text, fill, spec.width, spec.align == 0 ? '<' : spec.align);
}

// ---- % ----

Text percent_value(Run& run, const Value& value, Spec spec) {
  switch (spec.type) {
    case 's':
      return plain_text(run, str(run, value), spec);
    case 'r':
    case 'a': {
      TextBuilder out;
      append_repr(run, value, out);
      return plain_text(run, out.take(), spec);
    }
    case 'c': {
      if (const Text* text = value.as_text(); text != nullptr && char_count(*text) == 1)
        return plain_text(run, *text, spec);
      const std::int64_t code = to_int64(value, "%c");
      if (code < 0 || code > 0x10ffff) fail("writes by %c a number that is no character");
      TextBuilder out;
      out.append(static_cast<char32_t>(code), Origin::kTemplate);
      return plain_text(run, out.take(), spec);
    }
  }
  require_defined(value);
  if (!is_number(value)) fail(std::string("writes ") + a_type(value) + " by %" + spec.type);
  if (is_float_type(spec.type)) return float_text_of(run, to_double(value), spec);
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  if (!is_integer_type(spec.type) || spec.type == 'b' || spec.type == 'n')
    fail(std::string("there is no format %") + spec.type);
  if (value.as_float() != nullptr && (spec.type != 'd' || !std::isfinite(*value.as_float())))
    fail(std::string("writes a float by %") + spec.type);
  return integer_text(
      run, value.as_float() ? Integer(std::trunc(*value.as_float())) : to_integer(value), spec);
}

}  // namespace

Value format_percent(Run& run, const Text& format, const Value& values) {
  const std::string_view view = format.view();
  run.tick(scan_steps(view.size()));
  const List* tuple = values.as_list();
  if (tuple != nullptr && tuple->flavour != Flavour::kTuple) tuple = nullptr;
  std::size_t used = 0;
  const auto next = [&]() -> const Value& {
    if (tuple == nullptr && used++ == 0) return values;
    if (tuple == nullptr || used >= tuple->items.size()) fail("has more %-formats than values");
    return tuple->items[used++];
  };
  TextBuilder out;
  std::size_t done = 0;
  bool named = false;
  for (std::size_t at = view.find('%'); at != view.npos; at = view.find('%', done)) {
    run.tick();
    out.append(format.sub(done, at - done));
    ++at;
    Spec spec;
    spec.align = '>';
    const Value* value = nullptr;
    if (at < view.size() && view[at] == '(') {
      const std::size_t end = view.find(')', at);
      if (end == view.npos || values.as_dict() == nullptr) fail("uses %(name)s without a dict");
      value = values.as_dict()->get(view.substr(at + 1, end - at - 1));
      if (value == nullptr) fail("uses %(name)s with a name that the dict doesn't have");
      named = true;
      at = end + 1;
    }
    for (; at < view.size() && std::string_view("-+ #0").find(view[at]) != view.npos; ++at) {
      if (view[at] == '-') spec.align = '<';
      if (view[at] == '+' || view[at] == ' ') spec.sign = spec.sign == '+' ? '+' : view[at];
      if (view[at] == '#') spec.alternate = true;
      if (view[at] == '0') spec.zero = true;
    }
    const auto star_or_number = [&]() {
      if (at >= view.size() || view[at] != '*') return read_number(view, at);
      ++at;
      return std::min<std::int64_t>(to_int64(next(), "a width"), 1'000'000);
    };
    spec.width = star_or_number();
    if (at < view.size() && view[at] == '.') {
      ++at;
      spec.precision = star_or_number();
    }
    while (at < view.size() && std::string_view("hlL").find(view[at]) != view.npos)
      ++at;
    if (at >= view.size()) fail("ends a format after '%'; write %% for a percent sign");
    spec.type = view[at];
    done = at + 1;
    if (spec.type == '%') {
      out.append("%", Origin::kTemplate);
      continue;
    }
    if (spec.zero && spec.align == '>' &&
        (is_float_type(spec.type) || is_integer_type(spec.type) || spec.type == 'i'))
      spec.align = '=';
    else
      spec.zero = false;
    out.append(percent_value(run, value != nullptr ? *value : next(), spec));
  }
  const bool unused = tuple != nullptr
                          ? used < tuple->items.size()
                          : used == 0 && values.as_dict() == nullptr && values.as_list() == nullptr;
  if (unused && !named) fail("has fewer %-formats than values");
  out.append(format.sub(done));
  return out.take();
}

namespace {

// ---- {} ----

class Braces {
 public:
  Braces(Run& run, const Arguments& arguments) : run_(run), arguments_(arguments) {}

  Text format(const Text& text, int depth) {
    if (depth > 2) fail("nests formats of braces too deeply");
    const std::string_view view = text.view();
    TextBuilder out;
    std::size_t done = 0;
    for (std::size_t at = 0; at < view.size();) {
      if (view[at] != '{' && view[at] != '}') {
        ++at;
        continue;
      }
      run_.tick(4);
      out.append(text.sub(done, at - done));
      if (at + 1 < view.size() && view[at + 1] == view[at]) {
        out.append(text.sub(at, 1));
        at += 2;
      } else if (view[at] == '}') {
        fail("has a lone '}' in a format; write }}");
      } else {
        std::size_t end = at + 1;
        for (int open = 1; open > 0; ++end) {
          if (end >= view.size()) fail("has a '{' in a format that never ends");
          open += view[end] == '{' ? 1 : view[end] == '}' ? -1 : 0;
        }
        out.append(field(text.sub(at + 1, end - at - 2), depth));
        at = end;
      }
      done = at;
    }
    out.append(text.sub(done));
    return out.take();
  }

 private:
  Text field(const Text& text, int depth) {
    const std::string_view view = text.view();
    const std::size_t colon = std::min(view.find(':'), view.size());
    std::size_t name_end = std::min(view.find('!'), colon);
    const char conversion = name_end < colon && name_end + 1 < view.size() ? view[name_end + 1] : 0;
    Value value = lookup(view.substr(0, name_end));
    if (conversion == 'r' || conversion == 'a') {
      TextBuilder out;
      append_repr(run_, value, out);
      value = out.take();
    } else if (conversion == 's') {
      value = str(run_, value);
    }
    return formatted(value,
                     colon < view.size() ? this->format(text.sub(colon + 1), depth + 1) : Text());
  }

  Value lookup(std::string_view path) {
    const std::size_t first = std::min(path.find_first_of(".["), path.size());
    const std::string_view name = path.substr(0, first);
    Value value;
    const bool number = !name.empty() && name.find_first_not_of("0123456789") == name.npos;
    if (name.empty() || number) {
      std::size_t at = 0;
      const std::size_t index = number ? static_cast<std::size_t>(read_number(name, at)) : next_++;
      if (index >= arguments_.positional.size()) fail("has more {} in a format than values");
      value = arguments_.positional[index];
    } else {
      const auto at = std::find_if(arguments_.keyword.begin(), arguments_.keyword.end(),
                                   [name](const auto& each) { return each.first == name; });
      if (at == arguments_.keyword.end())
        fail("has no value for {" + std::string(name) + "} in a format");
      value = at->second;
    }
    if (first < path.size()) fail("takes parts of a value within a format's {}; do it outside");
    return value;
  }

  static Spec spec_of(const Text& text) {
    const std::string_view view = text.view();
    Spec spec;
    std::size_t at = 0;
    constexpr std::string_view kAligns = "<>^=";
    const std::size_t first = view.empty() ? 0 : model::decode_char(view).bytes;
    if (first < view.size() && first > 0 && kAligns.find(view[first]) != view.npos) {
      spec.fill = text.sub(0, first);
      spec.align = view[first];
      at = first + 1;
    } else if (!view.empty() && kAligns.find(view[0]) != view.npos) {
      spec.align = view[at++];
    }
    const auto skip = [&](char c) {
      return at < view.size() && view[at] == c ? (++at, true) : false;
    };
    if (at < view.size() && std::string_view("+- ").find(view[at]) != view.npos)
      spec.sign = view[at++];
    spec.alternate = skip('#');
    spec.zero = skip('0');
    spec.width = read_number(view, at);
    spec.group = skip(',') ? ',' : skip('_') ? '_' : '\0';
    if (skip('.')) spec.precision = read_number(view, at);
    if (at < view.size()) spec.type = view[at++];
    if (at < view.size())
      fail("has a format that is not understood: " + std::string(view.substr(0, 40)));
    return spec;
  }

  Text formatted(const Value& value, const Text& text) {
    if (text.empty()) return str(run_, value);
    Spec spec = spec_of(text);
    const bool decimal = std::string_view("xXob").find(spec.type) == std::string_view::npos;
    if (spec.group != 0 && (!is_number(value) || !decimal || spec.zero))
      fail("groups digits where that is not understood: " + std::string(text.view().substr(0, 40)));
    if (is_number(value)) {
      if (value.as_float() != nullptr && spec.type == 'n') spec.type = 'g';
      if (is_float_type(spec.type) || (value.as_float() != nullptr && spec.type == 0))
        return float_text_of(run_, to_double(value), spec);
      if (value.as_float() != nullptr) fail(std::string("formats a float as '") + spec.type + "'");
      if (spec.type != 0 && !is_integer_type(spec.type))
        fail(std::string("formats an int as '") + spec.type + "'");
      if (spec.precision) fail("formats an int with a precision; that is for floats and strings");
      return integer_text(run_, to_integer(value), spec);
    }
    require_defined(value);
    if (value.as_text() == nullptr) fail("formats " + a_type(value) + " with more than {}");
    if (spec.type != 0 && spec.type != 's')
      fail(std::string("formats a string as '") + spec.type + "'");
    if (spec.zero && spec.fill.empty()) spec.fill = Text("0", Origin::kTemplate);
    return plain_text(run_, str(run_, value), spec);
  }

  Run& run_;
  const Arguments& arguments_;
  std::size_t next_ = 0;
};

}  // namespace

Text format_braces(Run& run, const Text& format, const Arguments& arguments) {
  run.tick(scan_steps(format.size()));
  return Braces(run, arguments).format(format, 0);
}

}  // namespace bulkhead::jinja
