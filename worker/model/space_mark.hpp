// How vocabularies like SentencePiece's write texts: spaces as U+2581, bytes as "<0x0A>".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bulkhead::model {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// "<0x0A>" -> 10
inline std::optional<unsigned> byte_token_value(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'A' && c <= 'F')) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(digit ? c - '0' : c - 'A' + 10);
  }
  return value;
}

// Returns the text with spaces instead of the marks.
inline std::string without_marks(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    const bool space = text.substr(at).starts_with(kSpaceMark);
    plain += space ? ' ' : text[at];
    at += space ? kSpaceMark.size() : 1;
  }
  return plain;
}
inline std::string with_marks(std::string_view text) {
  std::string marked;
  marked.reserve(text.size() + text.size() / 4);
  for (const char c : text) {
    if (c == ' ')
      marked += kSpaceMark;
    else
      marked += c;
  }
  return marked;
}

}  // namespace bulkhead::model
