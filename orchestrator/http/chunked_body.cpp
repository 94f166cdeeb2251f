#include "orchestrator/http/chunked_body.hpp"

#include <algorithm>
#include <charconv>

#include "orchestrator/http/request_head.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kMostLineBytes = 4096;
constexpr std::size_t kMostExtraBytes = 16 * 1024;
constexpr std::size_t kMostSizeDigits = 15;

Error broken_chunk(std::string rule) {
  return Error(ErrorCode::kInvalidArgument, std::move(rule));
}

// A line without its CR LF. `complete` is false while the end has not come.
struct Line {
  std::string_view text;
  bool complete = false;
};
Result<Line> next_line(std::string_view bytes) {
  const std::size_t end = bytes.find_first_of(std::string_view("\r\n\0", 3));
  const std::size_t known = std::min(end, bytes.size());
  if (known > kMostLineBytes) return broken_chunk("a chunk's line is too long");
  if (end == std::string_view::npos) return Line{};
  if (bytes[end] != '\r') return broken_chunk("a chunk's line does not end with CR LF");
  if (end + 1 == bytes.size()) return Line{};
  if (bytes[end + 1] != '\n') return broken_chunk("a chunk's line has a CR without a LF");
  return Line{bytes.substr(0, end), true};
}

}  // namespace

Status ChunkedBody::take_size(std::string_view line) {
  const std::size_t digits = std::min(line.find(';'), line.size());
  const auto [end, failure] = std::from_chars(line.data(), line.data() + digits, left_, 16);
  const bool plain = digits > 0 && digits <= kMostSizeDigits && failure == std::errc() &&
                     end == line.data() + digits && line.front() != '-';
  if (!plain) return broken_chunk("a chunk's size is no hexadecimal number");
  const std::string_view extension = line.substr(digits);
  if (std::ranges::any_of(extension, [](char c) {
        return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F;
      }))
    return broken_chunk("a chunk's extension has a control character");
  line_bytes_ += extension.size();
  expects_ = left_ == 0 ? Expects::kTrailer : Expects::kData;
  return {};
}

Result<std::size_t> ChunkedBody::take(std::string_view bytes, std::string& body,
                                      std::size_t most_bytes) {
  std::size_t taken = 0;
  while (expects_ != Expects::kNothing && taken < bytes.size()) {
    const std::string_view rest = bytes.substr(taken);
    if (expects_ == Expects::kData) {
      const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(left_, rest.size()));
      body.append(rest.substr(0, piece));
      left_ -= piece;
      taken += piece;
      if (left_ == 0) expects_ = Expects::kDataEnd;
      continue;
    }
    if (expects_ == Expects::kDataEnd && rest.front() != '\r')
      return broken_chunk("a chunk is longer than its size");
    BULKHEAD_TRY(const Line line, next_line(rest));
    if (!line.complete) break;
    taken += line.text.size() + 2;
    if (expects_ == Expects::kSize) {
      BULKHEAD_RETURN_IF_ERROR(take_size(line.text));
      if (left_ > most_bytes - std::min(most_bytes, body.size()))
        return Error(ErrorCode::kResourceExhausted, "the body is too large");
    } else if (expects_ == Expects::kDataEnd) {
      expects_ = Expects::kSize;
    } else if (line.text.empty()) {
      expects_ = Expects::kNothing;
    } else {
      line_bytes_ += line.text.size();
      // Trailers are not used here, but they must be well formed.
      if (const auto field = parse_field(line.text); !field.ok()) return field.error();
    }
    if (line_bytes_ > kMostExtraBytes)
      return broken_chunk("its chunks have too many extensions or trailers");
  }
  return taken;
}

}  // namespace bulkhead::orchestrator
