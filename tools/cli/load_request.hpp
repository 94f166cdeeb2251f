// What a load test requests from a server. Nothing here uses connections.
#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/cli/commands.hpp"

namespace bulkhead::cli {

// Makes the body of the request with this number: a streamed chat, or a completion (options.completions). The same
// seed and number make the same body, and no two bodies of a test have prompts that begin alike. Any thread.
nlohmann::json load_request(const LoadTestOptions& options, const std::string& model,
                            std::size_t number);

}  // namespace bulkhead::cli
