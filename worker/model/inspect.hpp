// A model file in words, for `bulkhead inspect`.
#pragma once

#include <string>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model {

// Metadata, architecture, totals by tensor type and the tensors with type and shape: all of them,
// or one layer's worth and the number of those left out. Plain text, lines end in '\n'. What the
// file lacks to run as a model is said in the text, not as an error.
Result<std::string> describe(const GgufFile& file, bool all_tensors);

}  // namespace bulkhead::model
