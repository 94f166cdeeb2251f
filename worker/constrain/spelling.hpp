// How a JSON string is spelled: its quotes, its escapes, UTF-8. It is a machine over bytes on top of a machine over
// code points. It accepts a byte only if some allowed code point can still be completed after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace bulkhead::constrain {

// How a string is written in a text.
enum class Quoting : std::uint8_t {
  kNone,    // each character stands for itself; no quotes
  kJson,    // between quotes, with JSON's escapes
  kPython,  // the same without `\/`, which Python reads as two characters
};

// The part of a character that has been read so far, packed into 32 bits: 4 bits kind, 4 bits bytes (or digits) still
// to come, 24 bits value.
using Spelling = std::uint32_t;

enum class Spelled : std::uint8_t {
  kBefore,     // the opening quote comes next
  kInside,     // between characters
  kUtf8,       // within a character; 3 more bits of the value hold its length
  kEscape,     // after a backslash
  kHex,        // within \uXXXX
  kPairSlash,  // after a high surrogate: "\" must follow,
  kPairU,      // then "u",
  kPairHex,    // then the low one
};

constexpr Spelling spelling(Spelled kind, std::uint32_t left = 0, std::uint32_t value = 0) {
  return static_cast<std::uint32_t>(kind) | left << 4 | value << 8;
}
constexpr Spelling kInside = spelling(Spelled::kInside);

// The effect of a byte.
struct Spell {
  enum class What : std::uint8_t { kReject, kPartial, kCharacter, kClosed };
  What what = What::kReject;
  Spelling next = 0;  // kPartial
  char32_t code = 0;  // kCharacter
};

// `allowed(low, high)` returns whether some code point of that range may come next.
template <class Allowed>
Spell spell(Spelling at, unsigned char byte, Quoting quoting, Allowed&& allowed);

