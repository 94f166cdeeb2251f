#include "worker/model/pre_tokenizer.hpp"

#include <algorithm>

#include "worker/model/merge.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::model {
namespace {

constexpr std::size_t kLongestWord = MergeChain::kMostBytes;

struct Char {
  char32_t code = 0;
  CharClass kind = CharClass::kOther;
  std::size_t bytes = 0;  // 0: past the end

  bool end() const { return bytes == 0; }
  bool letter() const { return !end() && kind == CharClass::kLetter; }
  bool number() const { return !end() && kind == CharClass::kNumber; }
  bool space() const { return !end() && kind == CharClass::kSpace; }
  bool newline() const { return !end() && (code == '\r' || code == '\n'); }
  // matches [^\s\p{L}\p{N}], and bytes that are not valid UTF-8
  bool symbol() const { return !end() && !letter() && !number() && !space(); }
};

Char char_at(std::string_view text, std::size_t at) {
  if (at >= text.size()) return {};
  const DecodedChar decoded = decode_char(text.substr(at));
  return {decoded.code, decoded.valid ? char_class(decoded.code) : CharClass::kOther,
          decoded.bytes};
}

template <typename Predicate>
std::size_t skip_while(std::string_view text, std::size_t at, Predicate&& predicate) {
  for (Char c = char_at(text, at); !c.end() && predicate(c); c = char_at(text, at))
    at += c.bytes;
  return at;
}

bool is_letter(const Char& c) {
  return c.letter();
}
bool is_number(const Char& c) {
  return c.number();
}
bool is_symbol(const Char& c) {
  return c.symbol();
}
bool is_newline(const Char& c) {
  return c.newline();
}

// Returns the length of 's|'t|'re|'ve|'m|'ll|'d at the start, or 0.
std::size_t contraction(std::string_view text, bool any_case) {
  if (text.empty() || text[0] != '\'') return 0;
  const auto letter = [&](std::size_t i) -> char {
    if (i >= text.size()) return '\0';
    return any_case && text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
  };
  const char a = letter(1);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  const char b = letter(2);
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// Matches \s+(?!\S)|\s+: all spaces at the end of the text, otherwise all but the last one, which belongs to the next
// word.
std::size_t spaces_word(std::string_view text) {
  std::size_t end = 0;
  std::size_t last = 0;
  for (Char c = char_at(text, 0); c.space(); c = char_at(text, end)) {
    last = end;
    end += c.bytes;
  }
  return end < text.size() && last > 0 ? last : end;
}

std::size_t gpt2_word(std::string_view text) {
  if (const std::size_t length = contraction(text, false)) return length;
  const std::size_t start = text[0] == ' ' ? 1 : 0;
  const Char first = char_at(text, start);
  if (first.letter()) return skip_while(text, start, is_letter);
  if (first.number()) return skip_while(text, start, is_number);
  if (first.symbol()) return skip_while(text, start, is_symbol);
  return spaces_word(text);
}

std::size_t llama3_word(std::string_view text, std::size_t most_digits) {
  if (const std::size_t length = contraction(text, true)) return length;
  const Char first = char_at(text, 0);
  if (!first.newline() && !first.number() &&
      (first.letter() || char_at(text, first.bytes).letter()))
    return skip_while(text, first.bytes, is_letter);
  if (first.number())
    return skip_while(
        text, 0, [left = most_digits](const Char& c) mutable { return c.number() && left-- > 0; });
  const std::size_t start = text[0] == ' ' ? 1 : 0;
  if (char_at(text, start).symbol())
    return skip_while(text, skip_while(text, start, is_symbol), is_newline);
  // Matches \s*[\r\n]+, up to the last line break of the run.
  std::size_t at = 0;
  std::size_t last_break = 0;
  for (Char c = char_at(text, 0); c.space(); c = char_at(text, at)) {
    at += c.bytes;
    if (c.newline()) last_break = at;
  }
  return last_break > 0 ? last_break : spaces_word(text);
}

bool default_symbol(const Char& c) {
  constexpr std::u32string_view kMore = U"$+<=>^~|";
  return !c.end() && (c.kind == CharClass::kPunctuation || kMore.find(c.code) != kMore.npos);
}

bool digits3(std::string_view text, std::size_t at) {
  const auto digit = [&](std::size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  return digit(at) && digit(at + 1) && digit(at + 2);
}

// Returns the length of a piece of `text` whose characters are all in the class, or are all outside it.
template <typename Predicate>
std::size_t class_run(std::string_view text, Predicate&& predicate) {
  const bool wanted = predicate(char_at(text, 0));
  return skip_while(text, 0, [&](const Char& c) { return predicate(c) == wanted; });
}

std::string_view take(std::string_view& text, std::size_t length) {
  const std::string_view head = text.substr(0, std::min(length, kLongestWord));
  text.remove_prefix(head.size());
  return head;
}

}  // namespace

WordSplitter::WordSplitter(const PreTokenizerInfo& info, std::string_view text)
    : rule_(info.rule), rest_(text) {
  if (info.expressions != nullptr) expressions_.emplace(*info.expressions, text);
}

std::string_view WordSplitter::next() {
  switch (rule_) {
    case PreTokenizer::kGpt2:
      return rest_.empty() ? rest_ : take(rest_, gpt2_word(rest_));
    case PreTokenizer::kLlama3:
      return rest_.empty() ? rest_ : take(rest_, llama3_word(rest_, 3));
    case PreTokenizer::kQwen2:
      return rest_.empty() ? rest_ : take(rest_, llama3_word(rest_, 1));
    case PreTokenizer::kDigitsThenGpt2:
      if (outer_.empty()) {
        if (rest_.empty()) return rest_;
        const Char first = char_at(rest_, 0);
        if (first.number()) return take(rest_, first.bytes);
        outer_ = take(rest_, class_run(rest_, is_number));
      }
      return take(outer_, gpt2_word(outer_));
    case PreTokenizer::kDefault:
      return next_default();
    case PreTokenizer::kExpressions:
      if (outer_.empty()) outer_ = expressions_->next();
      return take(outer_, outer_.size());
  }
  return {};
}

std::string_view WordSplitter::next_default() {
  if (inner_.empty()) {
    if (outer_.empty()) {
      if (rest_.empty()) return rest_;
      outer_ = take(rest_, class_run(rest_, default_symbol));
    }
    inner_ = take(outer_, gpt2_word(outer_));
  }
  if (!char_at(inner_, 0).number()) return take(inner_, class_run(inner_, is_number));
  // A run of numbers is cut into three ASCII digits at a time; other digits between them are not cut.
  if (digits3(inner_, 0)) return take(inner_, 3);
  std::size_t end = 0;
  for (Char c = char_at(inner_, 0); c.number() && !digits3(inner_, end); c = char_at(inner_, end))
    end += c.bytes;
  return take(inner_, end);
}

}  // namespace bulkhead::model
