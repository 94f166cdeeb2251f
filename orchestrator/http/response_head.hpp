// The heads of answers, as HTTP/1.1 writes them. Knows nothing of sockets.
#pragma once

#include <string>
#include <string_view>

#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

// Whether an answer of this status has a body: 204 and 304 have none.
bool may_have_body(int status);

// The head of a whole answer, its empty line included. `extra`: more fields. `connection`: the
// Connection field with its end of line, or nothing.
std::string response_head(const HttpResponse& response, const HeaderFields& extra,
                          std::string_view connection);
// The head of a stream of events. `request_id`: sent as X-Request-Id, where there is one.
std::string stream_head(std::string_view content_type, std::string_view request_id,
                        const HeaderFields& extra, bool chunked, std::string_view connection);

}  // namespace bulkhead::orchestrator
