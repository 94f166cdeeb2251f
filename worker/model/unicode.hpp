// What the tokenizers need to know of Unicode: decoding, and the classes that their splitting rules
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bulkhead::model {

// General categories L*, N* and P*, the White_Space property, and all the rest.
enum class CharClass : std::uint8_t { kOther, kLetter, kNumber, kSpace, kPunctuation };
CharClass char_class(char32_t code);

struct DecodedChar {
  char32_t code = 0;
  std::uint32_t bytes = 1;  // never 0, never past the end of the text
  bool valid = true;        // false: code is U+FFFD
};
// The character at the start of `text`, which is not empty. By structure alone, as tokenizers read:
// a surrogate is a character of three bytes; an overlong form or a code past U+10FFFF is one
// invalid character; any other bad byte is one by itself.
DecodedChar decode_char(std::string_view text);

// Strict (RFC 3629): no overlong forms, no surrogates, nothing past U+10FFFF.
bool valid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t code);

}  // namespace bulkhead::model
