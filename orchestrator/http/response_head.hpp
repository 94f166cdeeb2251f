// Writes the heads of answers in HTTP/1.1. Nothing here uses sockets.
#pragma once

#include <string>
#include <string_view>

#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

// Returns whether an answer with this status has a body: 204 and 304 have none.
bool may_have_body(int status);

// Returns the head of a whole answer, including its empty line. `extra`: more fields. `connection`: the Connection
// field including its line end, or nothing.
std::string response_head(const HttpResponse& response, const HeaderFields& extra,
                          std::string_view connection);
// Returns the head of a stream of events. `request_id`: the value of X-Request-Id; empty: the head
// has no such field.
std::string stream_head(std::string_view content_type, std::string_view request_id,
                        const HeaderFields& extra, bool chunked, std::string_view connection);

}  // namespace bulkhead::orchestrator
