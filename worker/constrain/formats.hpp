// The formats of JSON Schema's `format`: a row with an expression for each. No other file depends on
// them.
#pragma once

#include <optional>
#include <string_view>

namespace bulkhead::constrain {

struct Format {
  std::string_view name;
  // An expression that the whole string must match; empty: any string is valid (an annotation such as "password").
  std::string_view expression;
};

// Returns nullptr for an unknown format.
const Format* find_format(std::string_view name);

}  // namespace bulkhead::constrain
