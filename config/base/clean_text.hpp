// Cleans text that comes from clients, workers or files before it is printed to a terminal or a log. Cleaned text
// cannot start a new line and cannot control the terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bulkhead {

struct Character {
  std::size_t bytes = 1;
  bool valid = false;
  std::uint32_t code = 0;
};
// Returns the first character of UTF-8 text that is not empty, or a single byte that begins none (RFC 3629: no overlong
// forms, no surrogates).
Character first_character(std::string_view text);

// How to write a byte that is not plain text.
enum class Escapes {
  kText,  // as \x1b, \n; a tab stays as it is
  kJson,  // as \u001b, \n, \t, \", \\: the result may stand in a JSON string
};

// Replaces control characters and bytes that are not UTF-8 with escapes. Control characters are C0, DEL and C1;
// terminals obey C1, too (U+009B begins a sequence as ESC [ does). Never fails.
std::string cleaned(std::string_view text, Escapes escapes = Escapes::kText);

}  // namespace bulkhead
