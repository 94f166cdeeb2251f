// Reads the syntax of ECMA-262's regular expressions into regex_ast.hpp.
#include <map>
#include <optional>
#include <string_view>

#include "worker/constrain/regex_ast.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::constrain {
namespace {

constexpr std::size_t kMostPatternBytes = 20'000;
constexpr int kMostGroupDepth = 100;
constexpr std::uint32_t kMostRepeat = 20'000;

CodeRanges of_classes(bool letters, bool numbers, bool punctuation) {
  CodeRanges out;
  for (char32_t code = 0; code <= kLastCodePoint; ++code) {
    const model::CharClass found = model::char_class(code);
    const bool in = (letters && found == model::CharClass::kLetter) ||
                    (numbers && found == model::CharClass::kNumber) ||
                    (punctuation && found == model::CharClass::kPunctuation);
    if (!in) continue;
    if (!out.empty() && out.back().second + 1 == code) {
      out.back().second = code;
    } else {
      out.emplace_back(code, code);
    }
  }
  return out;
}

CodeRanges join(CodeRanges a, const CodeRanges& b) {
  a.insert(a.end(), b.begin(), b.end());
  return normalise(std::move(a));
}

// An answer must be valid for both readings (regex.hpp), so each class has only the characters that both readings
// match, and its opposite has none that either reading matches.
CodeRanges class_escape(char letter) {
  static const CodeRanges letters_numbers = of_classes(true, true, false);
  static const CodeRanges numbers = of_classes(false, true, false);
  const CodeRanges digits = {{'0', '9'}};
  const CodeRanges words = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  const CodeRanges spaces = normalise({{9, 13},
                                       {' ', ' '},
                                       {0xA0, 0xA0},
                                       {0x1680, 0x1680},
                                       {0x2000, 0x200A},
                                       {0x2028, 0x2029},
                                       {0x202F, 0x202F},
                                       {0x205F, 0x205F},
                                       {0x3000, 0x3000}});
  switch (letter) {
    case 'd':
      return digits;
    case 'w':
      return words;
    case 's':
      return spaces;
    case 'D':
      return invert(join(numbers, digits));
    case 'W':
      return invert(join(letters_numbers, words));
    case 'S':
      return invert(join(spaces, {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}}));
  }
  return {};
}

// A negated class of \d and the like must leave out the characters that either reading matches.
CodeRanges wide_escape(char letter) {
  switch (letter) {
    case 'd':
      return invert(class_escape('D'));
    case 'w':
      return invert(class_escape('W'));
    case 's':
      return invert(class_escape('S'));
    case 'D':
      return invert(class_escape('d'));
    case 'W':
      return invert(class_escape('w'));
    case 'S':
      return invert(class_escape('s'));
  }
  return {};
}

class Parser {
 public:
  Parser(std::u32string text, Reading reading)
      : text_(std::move(text)), wide_(reading == Reading::kEither) {}

  Result<RegexNode> parse() {
    BULKHEAD_TRY(RegexNode out, choice(0));
    if (at_ < text_.size()) return wrong("a \")\" without its \"(\"");
    return out;
  }

 private:
  Error wrong(const std::string& what, ErrorCode code = ErrorCode::kInvalidArgument) const {
    return Error(code, what + " at character " + std::to_string(at_) + " of the expression");
  }
  Error unsupported(const std::string& what) const {
    return wrong(what + " can't be enforced", ErrorCode::kUnsupported);
  }

  bool more() const { return at_ < text_.size(); }
  bool looking_at(std::u32string_view wanted) const {
    return std::u32string_view(text_).substr(at_, wanted.size()) == wanted;
  }
  bool take(std::u32string_view wanted) {
    if (!looking_at(wanted)) return false;
    at_ += wanted.size();
    return true;
  }

  Result<RegexNode> choice(int depth) {
    if (depth > kMostGroupDepth) return wrong("groups nested too deep");
    RegexNode out;
    out.kind = RegexNode::Kind::kChoice;
    do {
      BULKHEAD_TRY(RegexNode part, sequence(depth));
      out.parts.push_back(std::move(part));
    } while (take(U"|"));
    if (out.parts.size() == 1) {
      RegexNode only = std::move(out.parts[0]);
      return only;
    }
    return out;
  }

  Result<RegexNode> sequence(int depth) {
    RegexNode out;
    while (more() && !looking_at(U"|") && !looking_at(U")")) {
      BULKHEAD_TRY(RegexNode part, atom(depth));
      BULKHEAD_TRY(RegexNode repeated, quantified(std::move(part)));
      out.parts.push_back(std::move(repeated));
    }
    return out;
  }

