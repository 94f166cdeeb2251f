// How parsing and rendering fail inside this library. It stops at Template's edge, where it becomes
// an Error.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace bulkhead::jinja {

class TemplateError : public std::exception {
 public:
  enum class Kind : std::uint8_t {
    kSyntax,  // the template is no template
    kRaised,  // it called raise_exception: the message is its author's
    kFailed,  // an operation failed, as it would in Python
    kLimit,   // steps, depth, memory
  };

  // `line` 0: where the interpreter is.
  TemplateError(Kind kind, std::string message, std::uint32_t line = 0)
      : kind_(kind), message_(std::move(message)), line_(line) {}

  Kind kind() const { return kind_; }
  std::uint32_t line() const { return line_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Kind kind_;
  std::string message_;
  std::uint32_t line_;
};

[[noreturn]] inline void fail(std::string message) {
  throw TemplateError(TemplateError::Kind::kFailed, std::move(message));
}

}  // namespace bulkhead::jinja
