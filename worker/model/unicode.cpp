#include "worker/model/unicode.hpp"

#include <memory>

namespace bulkhead::model {
namespace {

struct ClassRange {
  char32_t first;
  char32_t last;
  CharClass char_class;
};

constexpr ClassRange kRanges[] = {
#include "worker/model/unicode_ranges.inc"
};

constexpr char32_t kCodes = 0x110000;

// One byte for each code: the table takes 1.1 MB and is filled once. Otherwise every character of a prompt would need
// a search in 1,500 ranges.
const CharClass* class_table() {
  static const std::unique_ptr<const CharClass[]> table = [] {
    auto filled = std::make_unique<CharClass[]>(kCodes);
    for (const ClassRange& range : kRanges) {
      for (char32_t code = range.first; code <= range.last; ++code)
        filled[code] = range.char_class;
    }
    return std::unique_ptr<const CharClass[]>(std::move(filled));
  }();
  return table.get();
}

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

}  // namespace

CharClass char_class(char32_t code) {
  static const CharClass* const table = class_table();
  return code < kCodes ? table[code] : CharClass::kOther;
}

DecodedChar decode_char(std::string_view text) {
  constexpr char32_t kReplacement = 0xFFFD;
  const unsigned lead = byte_at(text, 0);
  if (lead < 0x80) return {lead, 1, true};
  const std::uint32_t length = lead >= 0xF8   ? 0
                               : lead >= 0xF0 ? 4
                               : lead >= 0xE0 ? 3
                               : lead >= 0xC0 ? 2
                                              : 0;
  if (length == 0 || length > text.size()) return {kReplacement, 1, false};
  char32_t code = lead & (0x7FU >> length);
  for (std::uint32_t i = 1; i < length; ++i) {
    const unsigned next = byte_at(text, i);
    if ((next & 0xC0U) != 0x80U) return {kReplacement, 1, false};
    code = (code << 6) | (next & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code >= kCodes) return {kReplacement, length, false};
  return {code, length, true};
}

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const DecodedChar next = decode_char(text);
    if (!next.valid || (next.code >= 0xD800 && next.code <= 0xDFFF)) return false;
    text.remove_prefix(next.bytes);
  }
  return true;
}

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
            static_cast<char>(0x80 | (code & 0x3F))};
  } else {
    out +=
        {static_cast<char>(0xF0 | (code >> 18)), static_cast<char>(0x80 | ((code >> 12) & 0x3F)),
         static_cast<char>(0x80 | ((code >> 6) & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  }
}

}  // namespace bulkhead::model
