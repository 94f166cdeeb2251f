// What Python does with values: truth, numbers, text of values, order, operators. Everything throws
// TemplateError where Python raises.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "worker/model/template/run.hpp"
#include "worker/model/template/syntax.hpp"
#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

// "str", "int", "dict" ...
std::string type_name(const Value& value);
// Throws if `value` is undefined, and says what it was to be: "'x' is undefined".
void require_defined(const Value& value);
std::string describe_undefined(const Undefined& undefined);

bool truthy(const Value& value);
bool is_number(const Value& value);   // bools too
bool is_integer(const Value& value);  // bools too
double to_double(const Value& number);
// For counts and indexes: fails for what is no integer or past 64 bits.
std::int64_t to_int64(const Value& integer, std::string_view what);

enum class Ordering : std::uint8_t { kLess, kEqual, kGreater, kUnordered };
Ordering compare_numbers(const Value& a, const Value& b);
// As < does: numbers, text, lists of such. Fails for others.
Ordering compare(Run& run, const Value& a, const Value& b);

std::string float_text(double value);  // repr(1e-07) and its like
std::optional<double> parse_float(std::string_view text);

// str() and repr().
Text str(Run& run, const Value& value);
void append_str(Run& run, const Value& value, TextBuilder& out);
void append_repr(Run& run, const Value& value, TextBuilder& out);

Value operate(Run& run, Operation operation, const Value& a, const Value& b);
Value negate(Run& run, const Value& value);
bool contains(Run& run, const Value& item, const Value& container);
// Fails for what has none.
std::int64_t length(const Value& value);
bool has_length(const Value& value);
// The items of anything that can be iterated; a generator is empty afterwards. The list itself where
// the value is one: don't change it.
List* iterate(Run& run, const Value& value);

// "%d of %s" % values, and "{} of {name}".format(...).
Value format_percent(Run& run, const Text& format, const Value& values);
struct Arguments;
Text format_braces(Run& run, const Text& format, const Arguments& arguments);

}  // namespace bulkhead::jinja
