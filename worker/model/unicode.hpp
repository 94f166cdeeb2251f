// What the tokenizers need from Unicode: decoding, and the classes that their splitting rules use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bulkhead::model {

// General categories L*, N* and P*, the White_Space property, and everything else.
enum class CharClass : std::uint8_t { kOther, kLetter, kNumber, kSpace, kPunctuation };
CharClass char_class(char32_t code);

struct DecodedChar {
  char32_t code = 0;
  std::uint32_t bytes = 1;  // never 0, never beyond the end of the text
  bool valid = true;        // false: code is U+FFFD
};
// Decodes the character at the start of `text`, which must not be empty. It looks only at the structure, as
// tokenizers do: a surrogate is a character of three bytes; an overlong form or a code beyond U+10FFFF is one invalid
// character; any other bad byte is one invalid character by itself.
DecodedChar decode_char(std::string_view text);

// Strict (RFC 3629): no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool valid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t code);

}  // namespace bulkhead::model
