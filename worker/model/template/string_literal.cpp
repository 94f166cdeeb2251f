#include "worker/model/template/string_literal.hpp"

#include <charconv>

#include "worker/model/unicode.hpp"

namespace bulkhead::jinja {
namespace {

// The simple escapes: the letter after the backslash, and the character that it stands for.
constexpr std::string_view kLetters = "\\'\"abfnrtv";
constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";

// Returns how many hexadecimal digits follow \x, \u and \U.
std::size_t hex_digits(char letter) {
  switch (letter) {
    case 'x':
      return 2;
    case 'u':
      return 4;
    case 'U':
      return 8;
  }
  return 0;
}

}  // namespace

std::optional<std::string> unescaped(std::string_view literal) {
  std::string out;
  out.reserve(literal.size());
  char32_t high = 0;  // the first half of a pair whose second half must follow
  for (std::size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\') {
      out += literal[i];
      continue;
    }
    if (++i == literal.size()) return std::nullopt;
    const char c = literal[i];
    if (const std::size_t at = kLetters.find(c); at != kLetters.npos) {
      out += kMeanings[at];
    } else if (c == '\n') {
      continue;
    } else if (const std::size_t digits = hex_digits(c); digits > 0) {
      std::uint32_t code = 0;
      const char* from = literal.data() + i + 1;
      if (literal.size() - i - 1 < digits) return std::nullopt;
      const auto [end, error] = std::from_chars(from, from + digits, code, 16);
      if (error != std::errc() || end != from + digits || code > 0x10ffff) return std::nullopt;
      i += digits;
      if (code >= 0xd800 && code < 0xdc00) {
        high = code;
        continue;
      }
      if (code >= 0xdc00 && code < 0xe000) {
        if (high == 0) return std::nullopt;
        code = 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00);
      }
      high = 0;
      model::append_utf8(out, code);
    } else if (c >= '0' && c <= '7') {
      std::uint32_t code = 0;
      std::size_t used = 0;
      while (used < 3 && i < literal.size() && literal[i] >= '0' && literal[i] <= '7') {
        code = code * 8 + static_cast<std::uint32_t>(literal[i] - '0');
        ++i;
        ++used;
      }
      --i;
      model::append_utf8(out, code);
    } else if (c == 'N') {
      return std::nullopt;
    } else {
      out += '\\';
      out += c;
    }
  }
  if (high != 0) return std::nullopt;
  return out;
}

}  // namespace bulkhead::jinja
