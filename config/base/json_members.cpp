#include "config/base/json_members.hpp"

#include <string>

namespace bulkhead {
namespace {

// `at` is the index of a string's first quote. Returns the index of its last quote.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at;
}

// `at` is the index of a value's first byte. Returns the index of the first byte after it.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  int depth = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth-- == 0) return at;
    } else if (c == ',' && depth == 0) {
      return at;
    }
  }
  return text.size();
}

// Decodes a name. Callers look only for names of plain ASCII characters without quotes. Of all escapes only \u00xx can
// stand for such a character; this function writes a backslash for any other escape.
std::string unescaped(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '\\') {
      out += name[i];
      continue;
    }
    ++i;
    unsigned code = 0;
    if (i < name.size() && name[i] == 'u' && i + 4 < name.size()) {
      for (std::size_t digit = 1; digit <= 4; ++digit) {
        const char c = name[i + digit];
        code = code * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      }
      i += 4;
    }
    out += code > 0 && code < 0x80 ? static_cast<char>(code) : '\\';
  }
  return out;
}

}  // namespace

void find_json_members(std::string_view object, std::span<JsonMember> members) {
  std::size_t at = object.find('{');
  if (at == object.npos) return;
  for (++at; (at = object.find_first_of("\"}", at)) != object.npos && object[at] == '"';) {
    const std::size_t quote = end_of_string(object, at);
    if (quote >= object.size()) return;
    std::string_view name = object.substr(at + 1, quote - at - 1);
    std::string plain;
    if (name.find('\\') != name.npos) name = plain = unescaped(name);
    const std::size_t colon = object.find(':', quote);
    if (colon == object.npos) return;
    const std::size_t begin = object.find_first_not_of(" \t\r\n", colon + 1);
    if (begin == object.npos) return;
    at = end_of_value(object, begin);
    std::string_view value = object.substr(begin, at - begin);
    value = value.substr(0, value.find_last_not_of(" \t\r\n") + 1);
    for (JsonMember& member : members) {
      if (member.name == name) member.text = value;
    }
  }
}

}  // namespace bulkhead