namespace spelling_detail {

// The code points that are still possible for a UTF-8 character of `length` bytes.
template <class Allowed>
Spell utf8(std::uint32_t length, std::uint32_t left, std::uint32_t value, Allowed&& allowed) {
  if (left == 0) return {Spell::What::kCharacter, 0, value};
  char32_t low = value << (6 * left);
  char32_t high = low + (1U << (6 * left)) - 1;
  const char32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  const char32_t most = length == 2 ? 0x7FF : length == 3 ? 0xFFFF : 0x10FFFF;
  if (low < least) low = least;
  if (high > most) high = most;
  if (low > high) return {};
  // Some ranges contain the surrogates, which are not characters.
  bool any = false;
  if (high < 0xD800 || low > 0xDFFF) {
    any = allowed(low, high);
  } else {
    any = (low < 0xD800 && allowed(low, 0xD7FF)) || (high > 0xDFFF && allowed(0xE000, high));
  }
  if (!any) return {};
  return {Spell::What::kPartial, spelling(Spelled::kUtf8, left, value << 3 | length), 0};
}

template <class Allowed>
Spell first_byte(unsigned char byte, Allowed&& allowed) {
  if (byte < 0x80) return {Spell::What::kCharacter, 0, byte};
  if (byte >= 0xC2 && byte <= 0xDF) return utf8(2, 1, byte & 0x1F, allowed);
  if (byte >= 0xE0 && byte <= 0xEF) return utf8(3, 2, byte & 0x0F, allowed);
  if (byte >= 0xF0 && byte <= 0xF4) return utf8(4, 3, byte & 0x07, allowed);
  return {};
}

inline int hex_digit(unsigned char byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  const unsigned char lower = byte | 0x20;
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

template <class Allowed>
Spell escape(unsigned char byte, Allowed&& allowed) {
  if (byte == 'u') {
    if (!allowed(0, 0x10FFFF)) return {};
    return {Spell::What::kPartial, spelling(Spelled::kHex, 4), 0};
  }
  constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const std::size_t at = kEscapes.find(static_cast<char>(byte));
  if (at == kEscapes.npos) return {};
  return {Spell::What::kCharacter, 0, static_cast<unsigned char>(kMeanings[at])};
}

// All code points whose high surrogate is in [high_low, high_high].
template <class Allowed>
bool pair_allowed(std::uint32_t low, std::uint32_t high, Allowed&& allowed) {
  if (low < 0xD800) low = 0xD800;
  if (high > 0xDBFF) high = 0xDBFF;
  if (low > high) return false;
  return allowed(0x10000 + ((low - 0xD800) << 10), 0x10000 + ((high - 0xD800) << 10) + 0x3FF);
}

template <class Allowed>
Spell hex(std::uint32_t left, std::uint32_t value, unsigned char byte, Allowed&& allowed) {
  const int digit = hex_digit(byte);
  if (digit < 0) return {};
  value = value << 4 | static_cast<std::uint32_t>(digit);
  --left;
  const std::uint32_t low = value << (4 * left);
  const std::uint32_t high = low + (1U << (4 * left)) - 1;
  if (left == 0) {
    if (value >= 0xDC00 && value <= 0xDFFF) return {};
    if (value < 0xD800 || value > 0xDBFF) return {Spell::What::kCharacter, 0, value};
    if (!pair_allowed(value, value, allowed)) return {};
    return {Spell::What::kPartial, spelling(Spelled::kPairSlash, 0, value), 0};
  }
  bool any = pair_allowed(low, high, allowed);
  if (high < 0xD800 || low > 0xDFFF) {
    any = any || allowed(low, high);
  } else {
    any = any || (low < 0xD800 && allowed(low, 0xD7FF)) || (high > 0xDFFF && allowed(0xE000, high));
  }
  if (!any) return {};
  return {Spell::What::kPartial, spelling(Spelled::kHex, left, value), 0};
}

// `value`: the 10 bits of the high surrogate, then the known digits of the low one.
template <class Allowed>
Spell pair_hex(std::uint32_t left, std::uint32_t value, unsigned char byte, Allowed&& allowed) {
  const int digit = hex_digit(byte);
  if (digit < 0) return {};
  const std::uint32_t first = value & 0x3FF;
  const std::uint32_t second = (value >> 10) << 4 | static_cast<std::uint32_t>(digit);
  --left;
  std::uint32_t low = second << (4 * left);
  std::uint32_t high = low + (1U << (4 * left)) - 1;
  if (low < 0xDC00) low = 0xDC00;
  if (high > 0xDFFF) high = 0xDFFF;
  if (low > high) return {};
  const char32_t base = 0x10000 + (first << 10);
  if (!allowed(base + (low - 0xDC00), base + (high - 0xDC00))) return {};
  if (left == 0) return {Spell::What::kCharacter, 0, base + (low - 0xDC00)};
  return {Spell::What::kPartial, spelling(Spelled::kPairHex, left, second << 10 | first), 0};
}

}  // namespace spelling_detail

template <class Allowed>
Spell spell(Spelling at, unsigned char byte, Quoting quoting, Allowed&& allowed) {
  namespace d = spelling_detail;
  const std::uint32_t left = at >> 4 & 0xF;
  const std::uint32_t value = at >> 8;
  switch (static_cast<Spelled>(at & 0xF)) {
    case Spelled::kBefore:
      if (byte != '"') return {};
      return {Spell::What::kPartial, kInside, 0};
    case Spelled::kInside:
      if (quoting != Quoting::kNone) {
        if (byte == '"') return {Spell::What::kClosed, 0, 0};
        if (byte < 0x20) return {};
        if (byte == '\\') {
          if (!allowed(0, 0x10FFFF)) return {};
          return {Spell::What::kPartial, spelling(Spelled::kEscape), 0};
        }
      }
      return d::first_byte(byte, allowed);
    case Spelled::kUtf8:
      if ((byte & 0xC0) != 0x80) return {};
      return d::utf8(value & 7, left - 1, value >> 3 << 6 | (byte & 0x3F), allowed);
    case Spelled::kEscape:
      if (byte == '/' && quoting == Quoting::kPython) return {};
      return d::escape(byte, allowed);
    case Spelled::kHex:
      return d::hex(left, value, byte, allowed);
    case Spelled::kPairSlash:
      if (byte != '\\') return {};
      return {Spell::What::kPartial, spelling(Spelled::kPairU, 0, value), 0};
    case Spelled::kPairU:
      if (byte != 'u') return {};
      return {Spell::What::kPartial, spelling(Spelled::kPairHex, 4, value - 0xD800), 0};
    case Spelled::kPairHex:
      return d::pair_hex(left, value, byte, allowed);
  }
  return {};
}

}  // namespace bulkhead::constrain