  Result<RegexNode> quantified(RegexNode part) {
    std::uint32_t min = 1, max = 1;
    if (take(U"*")) {
      min = 0, max = kUnbounded;
    } else if (take(U"+")) {
      min = 1, max = kUnbounded;
    } else if (take(U"?")) {
      min = 0, max = 1;
    } else {
      if (!looking_at(U"{")) return part;
      if (lacks_least()) return wrong("a {,n} (write {0,n}, or \\{,n} for the text)");
      if (!counts(min, max)) return part;
    }
    if (min > kMostRepeat || (max != kUnbounded && (max > kMostRepeat || max < min))) {
      return wrong("a repetition {m,n} with m over n, or over " + std::to_string(kMostRepeat));
    }
    const bool anchor = part.kind == RegexNode::Kind::kStart || part.kind == RegexNode::Kind::kEnd;
    if (anchor) return wrong("a repeated anchor");
    take(U"?");
    if (at_quantifier()) return wrong("a quantifier after a quantifier");
    RegexNode out;
    out.kind = RegexNode::Kind::kRepeat;
    out.min = min;
    out.max = max;
    out.parts.push_back(std::move(part));
    return out;
  }

  bool at_quantifier() {
    if (looking_at(U"*") || looking_at(U"+") || looking_at(U"?")) return true;
    const std::size_t begin = at_;
    std::uint32_t min = 0, max = 0;
    const bool found = looking_at(U"{") && counts(min, max);
    at_ = begin;
    return found;
  }

  // Says whether "{,n}" or "{,}" stands here. Python repeats by it, and a browser takes it for plain text.
  bool lacks_least() {
    const std::size_t begin = at_;
    bool found = take(U"{,");
    if (found) number();
    found = found && take(U"}");
    at_ = begin;
    return found;
  }

  // Reads "{m}", "{m,}" or "{m,n}". Anything else is plain text, as in a browser.
  bool counts(std::uint32_t& min, std::uint32_t& max) {
    const std::size_t begin = at_;
    ++at_;
    std::optional<std::uint32_t> first = number(), second;
    bool ok = first.has_value();
    if (ok && take(U",")) {
      second = number();
      min = *first, max = second.value_or(kUnbounded);
    } else if (ok) {
      min = max = *first;
    }
    ok = ok && take(U"}");
    if (!ok) at_ = begin;
    return ok;
  }

  std::optional<std::uint32_t> number() {
    std::optional<std::uint32_t> out;
    for (; more() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      out = std::min<std::uint32_t>(out.value_or(0) * 10 + (text_[at_] - '0'), 1'000'000);
    }
    return out;
  }

  static RegexNode chars(CodeRanges ranges) {
    RegexNode out;
    out.kind = RegexNode::Kind::kChars;
    out.ranges = std::move(ranges);
    return out;
  }

