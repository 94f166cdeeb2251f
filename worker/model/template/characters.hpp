// The characters of a Text: counting, cutting, kinds and cases as in Python's str methods.
//
// PCRE2 gives the kinds and simple cases of characters beyond ASCII; of the special cases only that of U+00DF (to
// "SS") is supported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "worker/model/template/run.hpp"
#include "worker/model/template/text.hpp"

namespace bulkhead::jinja {

std::size_t char_count(const Text& text);
// Returns the byte at which character `index` begins, or the text's size if there are fewer characters.
std::size_t char_offset(const Text& text, std::size_t index);
// Characters [from, to).
Text char_slice(const Text& text, std::size_t from, std::size_t to);

enum class CharKind : std::uint8_t {
  kLetter,
  kUpper,
  kLower,
  kTitle,
  kDecimal,
  kNumber,
  kUnprintable,
};
bool is_kind(char32_t code, CharKind kind);
bool is_space(char32_t code);  // str.isspace, and what strip() takes

enum class Case : std::uint8_t { kUpper, kLower };
std::string with_case(std::string_view text, Case to);
Text with_case(const Text& text, Case to);

enum class Side : std::uint8_t { kLeft, kRight, kBoth };
// Returns the text without the characters of `strip` (none given: blanks) at its ends.
Text stripped(const Text& text, Side side);
Text stripped(Run& run, const Text& text, Side side, std::string_view strip);

// Calls each(char32_t, std::size_t byte, std::size_t bytes).
template <typename Each>
void for_chars(std::string_view text, const Each& each);

}  // namespace bulkhead::jinja

#include "worker/model/unicode.hpp"

namespace bulkhead::jinja {

template <typename Each>
void for_chars(std::string_view text, const Each& each) {
  Run::tick_of_thread(text.size() / 8);
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x80) {
      each(static_cast<char32_t>(c), at, std::size_t{1});
      ++at;
      continue;
    }
    const model::DecodedChar decoded = model::decode_char(text.substr(at));
    each(decoded.code, at, static_cast<std::size_t>(decoded.bytes));
    at += decoded.bytes;
  }
}

}  // namespace bulkhead::jinja
