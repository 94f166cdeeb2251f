// A regular expression as it was written. The parser (regex_parse.cpp) makes it, and regex.cpp turns it into terms.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/constrain/regex.hpp"
#include "worker/constrain/term.hpp"

namespace bulkhead::constrain {

struct RegexNode {
  enum class Kind : std::uint8_t { kChars, kSequence, kChoice, kRepeat, kStart, kEnd, kAhead };
  Kind kind = Kind::kSequence;
  CodeRanges ranges;
  std::vector<RegexNode> parts;
  std::uint32_t min = 0, max = 0;
  bool negative = false;         // kAhead
  bool before_line_end = false;  // kEnd: also before a line end that ends the text
};

Result<RegexNode> parse_regex(std::string_view pattern, Reading reading);

}  // namespace bulkhead::constrain
