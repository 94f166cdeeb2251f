#include "orchestrator/http/errors.hpp"

#include <array>
#include <utility>

namespace bulkhead::orchestrator {

namespace {

using ipc::FailureCode;

struct Row {
  FailureCode code;
  ErrorKind kind;
};
// clang-format off
constexpr std::array<Row, 12> kRows = {{
    {FailureCode::kInvalidRequest, {400, kRequestError, messages_type::kInvalid, "invalid_request"}},
    {FailureCode::kContextExceeded, {400, kRequestError, messages_type::kInvalid, "context_length_exceeded"}},
    {FailureCode::kUnsupported, {400, kRequestError, messages_type::kInvalid, "unsupported"}},
    {FailureCode::kResourceExhausted, {429, "rate_limit_error", messages_type::kTooMany, "queue_full", 1}},
    {FailureCode::kInternal, {500, kServerError, messages_type::kApiError, "internal_error"}},
    {FailureCode::kUnknownModel, kModelNotFound},
    {FailureCode::kUnavailable, {503, kServerError, messages_type::kBusy, "unavailable", 2}},
    {FailureCode::kWorkerFailed, {503, kServerError, messages_type::kBusy, "worker_failed", 10}},
    {FailureCode::kTimeout, {504, kServerError, messages_type::kTimedOut, "timeout"}},
    {FailureCode::kWorkerCrashed, {500, kServerError, messages_type::kApiError, "worker_crashed"}},
    {FailureCode::kNotResumable, {409, kServerError, messages_type::kApiError, "not_resumable"}},
    {FailureCode::kModelTooLarge, kModelTooLarge},
}};
// clang-format on
constexpr bool rows_are_the_codes() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].code) != i) return false;
  }
  return static_cast<std::size_t>(FailureCode::kModelTooLarge) + 1 == kRows.size();
}
static_assert(rows_are_the_codes(), "one row for each code, in its order");

}  // namespace

const ErrorKind& error_kind(FailureCode code) {
  return kRows[static_cast<std::size_t>(code)].kind;
}

ApiError api_error(const ErrorKind& kind, std::string message, std::string parameter) {
  ApiError error;
  error.status = kind.status;
  error.message = std::move(message);
  error.type = kind.type;
  error.messages_type = kind.messages_type;
  error.parameter = std::move(parameter);
  error.code = kind.code;
  error.retry_after_s = kind.retry_after_s;
  return error;
}

ApiError to_api_error(const Failure& failure) {
  return api_error(error_kind(failure.code), failure.message, failure.parameter);
}

HttpResponse to_response(const ApiError& error, std::string_view) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(error);
  if (error.retry_after_s > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace bulkhead::orchestrator
