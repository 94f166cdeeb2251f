// The head of an HTTP/1.x request, read strictly: what two programs could read in two ways is refused.
// A proxy in front of the daemon must never see another request than the daemon does (RFC 9112,
// sections 2.2, 5 and 6.3, each "may" of leniency not taken).
//
// Refused: an end of line that is not CRLF, a control character, white space before a colon or at a
// line's beginning (the obsolete folding), a name that is no token, more than one space in the first
// line, Content-Length other than digits once, Transfer-Encoding other than `chunked` once in
// HTTP/1.1, and both of these together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

struct RequestHead {
  std::string method, target;
  int minor_version = 1;  // of HTTP/1
  std::vector<std::pair<std::string, std::string>> fields;
  bool chunked = false;
  std::optional<std::uint64_t> content_length;

  // The first field of the name, in any case; empty when there is none.
  std::string_view field(std::string_view name) const;
  std::size_t count(std::string_view name) const;
  // Whether one of its comma-separated words is this, in any case.
  bool has_word(std::string_view name, std::string_view word) const;
  bool keep_alive() const;
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

// How many of the first bytes are the head, its empty line included; 0: it is not complete yet.
// kInvalidArgument as soon as an end of line is wrong.
Result<std::size_t> head_bytes(std::string_view bytes);
// Of a whole head. kInvalidArgument with the rule that it breaks; kUnsupported for another version
// of HTTP.
Result<RequestHead> parse_head(std::string_view head);

// "name: value" as a head and a chunked body's trailer have it.
Result<std::pair<std::string, std::string>> parse_field(std::string_view line);

}  // namespace bulkhead::orchestrator
