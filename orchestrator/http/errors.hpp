// From what went wrong to an answer in OpenAI's shape: the one table from failures to HTTP.
#pragma once

#include <string>

#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

inline constexpr const char* kRequestError = "invalid_request_error";
inline constexpr const char* kServerError = "server_error";

struct ErrorKind {
  int status;
  const char* type;
  const char* code;
  int retry_after_s = 0;  // 0: no Retry-After
};

// What the HTTP side refuses itself.
inline constexpr ErrorKind kBadRequest{400, kRequestError, "bad_request"};
inline constexpr ErrorKind kInvalidLastEventId{400, kRequestError, "invalid_last_event_id"};
inline constexpr ErrorKind kInvalidApiKey{401, kRequestError, "invalid_api_key"};
inline constexpr ErrorKind kForbiddenOrigin{403, kRequestError, "forbidden_origin"};
inline constexpr ErrorKind kNotAllowed{403, kRequestError, "not_allowed"};
inline constexpr ErrorKind kUnknownUrl{404, kRequestError, "unknown_url"};
inline constexpr ErrorKind kModelNotFound{404, kRequestError, "model_not_found"};
inline constexpr ErrorKind kWorkerNotFound{404, kRequestError, "worker_not_found"};
inline constexpr ErrorKind kRequestNotFound{404, kRequestError, "request_not_found"};
inline constexpr ErrorKind kMethodNotAllowed{405, kRequestError, "method_not_allowed"};
inline constexpr ErrorKind kWorkerNotReady{409, kRequestError, "worker_not_ready"};
inline constexpr ErrorKind kModelTooLarge{409, kRequestError, "model_too_large"};
inline constexpr ErrorKind kTakenOver{409, kRequestError, "taken_over"};
inline constexpr ErrorKind kTooSlow{408, kRequestError, "too_slow"};
inline constexpr ErrorKind kBodyTooLarge{413, kRequestError, "body_too_large"};
inline constexpr ErrorKind kUnsupportedEncoding{415, kRequestError, "bad_request"};
inline constexpr ErrorKind kKeyLimit{429, "rate_limit_error", "rate_limit_exceeded"};
inline constexpr ErrorKind kExpectationFailed{417, kRequestError, "bad_request"};
inline constexpr ErrorKind kHeadersTooLarge{431, kRequestError, "headers_too_large"};
inline constexpr ErrorKind kNotImplemented{501, kRequestError, "not_implemented"};
inline constexpr ErrorKind kJournalUnavailable{503, kServerError, "journal_unavailable", 5};
inline constexpr ErrorKind kStreamCatchingUp{503, kServerError, "stream_catching_up", 1};
inline constexpr ErrorKind kTooManyConnections{503, kServerError, "too_many_connections", 1};
inline constexpr ErrorKind kOutOfMemory{503, kServerError, "out_of_memory", 2};

// What became of a request that the router took, or refused.
const ErrorKind& error_kind(ipc::FailureCode code);

ApiError api_error(const ErrorKind& kind, std::string message, std::string parameter = "");
ApiError to_api_error(const Failure& failure);
HttpResponse to_response(const ApiError& error);
inline HttpResponse refusal(const ErrorKind& kind, std::string message) {
  return to_response(api_error(kind, std::move(message)));
}

}  // namespace bulkhead::orchestrator
