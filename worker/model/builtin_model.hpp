// The model inside the program: what "builtin" opens.
#pragma once

#include <cstddef>
#include <span>

namespace bulkhead::model {

// A whole GGUF file, 64-byte aligned, for the life of the process; empty when this build has none.
std::span<const std::byte> builtin_model();

}  // namespace bulkhead::model
