// A model file's facts as JSON, for `bulkhead inspect --json`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::cli {

// `tensors`: with a list of all tensors. Sizes are bytes. Returns an error if the file is broken.
Result<nlohmann::json> inspect_json(const model::GgufFile& file, bool tensors);

}  // namespace bulkhead::cli
