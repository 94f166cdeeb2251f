// Integers past 64 bits. Apart from value.hpp, as Boost's header is dear to compile.
#pragma once

#include <optional>
#include <string_view>

#include <boost/multiprecision/cpp_int.hpp>

#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

using Integer = boost::multiprecision::cpp_int;

// A smaller one is an int64 in Value.
struct BigInteger : Object {
  Integer value;
};

constexpr unsigned kMaxIntegerBits = 14'000;  // Python prints no more than 4,300 digits

// An int64 where it fits. Throws TemplateError (kLimit) past kMaxIntegerBits.
Value make_integer(Heap& heap, const Integer& value);
// Of a bool or an integer.
Integer to_integer(const Value& integer);
// int(text, base); base 0: as a prefix says.
std::optional<Integer> parse_integer(std::string_view text, int base = 10);

}  // namespace bulkhead::jinja
