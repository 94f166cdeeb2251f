// A parsed template, ready to render. Immutable and thread-safe; each rendering has its own state.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/template/interpreter.hpp"

namespace bulkhead::jinja {

// A stretch of rendered text. A special token's name counts as the token only in text that does not come from a user.
struct Piece {
  std::string text;
  bool from_user = false;
};

// How a rendering fails, by the Error's code: the message of raise_exception is kInvalidArgument and stands alone; a
// failed operation is kUnsupported, and a limit is kResourceExhausted, both with the template's line.
constexpr ErrorCode kRaisedCode = ErrorCode::kInvalidArgument;

class Template {
 public:
  // kInvalidArgument, with the line, if the source is not a template.
  static Result<Template> parse(std::string_view source);

  // `define` sets the variables, on the interpreter's own heap. `input_bytes` is the size of the input; the rendering
  // may use that much memory beyond the limit.
  Result<std::vector<Piece>> render(const Environment& environment, std::size_t input_bytes,
                                    const std::function<void(Interpreter&)>& define,
                                    const Limits& limits = {}) const;

 private:
  std::shared_ptr<const Program> program_;
};

}  // namespace bulkhead::jinja
