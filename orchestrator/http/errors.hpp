// Turns failures into answers in OpenAI's shape. It has the one table from failures to HTTP, for all protocols.
#pragma once

#include <string>
#include <string_view>

#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

inline constexpr const char* kRequestError = "invalid_request_error";
inline constexpr const char* kServerError = "server_error";

// Types of errors in the Messages API.
namespace messages_type {
inline constexpr const char* kInvalid = "invalid_request_error";  // also any other status of 4xx
inline constexpr const char* kUnauthenticated = "authentication_error";
inline constexpr const char* kForbidden = "permission_error";
inline constexpr const char* kNotFound = "not_found_error";
inline constexpr const char* kTooLarge = "request_too_large";
inline constexpr const char* kTooMany = "rate_limit_error";
inline constexpr const char* kBusy = "overloaded_error";
inline constexpr const char* kTimedOut = "timeout_error";
inline constexpr const char* kApiError = "api_error";  // any other
}  // namespace messages_type

struct ErrorKind {
  int status;
  const char* type;
  const char* messages_type;  // its type in the Messages API
  const char* code;
  int retry_after_s = 0;  // 0: no Retry-After
};

// Errors that the HTTP side itself returns.
// clang-format off
inline constexpr ErrorKind kBadRequest{400, kRequestError, messages_type::kInvalid, "bad_request"};
inline constexpr ErrorKind kInvalidLastEventId{400, kRequestError, messages_type::kInvalid, "invalid_last_event_id"};
inline constexpr ErrorKind kInvalidApiKey{401, kRequestError, messages_type::kUnauthenticated, "invalid_api_key"};
inline constexpr ErrorKind kForbiddenOrigin{403, kRequestError, messages_type::kForbidden, "forbidden_origin"};
inline constexpr ErrorKind kNotAllowed{403, kRequestError, messages_type::kForbidden, "not_allowed"};
inline constexpr ErrorKind kUnknownUrl{404, kRequestError, messages_type::kNotFound, "unknown_url"};
inline constexpr ErrorKind kModelNotFound{404, kRequestError, messages_type::kNotFound, "model_not_found"};
inline constexpr ErrorKind kWorkerNotFound{404, kRequestError, messages_type::kNotFound, "worker_not_found"};
inline constexpr ErrorKind kRequestNotFound{404, kRequestError, messages_type::kNotFound, "request_not_found"};
inline constexpr ErrorKind kMethodNotAllowed{405, kRequestError, messages_type::kInvalid, "method_not_allowed"};
inline constexpr ErrorKind kWorkerNotReady{409, kRequestError, messages_type::kInvalid, "worker_not_ready"};
inline constexpr ErrorKind kModelTooLarge{409, kRequestError, messages_type::kInvalid, "model_too_large"};
inline constexpr ErrorKind kTakenOver{409, kRequestError, messages_type::kInvalid, "taken_over"};
inline constexpr ErrorKind kTooSlow{408, kRequestError, messages_type::kInvalid, "too_slow"};
inline constexpr ErrorKind kBodyTooLarge{413, kRequestError, messages_type::kTooLarge, "body_too_large"};
inline constexpr ErrorKind kUnsupportedEncoding{415, kRequestError, messages_type::kInvalid, "bad_request"};
inline constexpr ErrorKind kKeyLimit{429, "rate_limit_error", messages_type::kTooMany, "rate_limit_exceeded"};
inline constexpr ErrorKind kExpectationFailed{417, kRequestError, messages_type::kInvalid, "bad_request"};
inline constexpr ErrorKind kHeadersTooLarge{431, kRequestError, messages_type::kInvalid, "headers_too_large"};
inline constexpr ErrorKind kNotImplemented{501, kRequestError, messages_type::kApiError, "not_implemented"};
inline constexpr ErrorKind kJournalUnavailable{503, kServerError, messages_type::kBusy, "journal_unavailable", 5};
inline constexpr ErrorKind kStreamCatchingUp{503, kServerError, messages_type::kBusy, "stream_catching_up", 1};
inline constexpr ErrorKind kTooManyConnections{503, kServerError, messages_type::kBusy, "too_many_connections", 1};
inline constexpr ErrorKind kOutOfMemory{503, kServerError, messages_type::kBusy, "out_of_memory", 2};
// clang-format on

// Returns the kind of error for a failure of a request in the router.
const ErrorKind& error_kind(ipc::FailureCode code);

ApiError api_error(const ErrorKind& kind, std::string message, std::string parameter = "");
ApiError to_api_error(const Failure& failure);
// OpenAI's form has no place for the request's id.
HttpResponse to_response(const ApiError& error, std::string_view request_id = {});
// Renders a refusal in the form of a protocol, as to_response() does in OpenAI's form.
using RefusalForm = HttpResponse (*)(const ApiError& error, std::string_view request_id);
inline HttpResponse refusal(const ErrorKind& kind, std::string message) {
  return to_response(api_error(kind, std::move(message)));
}

}  // namespace bulkhead::orchestrator
