// Writes the heads of answers in HTTP/1.1. Nothing here uses sockets.
#pragma once

#include <string>
#include <string_view>

#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

// Returns whether an answer with this status has a body: 204 and 304 have none.
bool may_have_body(int status);

// Returns the head of a whole answer, including its empty line. `extra`: more fields.
// `last_fields`: the last ones, each with its line end.
std::string response_head(const HttpResponse& response, const HeaderFields& extra,
                          std::string_view last_fields);
// Returns the head of a stream of events.
std::string stream_head(std::string_view content_type, const HeaderFields& extra, bool chunked,
                        std::string_view last_fields);

}  // namespace bulkhead::orchestrator
