// The compiler's part for notations other than JSON: it makes bare keys and texts without quotes.
#include <algorithm>

#include "worker/constrain/regex.hpp"
#include "worker/constrain/schema_compiler.hpp"

namespace bulkhead::constrain {

// The names of a Python call's arguments are words. Elsewhere a colon, a bracket or a comma ends a bare key, and the
// parser takes off the blanks at the key's ends.
bool SchemaCompiler::is_bare_key(std::string_view name) const {
  const auto fits = [this](unsigned char c) {
    const bool word =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    constexpr std::string_view kSyntax = ",:{}[]()<>|\"'\\=";
    return word || (!arguments_ && c > 0x20 && kSyntax.find(static_cast<char>(c)) == kSyntax.npos);
  };
  return !name.empty() && std::ranges::all_of(name, fits);
}

// Returns the automaton of keys that the schema does not name.
Result<DfaPtr> SchemaCompiler::bare_key_automaton() {
  return shared_.expression("[A-Za-z_][A-Za-z0-9_]{0,63}");
}

NodeId SchemaCompiler::text_node(const StringShape& shape, NodeId next) {
  Result<DfaPtr> contents = shape.contents;
  if (never_ != nullptr) contents = shared_.both(shape.contents, never_);
  if (contents.ok() && (shape.min > 0 || shape.max != kUnbounded)) {
    const Result<DfaPtr> bounded = texts_of_length(shape.min, shape.max);
    contents = bounded.ok() ? intersect(*contents, *bounded) : bounded;
  }
  if (contents.ok()) return grammar_.leaf(NodeKind::kText, *contents, next);
  strings_ = contents.error();
  return next;
}

// Makes the key of a member of a constant object.
NodeId SchemaCompiler::key_constant(const std::string& name, NodeId next) {
  if (notation_.form != Notation::Form::kMarked) {
    std::u32string text;
    if (!decode_utf8(name, text)) text.clear();
    return literal_string({text}, next);
  }
  // A key that can't stand bare is written as in JSON.
  return grammar_.bytes(is_bare_key(name) ? name : Json(name).dump(), next);
}

}  // namespace bulkhead::constrain
