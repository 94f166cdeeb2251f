#include "tools/cli/columns.hpp"

#include <locale.h>
#include <wchar.h>

#include <cstdint>

#include "config/base/clean_text.hpp"

namespace bulkhead::cli {

namespace {

// The C library knows the widths of all characters, but only within a locale that has them.
class CharacterWidths {
 public:
  std::size_t of(std::uint32_t code) const {
    if (code < 0x80) return 1;
    const locale_t before = ::uselocale(locale_);
    const int columns = ::wcwidth(static_cast<wchar_t>(code));
    ::uselocale(before);
    return columns < 0 ? 1 : static_cast<std::size_t>(columns);
  }

 private:
  // If there is no such locale, uselocale() changes nothing, and each character counts as one.
  const locale_t locale_ = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
};

}  // namespace

std::size_t columns_of(std::string_view text) {
  static const CharacterWidths widths;
  std::size_t columns = 0;
  while (!text.empty()) {
    const Character next = first_character(text);
    columns += next.valid ? widths.of(next.code) : 1;
    text.remove_prefix(next.bytes);
  }
  return columns;
}

std::string_view first_columns(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const std::size_t length = first_character(text.substr(bytes)).bytes;
    const std::size_t width = columns_of(text.substr(bytes, length));
    if (width > columns) break;
    columns -= width;
    bytes += length;
  }
  return text.substr(0, bytes);
}

}  // namespace bulkhead::cli
