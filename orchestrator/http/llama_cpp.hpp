// The part of llama.cpp's own API that its clients read: POST /completion and GET /props. Pure functions, but for
// the clock that answers read; no sockets, no workers.
#pragma once

#include <memory>
#include <string_view>

#include <nlohmann/json.hpp>

#include "orchestrator/http/dialect.hpp"

namespace bulkhead::orchestrator {

// A completion with llama.cpp's defaults where the request says nothing.
Parsed<GenerationRequest> parse_llama_completion(std::string_view body);
std::unique_ptr<Dialect> llama_completion_dialect(std::string_view body);

// The answer to GET /props: facts of the first model that is served.
nlohmann::json llama_props(const Router& router);

}  // namespace bulkhead::orchestrator
