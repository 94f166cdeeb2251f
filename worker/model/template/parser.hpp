// Parses tokens to a Program, with jinja2's grammar: what transformers' templates may use, and {% do %}.
#pragma once

#include <string_view>

#include "worker/model/template/syntax.hpp"

namespace bulkhead::jinja {

// The greatest nesting of expressions and of statements. The interpreter walks the tree recursively, so this also
// bounds the stack.
constexpr std::uint16_t kMaxExpressionDepth = 250;
constexpr int kMaxStatementDepth = 60;
// Tokens and the tree take up to 200 bytes for each byte of the source.
// The longest template of the fixtures has 17 kB.
constexpr std::size_t kMaxSourceBytes = 256U << 10;

// Throws TemplateError (kSyntax, kLimit) with the line.
Program parse_program(std::string_view source);

}  // namespace bulkhead::jinja
