// The one error type. Every public function that can fail returns `Status` or `Result<T>`. The code that calls a
// third-party library catches the library's exceptions right there.
//
// A message is a sentence for a person: what was wrong, where (file, key, byte offset), what to do.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace bulkhead {

enum class ErrorCode {
  kInvalidArgument,    // the caller's input is wrong; the same call will fail again
  kNotFound,           // a file, key, model or device does not exist
  kUnsupported,        // understood, but not something this build can do
  kCorrupt,            // data breaks the rules of its format (model file, record)
  kResourceExhausted,  // memory, queue or descriptor limits
  kDeadlineExceeded,   // a bounded wait ended
  kUnavailable,        // the peer is gone or not ready; a later call may succeed
  kDeviceLost,         // the GPU or its driver gave up
  kInternal,           // a bug of ours, or a system call that should not fail
};

// "invalid argument", "not found", ...
const char* to_string(ErrorCode code);

class Error {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Returns the same error with the caller's context before it: "loading model.gguf: <message>".
  Error within(const std::string& context) const { return Error(code_, context + ": " + message_); }

 private:
  ErrorCode code_;
  std::string message_;
};

// Error from errno: "open /x/y: No such file or directory".
Error errno_error(ErrorCode code, const std::string& what, int error_number);

// A value or an Error. Dereferencing an error is a bug and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->checked(); }

  const Error& error() const {
    if (ok()) std::abort();
    return *std::get_if<1>(&state_);
  }

 private:
  T& checked() {
    if (!ok()) std::abort();
    return *std::get_if<0>(&state_);
  }

  std::variant<T, Error> state_;
};

// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    if (ok()) std::abort();
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace bulkhead

#define BULKHEAD_CONCAT_INNER(a, b) a##b
#define BULKHEAD_CONCAT(a, b) BULKHEAD_CONCAT_INNER(a, b)

// BULKHEAD_TRY(auto file, open_file(path));   returns the error from the enclosing function
#define BULKHEAD_TRY(declaration, expression) \
  BULKHEAD_TRY_INNER(BULKHEAD_CONCAT(bulkhead_result_, __LINE__), declaration, expression)
#define BULKHEAD_TRY_INNER(result, declaration, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return result.error();                  \
  declaration = *std::move(result)

// BULKHEAD_RETURN_IF_ERROR(write_all(fd, bytes));
#define BULKHEAD_RETURN_IF_ERROR(expression)                   \
  do {                                                         \
    auto bulkhead_status = (expression);                       \
    if (!bulkhead_status.ok()) return bulkhead_status.error(); \
  } while (0)