  Result<RegexNode> atom(int depth) {
    RegexNode out;
    if (take(U"^")) {
      out.kind = RegexNode::Kind::kStart;
      return out;
    }
    if (take(U"$")) {
      out.kind = RegexNode::Kind::kEnd;
      out.before_line_end = wide_;
      return out;
    }
    if (take(U".")) {
      if (wide_) return chars(invert({{'\n', '\n'}}));
      return chars(invert(normalise({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}})));
    }
    if (take(U"(")) return group(depth);
    if (take(U"[")) return char_class();
    if (at_quantifier()) return wrong("a quantifier with nothing before it");
    if (take(U"\\")) {
      BULKHEAD_TRY(CodeRanges ranges, escape(false, false));
      return chars(std::move(ranges));
    }
    const char32_t code = text_[at_++];
    return chars({{code, code}});
  }

  Result<RegexNode> group(int depth) {
    bool ahead = false, negative = false;
    if (take(U"?")) {
      if (take(U":")) {
      } else if (take(U"=")) {
        ahead = true;
      } else if (take(U"!")) {
        ahead = negative = true;
      } else if (looking_at(U"<=") || looking_at(U"<!")) {
        return unsupported("a lookbehind");
      } else if (take(U"<") || take(U"P<")) {
        while (more() && !looking_at(U">"))
          ++at_;
        if (!take(U">")) return wrong("a group's name without its end");
      } else {
        return unsupported("a group of this kind");
      }
    }
    if (negative) wide_ = !wide_;
    BULKHEAD_TRY(RegexNode inner, choice(depth + 1));
    if (negative) wide_ = !wide_;
    if (!take(U")")) return wrong("a \"(\" without its \")\"");
    if (!ahead) return inner;
    RegexNode out;
    out.kind = RegexNode::Kind::kAhead;
    out.negative = negative;
    out.parts.push_back(std::move(inner));
    return out;
  }

  Result<RegexNode> char_class() {
    const bool negative = take(U"^");
    if (looking_at(U"]")) {
      return wrong("a class that begins with \"]\" (write \\], or [\\s\\S] for any character)");
    }
    CodeRanges ranges;
    while (more() && !looking_at(U"]")) {
      BULKHEAD_TRY(CodeRanges low, class_member(negative));
      const bool range = looking_at(U"-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (range && is_one(low)) {
        ++at_;
        BULKHEAD_TRY(const CodeRanges high, class_member(negative));
        if (!is_one(high) || high[0].first < low[0].first) return wrong("a range that runs down");
        low[0].second = high[0].first;
      }
      ranges.insert(ranges.end(), low.begin(), low.end());
    }
    if (!take(U"]")) return wrong("a \"[\" without its \"]\"");
    ranges = normalise(std::move(ranges));
    return chars(negative ? invert(ranges) : ranges);
  }

  static bool is_one(const CodeRanges& ranges) {
    return ranges.size() == 1 && ranges[0].first == ranges[0].second;
  }

  Result<CodeRanges> class_member(bool negative) {
    if (!more()) return wrong("a \"[\" without its \"]\"");
    if (take(U"\\")) return escape(true, negative);
    const char32_t code = text_[at_++];
    return CodeRanges{{code, code}};
  }

  Result<CodeRanges> escape(bool in_class, bool negative) {
    if (!more()) return wrong("a \"\\\" at the end");
    const char32_t code = text_[at_++];
    static const std::map<char32_t, char32_t> controls = {
        {'t', '\t'}, {'n', '\n'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}};
    if (const auto found = controls.find(code); found != controls.end()) {
      return CodeRanges{{found->second, found->second}};
    }
    const auto is_one_of = [code](std::u32string_view letters) {
      return letters.find(code) != letters.npos;
    };
    if (is_one_of(U"dwsDWS")) {
      const char letter = static_cast<char>(code);
      return negative != wide_ ? wide_escape(letter) : class_escape(letter);
    }
    if (code == 'b' && in_class) return CodeRanges{{8, 8}};
    if (code == 'b') return unsupported("the word boundary \\b");
    if (code == 'B') return unsupported("\\B");
    if (is_one_of(U"AZzG")) return unsupported("an anchor that ECMA-262 does not have");
    if (is_one_of(U"pP")) return property(code == 'P');
    if (code == 'x') return hex(2, 2);
    if (code == 'u') return take(U"{") ? braced_hex() : unicode_escape();
    if (code == 'c') return control_letter();
    if (code == '0') return CodeRanges{{0, 0}};
    if (is_one_of(U"k123456789")) return unsupported("a backreference");
    if (is_letter(code)) return wrong("an escape that does not exist");
    return CodeRanges{{code, code}};
  }

  static bool is_letter(char32_t code) { return (code | 0x20) >= 'a' && (code | 0x20) <= 'z'; }

  Result<CodeRanges> braced_hex() {
    BULKHEAD_TRY(const CodeRanges out, hex(1, 6));
    if (!take(U"}")) return wrong("\\u{...} without its end");
    return out;
  }

  Result<CodeRanges> control_letter() {
    if (!more() || !is_letter(text_[at_])) return wrong("\\c without a letter");
    const char32_t control = text_[at_++] % 32;
    return CodeRanges{{control, control}};
  }

  Result<CodeRanges> hex(int least, int most) {
    char32_t value = 0;
    int digits = 0;
    for (; digits < most && more(); ++digits, ++at_) {
      const char32_t c = text_[at_];
      const char32_t lower = c | 0x20;
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        break;
      }
    }
    if (digits < least || value > kLastCodePoint) return wrong("a hexadecimal escape");
    return CodeRanges{{value, value}};
  }

  Result<CodeRanges> unicode_escape() {
    BULKHEAD_TRY(CodeRanges first, hex(4, 4));
    const char32_t high = first[0].first;
    if (high < 0xD800 || high > 0xDBFF || !take(U"\\u")) return first;
    BULKHEAD_TRY(const CodeRanges second, hex(4, 4));
    const char32_t low = second[0].first;
    if (low < 0xDC00 || low > 0xDFFF) return wrong("half a surrogate pair");
    const char32_t code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    return CodeRanges{{code, code}};
  }

  Result<CodeRanges> property(bool negative) {
    if (!take(U"{")) return wrong("\\p without its {name}");
    std::string name;
    while (more() && !looking_at(U"}"))
      name.push_back(static_cast<char>(text_[at_++]));
    if (!take(U"}")) return wrong("\\p without its {name}");
    const bool letters = name == "L" || name == "Letter";
    const bool numbers = name == "N" || name == "Number";
    const bool punctuation = name == "P" || name == "Punctuation";
    if (!letters && !numbers && !punctuation) return unsupported("\\p{" + name + "}");
    CodeRanges ranges = of_classes(letters, numbers, punctuation);
    return negative ? invert(ranges) : ranges;
  }

  std::u32string text_;
  std::size_t at_ = 0;
  bool wide_;  // the reading: see regex.hpp
};

}  // namespace

Result<RegexNode> parse_regex(std::string_view pattern, Reading reading) {
  std::u32string text;
  if (!decode_utf8(pattern, text)) {
    return Error(ErrorCode::kInvalidArgument, "the expression is not UTF-8");
  }
  if (pattern.size() > kMostPatternBytes) {
    return Error(ErrorCode::kResourceExhausted,
                 "the expression is longer than " + std::to_string(kMostPatternBytes) + " bytes");
  }
  return Parser(std::move(text), reading).parse();
}

}  // namespace bulkhead::constrain
