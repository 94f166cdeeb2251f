// Filters of single values: numbers, defaults, attributes, JSON.
#include <cmath>
#include <cstdio>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/interpreter.hpp"
#include "worker/model/template/json.hpp"

namespace bulkhead::jinja {
namespace {

Value absolute(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("abs", arguments, {});
  require_defined(self);
  if (!is_number(self)) fail("'abs' needs a number, and gets " + a_type(self));
  if (const double* number = self.as_float()) return std::fabs(*number);
  return make_integer(run.heap(), abs(to_integer(self)));
}

Value integer_of(Interpreter& run, double number, const Value& otherwise) {
  if (!std::isfinite(number)) return otherwise;
  return make_integer(run.heap(), Integer(std::trunc(number)));
}

Value to_int(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  const Value otherwise = bound.at(0, std::int64_t{0});
  require_defined(self);
  if (const Text* text = self.as_text()) {
    run.tick(1 + text->size());
    if (const auto integer = parse_integer(text->view(), static_cast<int>(bound.integer(1, 10))))
      return make_integer(run.heap(), *integer);
    const auto number = parse_float(text->view());
    return number ? integer_of(run, *number, otherwise) : otherwise;
  }
  if (const double* number = self.as_float()) return integer_of(run, *number, otherwise);
  if (is_integer(self)) return make_integer(run.heap(), to_integer(self));
  return otherwise;
}

Value to_float(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  const Value otherwise = bound.at(0, 0.0);
  require_defined(self);
  if (const Text* text = self.as_text()) {
    run.tick(1 + text->size());
    const auto number = parse_float(text->view());
    return number ? Value(*number) : otherwise;
  }
  return is_number(self) ? Value(to_double(self)) : otherwise;
}

double rounded(double number, std::int64_t precision) {
  if (!std::isfinite(number) || precision > 300) return number;
  if (precision >= 0) {  // the decimal digits decide the rounding, as in Python
    char text[700];
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), number);
    return parse_float(text).value_or(number);
  }
  if (precision < -300) return 0;
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(number / unit) * unit;
}

Value round_number(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  const std::int64_t precision = bound.integer(0, 0);
  const Text method = bound.text(1, "common");
  run.tick(4);
  require_defined(self);
  if (!is_number(self)) fail("'round' needs a number, and gets " + a_type(self));
  if (method.view() == "common") {
    if (is_integer(self) && precision >= 0) return make_integer(run.heap(), to_integer(self));
    if (is_integer(self)) return integer_of(run, rounded(to_double(self), precision), self);
    return rounded(*self.as_float(), precision);
  }
  if (method.view() != "ceil" && method.view() != "floor")
    fail("'round' knows the methods common, ceil and floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = to_double(self) * scale;
  return (method.view() == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value with_default(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  if (self.undefined() || (bound.flag(1, false) && !truthy(self))) return bound.at(0, Text());
  return self;
}

Value attribute_of(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("attr", arguments, {"name"}, 1);
  if (self.as_dict() != nullptr && find_method(self, bound.text(0).view()) == nullptr)
    return Undefined{};  // only attributes, not a dict's keys
  return run.attribute(self, bound.text(0).view());
}

// ---- JSON ----

Value to_json(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style = default_json_style();
  style.ascii = bound.flag(0, false);
  style.sorted = bound.flag(3, false);
  if (bound[1] != nullptr && !bound[1]->none()) {
    style.indented = true;
    style.item_separator = Text(",", Origin::kTemplate);
    if (const Text* by = bound[1]->as_text()) {
      style.indent = *by;
    } else {
      const std::int64_t width = bound.integer(1, 0);
      if (width > 1000) fail("'tojson' indents by over 1,000");
      style.indent =
          Text(std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, width)), ' '),
               Origin::kTemplate);
    }
  }
  if (bound[2] != nullptr && !bound[2]->none()) {
    const List* pair = iterate(run, *bound[2]);
    if (pair->items.size() != 2 || pair->items[0].as_text() == nullptr ||
        pair->items[1].as_text() == nullptr)
      fail("'tojson' needs two strings as separators");
    style.item_separator = *pair->items[0].as_text();
    style.key_separator = *pair->items[1].as_text();
  }
  TextBuilder out;
  write_json(run, self, style, out);
  return out.take();
}

Value from_json(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("from_json", arguments, {});
  require_defined(self);
  if (self.as_text() == nullptr) fail("'from_json' needs a string, and gets " + a_type(self));
  const Text& text = *self.as_text();
  return read_json(run, text.view(), text.has_user_bytes() ? Origin::kUser : Origin::kTemplate);
}

Value is_whole(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("is_integer", arguments, {});
  return std::isfinite(*self.as_float()) && std::trunc(*self.as_float()) == *self.as_float();
}

constexpr NativeFunction kFloatRows[] = {{"is_integer", is_whole}};

constexpr NativeFunction kRows[] = {
    {"abs", absolute},
    {"int", to_int},
    {"float", to_float},
    {"round", round_number},
    {"default", with_default},
    {"d", with_default},
    {"attr", attribute_of},
    {"tojson", to_json},
    {"from_json", from_json, Standing::kExtension},
    {"fromjson", from_json, Standing::kExtension},
};

}  // namespace

std::span<const NativeFunction> value_filters() {
  return kRows;
}

std::span<const NativeFunction> float_methods() {
  return kFloatRows;
}

}  // namespace bulkhead::jinja
