// Validates and repairs UTF-8 for the wire. Repairing never makes a text longer. Works on bytes only; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace bulkhead::ipc {

// Returns the number of bytes of the well-formed character at the start of `text`, which must not be empty (Unicode
// 15, table 3-7); 0 if there is none.
std::size_t utf8_character(std::string_view text);

// Returns the length of the longest valid prefix. It is text.size() if all of the text is well-formed UTF-8: no
// overlong forms, no surrogates, nothing above U+10FFFF, no truncated character at the end.
std::size_t valid_utf8_prefix(std::string_view text);

inline bool is_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

// Replaces each byte that belongs to no well-formed character with '?'.
void repair_utf8(std::span<char> text);

}  // namespace bulkhead::ipc
