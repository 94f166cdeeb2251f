// From what went wrong to an answer in OpenAI's shape with its HTTP status.
#pragma once

#include <string>

#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// What became of a request that the router took, or refused.
ApiError to_api_error(const Failure& failure);
// What the HTTP side refuses itself; from 500 on it is the server's doing.
ApiError plain_error(int status, std::string message, std::string code);
HttpResponse to_response(const ApiError& error);

}  // namespace bulkhead::orchestrator
