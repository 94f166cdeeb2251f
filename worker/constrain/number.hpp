// The spellings of numbers within bounds, as an automaton over ASCII. Bounds are compared digit by
// digit, so 1000000007 costs ten states, not a million.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/base/error.hpp"
#include "worker/constrain/dfa.hpp"

namespace bulkhead::constrain {

// A decimal without exponent, exactly: no sign of zero, no zeros that say nothing.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  // kInvalidArgument for what isn't a number, kUnsupported for one of more than 400 digits.
  static Result<Decimal> of(const nlohmann::json& number);
  bool operator==(const Decimal&) const = default;
};
// Negative, zero, positive.
int compare(const Decimal& a, const Decimal& b);

struct NumberRange {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  bool integer = false;   // of integers, only
  bool fraction = false;  // of numbers that are no integers, only
  std::optional<Bound> low, high;
  std::vector<std::uint32_t> multiples;      // integers that divide it
  std::vector<std::uint32_t> not_multiples;  // integers that don't
};

// At most 32 digits before and after the point, where no bound allows more; exponents only where
// nothing bounds the number.
Result<DfaPtr> number_automaton(const NumberRange& range);

}  // namespace bulkhead::constrain
