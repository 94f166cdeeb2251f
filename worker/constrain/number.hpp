// The automaton, over ASCII, of the spellings of numbers within bounds. It compares bounds digit by digit, so
// 1000000007 takes ten states and not a million.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/base/error.hpp"
#include "worker/constrain/dfa.hpp"

namespace bulkhead::constrain {

// An exact decimal number without an exponent, without a sign on zero and without superfluous zeros.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  // kInvalidArgument if it isn't a number, kUnsupported if it has more than 400 digits.
  static Result<Decimal> of(const nlohmann::json& number);
  bool operator==(const Decimal&) const = default;
};
// Returns a negative number, zero or a positive number.
int compare(const Decimal& a, const Decimal& b);

struct NumberRange {
  struct Bound {
    Decimal value;
    bool exclusive = false;
    bool operator==(const Bound&) const = default;
  };
  bool integer = false;   // only integers
  bool fraction = false;  // only numbers that are not integers
  std::optional<Bound> low, high;
  std::vector<std::uint32_t> multiples;      // integers that must divide the number
  std::vector<std::uint32_t> not_multiples;  // integers that must not divide the number
  bool operator==(const NumberRange&) const = default;
};

// Allows at most 32 digits before and after the point, unless a bound allows more, and exponents only if nothing
// bounds the number.
Result<DfaPtr> number_automaton(const NumberRange& range);

}  // namespace bulkhead::constrain
