// Operations on text that both filters and methods use.
#pragma once

#include <optional>
#include <string_view>

#include "worker/model/template/run.hpp"
#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

// Return the position of `sought` in `text`, as std::string_view's find() and rfind() do. They count as steps what
// they compare: where much of `sought` is found again and again, that is far more than the text has bytes.
std::size_t find_text(Run& run, std::string_view text, std::string_view sought,
                      std::size_t from = 0);
std::size_t rfind_text(Run& run, std::string_view text, std::string_view sought,
                       std::size_t from = std::string_view::npos);

// `count` < 0: replaces all.
Text replaced(Run& run, const Text& text, const Text& old, const Text& replacement,
              std::int64_t count);
Text escaped_html(Run& run, const Text& text);
Text capitalized(const Text& text);
Text padded(Run& run, const Text& text, std::int64_t width, const Text& fill,
            std::size_t left_share);
Text joined(Run& run, const Text& separator, const List& items);
// Returns lines without their ends, as str.splitlines() does.
List* split_lines(Run& run, const Text& text, bool keep_ends);
// How a line is broken.
struct LineWidth {
  std::size_t width = 0;  // characters, at least 1
  bool breaks_words = true;
  bool breaks_at_hyphens = true;
};
// Appends the line, broken as Python's textwrap does it, with `separator` between its parts.
void wrap_line(Run& run, const Text& line, const LineWidth& wanted, const Text& separator,
               TextBuilder& out);
// Returns the word with its first character in upper case if `first`, and the rest in lower case.
Text word_case(const Text& word);

}  // namespace bulkhead::jinja
