// Integers beyond 64 bits. They are not in value.hpp because Boost's header takes long to compile.
#pragma once

#include <optional>
#include <string_view>

#include <boost/multiprecision/cpp_int.hpp>

#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

using Integer = boost::multiprecision::cpp_int;

// Smaller integers are an int64 in Value.
struct BigInteger : Object {
  Integer value;
};

constexpr unsigned kMaxIntegerBits = 14'000;  // Python prints no more than 4,300 digits

// Makes an int64 if it fits. Throws TemplateError (kLimit) beyond kMaxIntegerBits.
Value make_integer(Heap& heap, const Integer& value);
// Takes a bool or an integer.
Integer to_integer(const Value& integer);
// int(text, base); with base 0 a prefix gives the base.
std::optional<Integer> parse_integer(std::string_view text, int base = 10);

}  // namespace bulkhead::jinja
