// Anthropic's Messages API: from a request's bytes to a checked chat, and from an answer's parts to content blocks
// and events. All functions are pure: they use no sockets and no workers.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "orchestrator/http/dialect.hpp"

namespace bulkhead::orchestrator {

// Parses POST /v1/messages, and the same fields for /v1/messages/count_tokens.
Parsed<GenerationRequest> parse_messages(std::string_view body);

std::unique_ptr<Dialect> messages_dialect(std::string_view body);
std::string counted_tokens_body(std::size_t tokens);
// Renders {"type": "error", "error": {"type", "message"}, "request_id"} with the error's status.
HttpResponse messages_refusal(const ApiError& error, std::string_view request_id);

}  // namespace bulkhead::orchestrator
