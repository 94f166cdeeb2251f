// Cuts a template's source into tokens, with jinja2's whitespace rules as transformers sets them: trim_blocks,
// lstrip_blocks, and one newline at the very end dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bulkhead::jinja {

enum class TokenKind : std::uint8_t {
  kData,           // text outside of {% %} and {{ }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,   // text: after decoding its escapes
  kInteger,  // text: as written, without underscores
  kFloat,
  kOperator,  // text: the operator
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::uint32_t line = 1;
  std::string text;
};

// Throws TemplateError (kSyntax). The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

}  // namespace bulkhead::jinja
