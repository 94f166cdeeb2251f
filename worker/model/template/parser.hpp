// Parses tokens to a Program, with jinja2's grammar: what transformers' templates may use, and {% do %}.
#pragma once

#include <string_view>

#include "worker/model/template/syntax.hpp"

namespace bulkhead::jinja {

// The greatest nesting of expressions and of statements. The interpreter walks the tree recursively, so this also
// bounds the stack.
constexpr std::uint16_t kMaxExpressionDepth = 250;
constexpr int kMaxStatementDepth = 60;
constexpr std::size_t kMaxSourceBytes = 4U << 20;

// Throws TemplateError (kSyntax, kLimit) with the line.
Program parse_program(std::string_view source);

}  // namespace bulkhead::jinja
