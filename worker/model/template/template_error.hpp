// The exception of parsing and rendering inside this library. Template catches it and turns it into an Error.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace bulkhead::jinja {

class TemplateError : public std::exception {
 public:
  enum class Kind : std::uint8_t {
    kSyntax,  // the source is not a valid template
    kRaised,  // the template called raise_exception; its author wrote the message
    kFailed,  // an operation failed, as it would in Python
    kLimit,   // a limit on steps, depth or memory
  };

  // With `line` 0 it gets the interpreter's current line.
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
