// Python's operations on values: truth, numbers, text of values, order, operators. They throw TemplateError where
// Python raises.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "worker/model/template/run.hpp"
#include "worker/model/template/syntax.hpp"
#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

// Returns "a string", "an int", "null" ...
std::string a_type(const Value& value);
// Throws if `value` is undefined; the message says what was missing: "'x' is undefined".
void require_defined(const Value& value);
std::string describe_undefined(const Undefined& undefined);

bool truthy(const Value& value);
bool is_number(const Value& value);   // bools too
bool is_integer(const Value& value);  // bools too
double to_double(const Value& number);
// For counts and indexes: fails if the value is no integer or does not fit 64 bits.
std::int64_t to_int64(const Value& integer, std::string_view what);

enum class Ordering : std::uint8_t { kLess, kEqual, kGreater, kUnordered };
Ordering compare_numbers(const Value& a, const Value& b);
// Compares like <: numbers, text, lists of such. Fails for others.
Ordering compare(Run& run, const Value& a, const Value& b);

std::string float_text(double value);  // Returns repr(1e-07) and the like.
std::optional<double> parse_float(std::string_view text);

// Return str() and repr().
Text str(Run& run, const Value& value);
void append_str(Run& run, const Value& value, TextBuilder& out);
void append_repr(Run& run, const Value& value, TextBuilder& out);

Value operate(Run& run, Operation operation, const Value& a, const Value& b);
Value negate(Run& run, const Value& value);
bool contains(Run& run, const Value& item, const Value& container);
// Fails for values without a length.
std::int64_t length(const Value& value);
bool has_length(const Value& value);
// Returns the items of anything that can be iterated; a generator is empty afterwards. If the value is a list, the
// list itself is returned: don't change it.
List* iterate(Run& run, const Value& value);

// "%d of %s" % values, and "{} of {name}".format(...).
Value format_percent(Run& run, const Text& format, const Value& values);
struct Arguments;
Text format_braces(Run& run, const Text& format, const Arguments& arguments);

}  // namespace bulkhead::jinja
