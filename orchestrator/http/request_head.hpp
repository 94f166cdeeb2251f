// Reads the head of an HTTP/1.x request strictly: it refuses what two programs could read in two ways. A proxy in
// front of the daemon must never see another request than the daemon does. (RFC 9112, sections 2.2, 5 and 6.3; the
// daemon uses none of their permissions to be lenient.)
//
// It refuses: a line end that is not CRLF, a control character, white space before a colon or at a line's beginning
// (obsolete folding), a name that is not a token, more than one space in the first line, Content-Length other than
// digits given once, Transfer-Encoding other than `chunked` given once in HTTP/1.1, and both of these together.
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
  int minor_version = 1;  // HTTP/1.x
  std::vector<std::pair<std::string, std::string>> fields;
  bool chunked = false;
  std::optional<std::uint64_t> content_length;

  // Returns the first field with this name (in any case); empty if there is none.
  std::string_view field(std::string_view name) const;
  std::size_t count(std::string_view name) const;
  // Returns whether one of the field's comma-separated words is `word` (in any case).
  bool has_word(std::string_view name, std::string_view word) const;
  bool keep_alive() const;
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

// Returns how many of the first bytes are the head, including its empty line; 0: it is not complete yet.
// kInvalidArgument as soon as a line end is wrong.
Result<std::size_t> head_bytes(std::string_view bytes);
// Parses a whole head. kInvalidArgument names the rule that it breaks; kUnsupported for another version of HTTP.
Result<RequestHead> parse_head(std::string_view head);

// Parses "name: value" of a head or of a chunked body's trailer.
Result<std::pair<std::string, std::string>> parse_field(std::string_view line);

}  // namespace bulkhead::orchestrator
