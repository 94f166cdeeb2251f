#include "config/base/clean_text.hpp"

#include <algorithm>

namespace bulkhead {

Character first_character(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, lead};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
  if (length == 0 || lead > 0xF4 || text.size() < length) return {};
  std::uint32_t code = lead & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3FU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {length, true, code};
}

namespace {

void append_escape(std::string& out, std::uint32_t code, bool json) {
  constexpr char kHex[] = "0123456789abcdef";
  out += json ? "\\u00" : "\\x";
  out += kHex[code >> 4 & 15];
  out += kHex[code & 15];
}

}  // namespace

std::string cleaned(std::string_view text, Escapes escapes) {
  const bool json = escapes == Escapes::kJson;
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_character(text);
    const bool control = next.code < 0x20 || (next.code >= 0x7F && next.code < 0xA0);
    if (!next.valid) {
      append_escape(out, static_cast<unsigned char>(text.front()), json);
    } else if (next.code == '\n') {
      out += "\\n";
    } else if (next.code == '\t') {
      out += json ? "\\t" : "\t";
    } else if (control) {
      append_escape(out, next.code, json);
    } else {
      if (json && (next.code == '"' || next.code == '\\')) out += '\\';
      out += text.substr(0, next.bytes);
    }
    text.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace bulkhead
