// The formats of JSON Schema's `format`, each one expression: a row, and nothing else knows them.
#pragma once

#include <optional>
#include <string_view>

namespace bulkhead::constrain {

struct Format {
  std::string_view name;
  // An expression that the whole string matches; empty: any string will do (an annotation such as
  // "password").
  std::string_view expression;
};

// nullptr for a format that isn't known.
const Format* find_format(std::string_view name);

}  // namespace bulkhead::constrain
