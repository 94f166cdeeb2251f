// The part of llama.cpp's own API that its clients read: POST /completion, POST /infill and GET /props. Pure functions, but for
// the clock that answers read; no sockets, no workers.
#pragma once

#include <memory>
#include <string_view>

#include <nlohmann/json.hpp>

#include "orchestrator/http/dialect.hpp"

namespace bulkhead::orchestrator {

// Parses a completion; llama.cpp's defaults fill in what the request leaves out.
Parsed<GenerationRequest> parse_llama_completion(std::string_view body);
// The same of what stands between `input_prefix` and `input_suffix`.
Parsed<GenerationRequest> parse_llama_infill(std::string_view body);
std::unique_ptr<Dialect> llama_completion_dialect(std::string_view body);

// Answers GET /props with facts about the first model that is served.
nlohmann::json llama_props(const Router& router);

}  // namespace bulkhead::orchestrator
