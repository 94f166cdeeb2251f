#include "orchestrator/http/request_head.hpp"

#include <algorithm>
#include <charconv>

#include "config/base/text.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::size_t kMostLengthDigits = 18;  // numbers of this many digits are always below 2^63

Error broken(std::string rule) {
  return Error(ErrorCode::kInvalidArgument, std::move(rule));
}

// RFC 9110, 5.6.2.
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [kMarks](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

Status parse_first_line(std::string_view line, RequestHead& head) {
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  if (first == std::string_view::npos || first == second)
    return broken("the first line is not METHOD TARGET HTTP/1.1");
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!is_token(line.substr(0, first))) return broken("the method is no token");
  const bool odd = std::ranges::any_of(target, [](char c) { return is_control(c) || c == ' '; });
  if (target.empty() || odd)
    return broken("the target is empty, or has a space or a control character");
  if (version.size() != 8 || !version.starts_with("HTTP/") || version[6] != '.')
    return broken("the first line does not end with HTTP/1.1");
  if (version != "HTTP/1.0" && version != "HTTP/1.1")
    return Error(ErrorCode::kUnsupported, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  head.method = line.substr(0, first);
  head.target = target;
  head.minor_version = version.back() - '0';
  return {};
}

// Reads where the body ends. A head must say that in exactly one way.
Status parse_framing(RequestHead& head) {
  const std::size_t encodings = head.count("Transfer-Encoding");
  const std::size_t lengths = head.count("Content-Length");
  if (encodings > 0 && lengths > 0) return broken("it has Transfer-Encoding and Content-Length");
  if (encodings > 1 || lengths > 1)
    return broken("it has Transfer-Encoding or Content-Length more than once");
  if (encodings == 1) {
    if (head.minor_version == 0) return broken("HTTP/1.0 has no Transfer-Encoding");
    if (lower(head.field("Transfer-Encoding")) != "chunked")
      return broken("its Transfer-Encoding is not chunked alone");
    head.chunked = true;
  }
  if (lengths == 1) {
    const std::string_view digits = head.field("Content-Length");
    const bool plain = !digits.empty() && digits.size() <= kMostLengthDigits &&
                       std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
    if (!plain) return broken("its Content-Length is not a plain number");
    std::uint64_t length = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), length);
    head.content_length = length;
  }
  return {};
}

}  // namespace

std::string_view RequestHead::field(std::string_view name) const {
  const std::string wanted = lower(name);
  for (const auto& [each, value] : fields) {
    if (lower(each) == wanted) return value;
  }
  return {};
}

std::size_t RequestHead::count(std::string_view name) const {
  const std::string wanted = lower(name);
  return static_cast<std::size_t>(std::ranges::count_if(
      fields, [&wanted](const auto& each) { return lower(each.first) == wanted; }));
}

bool RequestHead::has_word(std::string_view name, std::string_view word) const {
  const std::string wanted = lower(name);
  for (const auto& [each, value] : fields) {
    if (lower(each) != wanted) continue;
    std::string_view rest = value;
    while (true) {
      const std::size_t comma = rest.find(',');
      if (lower(trimmed(rest.substr(0, comma))) == word) return true;
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  return false;
}

bool RequestHead::keep_alive() const {
  if (has_word("Connection", "close")) return false;
  return minor_version >= 1 || has_word("Connection", "keep-alive");
}

Result<std::size_t> head_bytes(std::string_view bytes) {
  std::size_t line = 0;
  while (line < bytes.size()) {
    const std::size_t end = bytes.find_first_of(std::string_view("\r\n\0", 3), line);
    if (end == std::string_view::npos) return std::size_t{0};
    if (bytes[end] != '\r') return broken("a line does not end with CR LF, or has a zero");
    if (end + 1 == bytes.size()) return std::size_t{0};
    if (bytes[end + 1] != '\n') return broken("a CR has no LF after it");
    if (end == line) {
      if (line == 0) return broken("it begins with an empty line");
      return end + 2;
    }
    line = end + 2;
  }
  return std::size_t{0};
}

Result<std::pair<std::string, std::string>> parse_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (line.starts_with(' ') || line.starts_with('\t'))
    return broken("a field continues on a second line, which is obsolete");
  if (colon == std::string_view::npos) return broken("a field has no colon");
  if (!is_token(line.substr(0, colon))) return broken("a field's name is no token");
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (std::ranges::any_of(value, [](char c) { return is_control(c) && c != '\t'; }))
    return broken("a field's value has a control character");
  return std::pair(std::string(line.substr(0, colon)), std::string(value));
}

Result<RequestHead> parse_head(std::string_view head) {
  RequestHead parsed;
  bool first = true;
  while (!head.empty()) {
    const std::size_t end = head.find(kLineEnd);
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end == std::string_view::npos ? head.size() : end + kLineEnd.size());
    if (line.empty()) break;
    if (std::exchange(first, false)) {
      BULKHEAD_RETURN_IF_ERROR(parse_first_line(line, parsed));
      continue;
    }
    BULKHEAD_TRY(auto field, parse_field(line));
    parsed.fields.push_back(std::move(field));
  }
  if (first) return broken("it is empty");
  BULKHEAD_RETURN_IF_ERROR(parse_framing(parsed));
  return parsed;
}

}  // namespace bulkhead::orchestrator
