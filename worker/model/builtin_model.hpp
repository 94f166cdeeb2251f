// The model inside the program, which the path "builtin" opens.
#pragma once

#include <cstddef>
#include <span>

namespace bulkhead::model {

// Returns a whole GGUF file, 64-byte aligned, for the life of the process; empty if this build has none.
std::span<const std::byte> builtin_model();

}  // namespace bulkhead::model
