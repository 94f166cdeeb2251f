// The parts of llama.cpp's own API that its clients use: POST /completion, POST /infill and GET /props. These
// functions use no sockets and no workers; only the functions that make answers read the clock.
#pragma once

#include <memory>
#include <string_view>

#include <nlohmann/json.hpp>

#include "orchestrator/http/dialect.hpp"

namespace bulkhead::orchestrator {

// Parses a completion request, with llama.cpp's defaults for what the request leaves out.
Parsed<GenerationRequest> parse_llama_completion(std::string_view body);
// Parses a request for the text between `input_prefix` and `input_suffix`, with the same defaults.
Parsed<GenerationRequest> parse_llama_infill(std::string_view body);
// Renders a refusal of such a request.
HttpResponse infill_refusal(const ApiError& error, std::string_view request_id = {});
std::unique_ptr<Dialect> llama_completion_dialect(std::string_view body);

// Renders the answer to GET /props, with facts about the first model that the daemon serves.
nlohmann::json llama_props(const Router& router);

}  // namespace bulkhead::orchestrator
