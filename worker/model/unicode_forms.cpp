#include "worker/model/unicode_forms.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>

namespace bulkhead::model {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};
struct BareRange {
  char32_t first;
  char32_t last;
  char32_t bare[3];  // ends at the first 0
};
struct LowerRange {
  char32_t first;
  char32_t last;
  std::int32_t offset;
};

#include "worker/model/unicode_forms.inc"

constexpr char32_t kCodeCount = 0x110000;

// Hangul syllables decompose by arithmetic: 19 leading consonants, 21 vowels, and 27 trailing consonants or none.
constexpr char32_t kFirstSyllable = 0xAC00, kLastSyllable = 0xD7A3;
constexpr char32_t kFirstLeading = 0x1100, kFirstVowel = 0x1161, kBeforeTrailing = 0x11A7;
constexpr char32_t kVowels = 21, kTrailings = 28;

// What the tables above have of a code. Most codes have nothing, and need no search.
enum FormBits : std::uint8_t { kIsControl = 1, kHasBareForm = 2, kHasLowerForm = 4 };

const std::uint8_t* form_bits() {
  static const std::unique_ptr<const std::uint8_t[]> table = [] {
    auto filled = std::make_unique<std::uint8_t[]>(kCodeCount);
    const auto mark = [&filled](const auto& ranges, std::uint8_t bit) {
      for (const auto& range : ranges) {
        for (char32_t code = range.first; code <= range.last; ++code)
          filled[code] |= bit;
      }
    };
    mark(kControlRanges, kIsControl);
    mark(kBareRanges, kHasBareForm);
    mark(kLowerRanges, kHasLowerForm);
    return std::unique_ptr<const std::uint8_t[]>(std::move(filled));
  }();
  return table.get();
}

bool has_form(char32_t code, std::uint8_t bit) {
  static const std::uint8_t* const bits = form_bits();
  return code < kCodeCount && (bits[code] & bit) != 0;
}

// The code must be in one of the ranges.
template <typename Range>
const Range& range_of(std::span<const Range> ranges, char32_t code) {
  return *std::ranges::lower_bound(ranges, code, {}, &Range::last);
}

}  // namespace

bool is_control(char32_t code) {
  return has_form(code, kIsControl);
}

void append_without_accents(std::u32string& out, char32_t code) {
  if (code >= kFirstSyllable && code <= kLastSyllable) {
    const char32_t syllable = code - kFirstSyllable;
    out.push_back(kFirstLeading + syllable / kTrailings / kVowels);
    out.push_back(kFirstVowel + syllable / kTrailings % kVowels);
    if (syllable % kTrailings != 0) out.push_back(kBeforeTrailing + syllable % kTrailings);
    return;
  }
  if (!has_form(code, kHasBareForm)) {
    out += code;
    return;
  }
  for (const char32_t part : range_of<BareRange>(kBareRanges, code).bare) {
    if (part == 0) break;
    out += part;
  }
}

void append_lower_case(std::u32string& out, char32_t code) {
  // The one character whose lower case is two: an i, and the dot that its capital letter had.
  if (code == 0x130) {
    out += U"i\u0307";
    return;
  }
  if (has_form(code, kHasLowerForm))
    code += static_cast<char32_t>(range_of<LowerRange>(kLowerRanges, code).offset);
  out += code;
}

}  // namespace bulkhead::model
