// The escapes of a string literal, as in Python.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bulkhead::jinja {

// Returns nothing if an escape is incomplete or names no character (\N{...} is not supported). An unknown escape
// keeps its backslash.
std::optional<std::string> unescaped(std::string_view literal);

}  // namespace bulkhead::jinja
