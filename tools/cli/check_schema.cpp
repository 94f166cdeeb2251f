// `bulkhead check-schema`: says whether an answer that must follow this schema could be this text.

#include <cstdio>

#include "tools/cli/commands.hpp"
#include "worker/constrain/constraint.hpp"

namespace bulkhead::cli {
namespace {

constexpr int kRejected = 3;

Result<constrain::Compiled> compile(const CheckSchemaOptions& options) {
  if (options.regex) return constrain::compile_regex(*options.regex);
  BULKHEAD_TRY(const std::string text,
               read_file(options.grammar ? *options.grammar : *options.schema));
  if (options.grammar) return constrain::compile_gbnf(text);
  return constrain::compile_schema(
      text, options.lenient ? constrain::Strictness::kLenient : constrain::Strictness::kStrict);
}

}  // namespace

int run_check_schema(const CheckSchemaOptions& options) {
  const Result<constrain::Compiled> compiled = compile(options);
  if (!compiled.ok()) return fail(compiled.error());
  for (const std::string& warning : compiled->warnings) {
    std::fprintf(stderr, "not enforced: %s\n", warning.c_str());
  }
  const Result<std::string> text = read_stdin();
  if (!text.ok()) return fail(text.error());
  constrain::Checked checked = constrain::check_text(compiled->grammar, *text);
  if (!checked.passed && text->ends_with('\n') && checked.rejected_at + 1 == text->size()) {
    // A shell's echo adds a line end that is not a part of the answer.
    checked = constrain::check_text(compiled->grammar,
                                    std::string_view(*text).substr(0, text->size() - 1));
  }
  if (checked.passed) return 0;
  put("rejected at byte " + std::to_string(checked.rejected_at) + "\n");
  return kRejected;
}

}  // namespace bulkhead::cli
