// OpenAI's Responses API: it turns a request's bytes into a checked chat, and an answer's parts into output items and
// events. A client sends the whole conversation with each request, but may name what the server has said by the ids of
// its items (stored_items.hpp). Besides these items the functions use no state, no sockets and no workers.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "orchestrator/http/dialect.hpp"

namespace bulkhead::orchestrator {

// Parses POST /v1/responses, and the same fields for /v1/responses/input_tokens.
Parsed<GenerationRequest> parse_responses(std::string_view body);

// `body` is the request, parts of which the answers repeat. Returns the name that the model gets for a
// tool of a namespace. Codex puts the tools of an MCP server into a namespace.
std::string name_in_namespace(std::string_view space, std::string_view name);
std::unique_ptr<Dialect> responses_dialect(std::string_view body);
// Renders how many tokens a request's prompt has: {"object": "response.input_tokens", "input_tokens": N}.
std::string input_tokens_body(std::size_t tokens);
HttpResponse responses_refusal(const ApiError& error, std::string_view request_id = {});

}  // namespace bulkhead::orchestrator
