// Checks where an HTTP request's head and body end: a head can be read in one way only, and a chunked body is the
// same however the network cuts it.
//
// Input: one byte that says how the rest is cut into pieces, then a request's bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "orchestrator/http/chunked_body.hpp"
#include "orchestrator/http/request_head.hpp"

using namespace bulkhead::orchestrator;
using bulkhead::ErrorCode;
using bulkhead::Result;

namespace {

constexpr std::size_t kMostBytes = 300;  // most bytes of a chunked body

void require(bool holds) {
  if (!holds) std::abort();
}

// Says whether no byte could be taken for the end of a line or of a name.
bool is_plain(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
}

void require_well_formed(const RequestHead& head) {
  require(!head.method.empty() && is_plain(head.method) &&
          head.method.find(' ') == std::string::npos);
  require(!head.target.empty() && is_plain(head.target) &&
          head.target.find(' ') == std::string::npos);
  require(head.minor_version == 0 || head.minor_version == 1);
  for (const auto& [name, value] : head.fields) {
    require(!name.empty() && is_plain(name) && name.find_first_of(" \t:") == std::string::npos);
    require(is_plain(value) && !value.starts_with(' ') && !value.ends_with(' '));
  }
  // At most one field says where the body ends.
  require(!(head.chunked && head.content_length.has_value()));
  require(head.count("Transfer-Encoding") == (head.chunked ? 1 : 0));
  require(head.count("Content-Length") == (head.content_length.has_value() ? 1 : 0));
  require(!head.chunked || head.minor_version == 1);
}

std::string written(const RequestHead& head) {
  std::string text =
      head.method + " " + head.target + " HTTP/1." + std::to_string(head.minor_version) + "\r\n";
  for (const auto& [name, value] : head.fields)
    text += name + ": " + value + "\r\n";
  return text + "\r\n";
}

// Returns the bytes of an accepted head with a chunked body; otherwise nothing.
std::optional<std::size_t> check_head(std::string_view bytes, std::size_t cut) {
  const Result<std::size_t> size = head_bytes(bytes);
  // The parser's verdict on a beginning is the verdict on the whole, or "not yet".
  const std::string_view beginning = bytes.substr(0, cut % (bytes.size() + 1));
  const Result<std::size_t> of_beginning = head_bytes(beginning);
  if (!of_beginning.ok()) require(!size.ok());
  if (of_beginning.ok() && *of_beginning > 0) require(size.ok() && *size == *of_beginning);
  if (!size.ok() || *size == 0) return std::nullopt;
  require(*size <= bytes.size());
  if (beginning.size() < *size) require(of_beginning.ok() && *of_beginning == 0);

  const Result<RequestHead> head = parse_head(bytes.substr(0, *size));
  if (!head.ok()) {
    require(!head.error().message().empty());
    return std::nullopt;
  }
  require_well_formed(*head);
  const std::string text = written(*head);
  const Result<std::size_t> again_size = head_bytes(text);
  require(again_size.ok() && *again_size == text.size());
  const Result<RequestHead> again = parse_head(text);
  require(again.ok() && written(*again) == text && again->chunked == head->chunked &&
          again->content_length == head->content_length);
  if (!head->chunked) return std::nullopt;
  return *size;
}

struct Outcome {
  std::string body;
  std::size_t taken = 0;
  bool done = false;
  std::optional<ErrorCode> error;
  bool operator==(const Outcome&) const = default;
};

// Reads as a connection does: bytes that the body did not take come again with the next piece.
Outcome read_in_pieces(std::string_view bytes, std::size_t piece) {
  Outcome outcome;
  ChunkedBody chunks;
  std::string waiting;
  for (std::size_t at = 0; at < bytes.size() && !chunks.done(); at += piece) {
    waiting += bytes.substr(at, piece);
    const Result<std::size_t> taken = chunks.take(waiting, outcome.body, kMostBytes);
    if (!taken.ok()) {
      outcome.error = taken.error().code();
      return outcome;
    }
    require(*taken <= waiting.size() && outcome.body.size() <= kMostBytes);
    outcome.taken += *taken;
    waiting.erase(0, *taken);
  }
  outcome.done = chunks.done();
  if (outcome.done) {
    const std::string before = outcome.body;
    const Result<std::size_t> more = chunks.take("1\r\nx\r\n", outcome.body, kMostBytes);
    require(more.ok() && *more == 0 && outcome.body == before);
  }
  return outcome;
}

void check_body(std::string_view bytes, std::size_t cut) {
  Outcome whole = read_in_pieces(bytes, std::max<std::size_t>(bytes.size(), 1));
  Outcome pieces = read_in_pieces(bytes, 1 + cut % 17);
  // The pieces decide how much of a body came before the error.
  if (whole.error.has_value() && pieces.error.has_value()) {
    require(whole.error == pieces.error);
    return;
  }
  require(whole == pieces);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t cut = data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::optional<std::size_t> head = check_head(bytes, cut * 5);
  check_body(bytes.substr(head.value_or(0)), cut);
  return 0;
}
