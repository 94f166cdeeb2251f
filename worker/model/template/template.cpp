#include "worker/model/template/template.hpp"

#include <new>
#include <optional>

#include "worker/model/template/parser.hpp"

namespace bulkhead::jinja {
namespace {

constexpr std::size_t kParsingBytes = 32U << 20;
constexpr std::size_t kMemoryPerInputByte =
    24;  // because lists and texts of a few bytes take so much each

Error error_of(const TemplateError& error, std::uint32_t line) {
  const std::string where =
      "the chat template, line " + std::to_string(error.line() > 0 ? error.line() : line) + ": ";
  switch (error.kind()) {
    case TemplateError::Kind::kRaised:
      return Error(kRaisedCode, error.message());
    case TemplateError::Kind::kSyntax:
      return Error(ErrorCode::kInvalidArgument, where + error.message());
    case TemplateError::Kind::kFailed:
      return Error(ErrorCode::kUnsupported, where + error.message());
    case TemplateError::Kind::kLimit:
      return Error(ErrorCode::kResourceExhausted, where + error.message());
  }
  return Error(ErrorCode::kInternal, error.message());
}

// Runs `work` and returns what it throws as an Error. `line` is called only in that case. A std::bad_alloc is passed
// on to the caller: a template's own memory has a limit of its own, so the machine is out of memory. The request is
// not at fault, and a successor of this process can answer it.
template <typename Work, typename Line>
Status caught(const Work& work, const Line& line) {
  try {
    work();
    return {};
  } catch (const TemplateError& error) {
    return error_of(error, line());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, std::string("rendering the chat template: ") + error.what());
  }
}

}  // namespace

Result<Template> Template::parse(std::string_view source) {
  Template made;
  BULKHEAD_RETURN_IF_ERROR(caught(
      [&] {
        const MemoryScope memory(kParsingBytes);
        made.program_ = std::make_shared<const Program>(parse_program(source));
      },
      [] { return std::uint32_t{1}; }));
  return made;
}

Result<std::vector<Piece>> Template::render(const Environment& environment, std::size_t input_bytes,
                                            const std::function<void(Interpreter&)>& define,
                                            const Limits& limits) const {
  std::vector<Piece> pieces;
  std::optional<Interpreter> interpreter;
  BULKHEAD_RETURN_IF_ERROR(caught(
      [&] {
        const MemoryScope memory(limits.memory_bytes + kMemoryPerInputByte * input_bytes);
        interpreter.emplace(*program_, environment, limits);
        define(*interpreter);
        const Text text = interpreter->render();
        text.for_runs([&pieces](std::string_view run, Origin origin) {
          pieces.push_back({std::string(run), origin == Origin::kUser});
        });
      },
      [&] { return interpreter ? interpreter->line() : 1; }));
  return pieces;
}

}  // namespace bulkhead::jinja
