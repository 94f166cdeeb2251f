// Values of a GGUF file's metadata: scalars as numbers, and the texts that `inspect` prints. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "worker/model/gguf_part.hpp"

namespace bulkhead::model {

// A scalar widened without loss. A bool counts as neither an integer nor a float.
using Number = std::variant<std::monostate, std::uint64_t, std::int64_t, double>;

// Returns the scalar of this type at an address; no number for strings, arrays and bools.
Number number_at(ValueType type, const std::byte* at);

// Returns "float32", or "array of string, 12 elements".
std::string type_text(const MetadataValue& value);
// Returns the value on one line, printable and shortened.
std::string value_text(const MetadataValue& value);

}  // namespace bulkhead::model
