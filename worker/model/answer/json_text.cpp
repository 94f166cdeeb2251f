#include "worker/model/answer/json_text.hpp"

#include <charconv>

#include <nlohmann/json.hpp>

#include "worker/model/unicode.hpp"

namespace bulkhead::model::answer {

std::size_t JsonEnd::take(std::string_view text) {
  std::size_t at = 0;
  if (!started_ && !text.empty()) {
    started_ = true;
    const char c = text[at++];
    if (c == '{' || c == '[') {
      depth_ = 1;
    } else if (c == '"') {
      in_string_ = true;
    } else {
      bare_ = true;
    }
  }
  for (; at < text.size() && !done_; ++at) {
    const char c = text[at];
    if (bare_) {
      done_ = std::string_view(",:]}<`").find(c) != std::string_view::npos ||
              kBlanks.find(c) != std::string_view::npos;
      if (done_) return at;
    } else if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        done_ = depth_ == 0;
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      done_ = --depth_ == 0;
    }
  }
  return at;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

void append_escaped(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  for (const char c : text) {
    if (const std::size_t at = kEscaped.find(c); at != kEscaped.npos) {
      out += '\\';
      out += kLetters[at];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  append_escaped(out, text);
  return out += '"';
}

namespace {

// Returns the value of the four hexadecimal digits at the start of `text`, or -1.
std::int32_t hex4(std::string_view text) {
  if (text.size() < 4) return -1;
  std::uint32_t code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + 4, code, 16);
  return error == std::errc() && end == text.data() + 4 ? static_cast<std::int32_t>(code) : -1;
}

// Reads \uXXXX behind `at`, and the second half of a pair; moves `at` behind them.
bool unescape_code(std::string_view inside, std::size_t& at, std::string& out) {
  const std::int32_t first = hex4(inside.substr(at));
  if (first < 0) return false;
  at += 4;
  auto code = static_cast<char32_t>(first);
  if (code >= 0xD800 && code < 0xE000) {
    const std::int32_t second =
        inside.substr(at, 2) == "\\u" ? hex4(inside.substr(at + 2)) : std::int32_t{-1};
    if (code < 0xDC00 && second >= 0xDC00 && second < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (static_cast<char32_t>(second) - 0xDC00);
      at += 6;
    } else {
      code = 0xFFFD;
    }
  }
  append_utf8(out, code);
  return true;
}

}  // namespace

bool unescape(std::string_view inside, std::string& out) {
  for (std::size_t at = 0; at < inside.size();) {
    const char c = inside[at++];
    if (c != '\\') {
      out += c;
      continue;
    }
    if (at == inside.size()) return false;
    const char kind = inside[at++];
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (const std::size_t found = kNames.find(kind); found != std::string_view::npos) {
      out += kValues[found];
    } else if (kind != 'u' || !unescape_code(inside, at, out)) {
      return false;
    }
  }
  return true;
}

bool is_json(std::string_view text) {
  return nlohmann::json::accept(text.begin(), text.end());
}

bool is_json_object(std::string_view text) {
  text = trimmed(text);
  return !text.empty() && text[0] == '{' && is_json(text);
}

std::string typed_value(std::string_view text) {
  const std::string_view value = trimmed(text);
  if (value == "True") return "true";
  if (value == "False") return "false";
  if (value == "None") return "null";
  return is_json(value) ? std::string(value) : json_quoted(text);
}

std::string arguments_of(std::string_view value) {
  if (value == "null" || value == "\"\"") return {};
  std::string inside;
  const bool quoted = value.size() >= 2 && value.front() == '"' && value.back() == '"';
  if (quoted && unescape(value.substr(1, value.size() - 2), inside) && is_json_object(inside))
    return inside;
  return std::string(value);
}

}  // namespace bulkhead::model::answer
