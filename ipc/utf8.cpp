#include "ipc/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace bulkhead::ipc {

std::size_t utf8_character(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const auto tail = [&](std::size_t i, unsigned char low, unsigned char high) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned char low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : 0xBF;
    return tail(1, low, high) && tail(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned char low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xF4 ? 0x8F : 0xBF;
    return tail(1, low, high) && tail(2, 0x80, 0xBF) && tail(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    // Most text is ASCII: eight bytes at a time.
    while (text.size() - at >= 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes + at, 8);
      if ((word & 0x8080808080808080U) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const std::size_t length = utf8_character(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return at;
}

void repair_utf8(std::span<char> text) {
  std::size_t at = 0;
  for (;;) {
    at += valid_utf8_prefix(std::string_view(text.data() + at, text.size() - at));
    if (at == text.size()) return;
    text[at++] = '?';
  }
}

}  // namespace bulkhead::ipc
