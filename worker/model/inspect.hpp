// Describes a model file in words, for `bulkhead inspect`.
#pragma once

#include <string>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model {

// Returns the metadata, the architecture, totals by tensor type, and the tensors with type and shape: all of them, or
// those of one layer and the number of the others. Plain text; each line ends with a line feed. If the file lacks
// something to run as a model, the text says so; that is not an error.
Result<std::string> describe(const GgufFile& file, bool all_tensors);

}  // namespace bulkhead::model
