// Breaks a line as Python's textwrap does, for the filter wordwrap.
#include <algorithm>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/interpreter.hpp"
#include "worker/model/template/text_tools.hpp"

namespace bulkhead::jinja {
namespace {

bool is_blank(char32_t c) {
  return (c >= '\t' && c <= '\r') || c == ' ';
}
bool is_letter(char32_t c) {
  return c == '_' || model::char_class(c) == model::CharClass::kLetter;
}
bool is_word(char32_t c) {
  return is_letter(c) || model::char_class(c) == model::CharClass::kNumber;
}
bool may_precede_dash(char32_t c) {
  return is_word(c) || (c < 0x80 && std::string_view("!\"'&.,?").find(static_cast<char>(c)) !=
                                        std::string_view::npos);
}

// A stretch of the line that no break falls into, unless it is longer than a line.
struct Chunk {
  Text text;
  std::size_t size = 0;  // characters
  bool blank = false;
};

// Splits a line into blanks, words, parts of hyphenated words and dashes (textwrap's wordsep_re).
class Splitter {
 public:
  Splitter(Run& run, const Text& line, bool at_hyphens) : line_(line), at_hyphens_(at_hyphens) {
    run.tick(scan_steps(line.size()) + line.size());
    for_chars(line.view(), [this](char32_t code, std::size_t at, std::size_t) {
      chars_.push_back(code);
      offsets_.push_back(at);
    });
    offsets_.push_back(line.size());
  }

  CountedVector<Chunk> split() const {
    CountedVector<Chunk> chunks;
    for (std::size_t from = 0; from < chars_.size();) {
      const std::size_t to = end_of(from);
      const Text text = line_.sub(offsets_[from], offsets_[to] - offsets_[from]);
      const bool blank = std::all_of(chars_.begin() + static_cast<std::ptrdiff_t>(from),
                                     chars_.begin() + static_cast<std::ptrdiff_t>(to), is_space);
      chunks.push_back({text, to - from, blank});
      from = to;
    }
    return chunks;
  }

 private:
  std::size_t end_of(std::size_t from) const {
    std::size_t to = from;
    if (is_blank(chars_[from])) {
      while (to < chars_.size() && is_blank(chars_[to]))
        ++to;
      return to;
    }
    if (const std::size_t dash = dash_at(from); dash > 0) return from + dash;
    for (to = from + 1; to < chars_.size() && !is_blank(chars_[to]); ++to) {
      if (hyphen_at(to)) return to + 1;
      if (dash_at(to) > 0) return to;
    }
    return to;
  }

  // Returns the size of a dash of several hyphens between words; 0: there is none.
  std::size_t dash_at(std::size_t at) const {
    if (!at_hyphens_ || at == 0 || chars_[at] != '-' || !may_precede_dash(chars_[at - 1])) return 0;
    std::size_t end = at;
    while (end < chars_.size() && chars_[end] == '-')
      ++end;
    return end - at >= 2 && end < chars_.size() && is_word(chars_[end]) ? end - at : 0;
  }

  bool letter_at(std::size_t at) const { return at < chars_.size() && is_letter(chars_[at]); }

  // Says whether a word may be broken after this character.
  bool hyphen_at(std::size_t at) const {
    if (!at_hyphens_ || chars_[at] != '-' || at < 2 || !letter_at(at - 1)) return false;
    const bool behind = letter_at(at - 2) || (at > 2 && chars_[at - 2] == '-' && letter_at(at - 3));
    const std::size_t second = at + 2 < chars_.size() && chars_[at + 2] == '-' ? at + 3 : at + 2;
    return behind && letter_at(at + 1) && letter_at(second);
  }

  const Text& line_;
  bool at_hyphens_;
  CountedVector<char32_t> chars_;
  CountedVector<std::size_t>
      offsets_;  // the byte at which each character begins, and the line's size
};

// Returns how many characters of a word that is longer than a line go into the `room` that is left.
std::size_t part_of(const Chunk& word, std::size_t room, bool at_hyphens) {
  if (!at_hyphens || word.size <= room) return room;
  const std::string_view begin = word.text.view().substr(0, char_offset(word.text, room));
  const std::size_t hyphen = begin.rfind('-');
  if (hyphen == begin.npos || begin.find_first_not_of('-') >= hyphen) return room;
  return char_count(word.text.sub(0, hyphen)) + 1;
}

}  // namespace

void wrap_line(Run& run, const Text& line, const LineWidth& wanted, const Text& separator,
               TextBuilder& out) {
  CountedVector<Chunk> chunks = Splitter(run, line, wanted.breaks_at_hyphens).split();
  bool first = true;
  for (std::size_t at = 0; at < chunks.size();) {
    run.tick(4);
    if (chunks[at].blank && !first) ++at;
    CountedVector<Text> shown;
    std::size_t size = 0;
    bool ends_blank = false;
    for (; at < chunks.size() && size + chunks[at].size <= wanted.width; ++at) {
      shown.push_back(chunks[at].text);
      size += chunks[at].size;
      ends_blank = chunks[at].blank;
    }
    if (at < chunks.size() && chunks[at].size > wanted.width) {
      Chunk& word = chunks[at];
      if (wanted.breaks_words) {
        const std::size_t part = part_of(word, wanted.width - size, wanted.breaks_at_hyphens);
        const std::size_t bytes = char_offset(word.text, part);
        shown.push_back(word.text.sub(0, bytes));
        ends_blank = word.blank || part == 0;  // then a blank before it stays, as in Python
        word = {word.text.sub(bytes), word.size - part, word.blank};
        run.tick(copy_steps(word.text.size()));
      } else if (shown.empty()) {
        shown.push_back(word.text);
        ends_blank = word.blank;
        ++at;
      }
    }
    if (ends_blank) shown.pop_back();
    if (shown.empty()) continue;
    if (!first) out.append(separator);
    first = false;
    for (const Text& text : shown)
      out.append(text);
  }
}

}  // namespace bulkhead::jinja
