// OpenAI's Responses API: it turns a request's bytes into a checked chat, and an answer's parts into output items and
// events. The server stores nothing: a client sends the whole conversation with each request. All functions are pure:
// they know no sockets and no workers.
#pragma once

#include <memory>
#include <string_view>

#include "orchestrator/http/dialect.hpp"

namespace bulkhead::orchestrator {

Parsed<GenerationRequest> parse_responses(std::string_view body);

// `body` is the request, parts of which the answers repeat.
std::unique_ptr<Dialect> responses_dialect(std::string_view body);
HttpResponse responses_refusal(const ApiError& error);

}  // namespace bulkhead::orchestrator
