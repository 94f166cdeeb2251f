#include "orchestrator/http/errors.hpp"

#include <utility>

namespace bulkhead::orchestrator {

ApiError to_api_error(const Failure& failure) {
  ApiError error;
  error.message = failure.message;
  error.parameter = failure.parameter;
  auto as = [&error](int status, const char* type, const char* code, int retry_after_s = 0) {
    error.status = status;
    error.type = type;
    error.code = code;
    error.retry_after_s = retry_after_s;
  };
  switch (failure.kind) {
    case FailureKind::kInvalid:
      as(400, "invalid_request_error", "invalid_request");
      break;
    case FailureKind::kContextExceeded:
      as(400, "invalid_request_error", "context_length_exceeded");
      break;
    case FailureKind::kUnsupported:
      as(400, "invalid_request_error", "unsupported");
      break;
    case FailureKind::kUnknownModel:
      as(404, "invalid_request_error", "model_not_found");
      break;
    case FailureKind::kOverloaded:
      as(429, "rate_limit_error", "queue_full", 1);
      break;
    case FailureKind::kUnavailable:
      as(503, "server_error", "unavailable", 2);
      break;
    case FailureKind::kWorkerFailed:
      as(503, "server_error", "worker_failed", 10);
      break;
    case FailureKind::kTimeout:
      as(504, "server_error", "timeout");
      break;
    case FailureKind::kWorkerCrashed:
      as(500, "server_error", "worker_crashed");
      break;
    case FailureKind::kNotResumable:
      as(409, "server_error", "not_resumable");
      break;
    case FailureKind::kInternal:
      as(500, "server_error", "internal_error");
      break;
  }
  return error;
}

ApiError plain_error(int status, std::string message, std::string code) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.code = std::move(code);
  if (status >= 500) error.type = "server_error";
  return error;
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(error);
  if (error.retry_after_s > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace bulkhead::orchestrator
