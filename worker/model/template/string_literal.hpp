// The escapes of a string literal, which are Python's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bulkhead::jinja {

// Nothing where an escape is cut short or names no character (\N{...} is not supported). An unknown
// escape keeps its backslash.
std::optional<std::string> unescaped(std::string_view literal);

}  // namespace bulkhead::jinja
