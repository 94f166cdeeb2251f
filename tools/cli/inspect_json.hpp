// A model file's facts as JSON, for `bulkhead inspect --json`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::cli {

// `tensors`: include a list of all tensors. Sizes are in bytes. Returns an error if the file is broken.
Result<nlohmann::json> inspect_json(const model::GgufFile& file, bool tensors);

}  // namespace bulkhead::cli
