// UTF-8 as the wire needs it: is this text valid, and how to make it so without growing it. Looks
// at bytes only; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace bulkhead::ipc {

// Bytes of the well-formed character that `text`, which is not empty, begins with (Unicode 15, table
// 3-7); 0: none.
std::size_t utf8_character(std::string_view text);

// Length of the longest valid prefix: text.size() when all of it is well-formed UTF-8 (no overlong
// forms, no surrogates, nothing above U+10FFFF, no cut character at the end).
std::size_t valid_utf8_prefix(std::string_view text);

inline bool is_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

// Replaces each byte that belongs to no well-formed character by '?'.
void repair_utf8(std::span<char> text);

}  // namespace bulkhead::ipc
