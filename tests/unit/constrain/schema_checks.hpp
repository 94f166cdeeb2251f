// Checks of one schema, for the tests of schemas.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "worker/constrain/constraint.hpp"

namespace bulkhead::constrain {

// Returns whether the schema, compiled strictly, lets the text through.
inline bool passes(const std::string& schema, const std::string& text) {
  const auto compiled = compile_schema(schema, Strictness::kStrict);
  if (!compiled.ok()) {
    ADD_FAILURE() << compiled.error().message();
    return false;
  }
  return check_text(compiled->grammar, text).passed;
}

// Returns the error with which the schema is refused; empty if it is not.
inline std::string refusal(const std::string& schema) {
  const auto compiled = compile_schema(schema, Strictness::kStrict);
  return compiled.ok() ? "" : compiled.error().message();
}

}  // namespace bulkhead::constrain
