// A client's API key with its limits, as an entry of server.keys has it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::config {

struct AccessKey {
  std::string name;  // for the log and the metrics: letters, digits, '.', '_' and '-'
  std::string key;
  // 0 in any of these means no limit.
  std::uint32_t requests_per_minute = 0;
  std::uint32_t tokens_per_minute = 0;  // of prompts and answers together
  std::uint32_t streams = 0;            // requests in progress at a time
};

// Returns why no client can send this key in a field of its request's head; empty: it can be sent, or is empty.
std::string why_never_sent(std::string_view key);

// Parses "NAME KEY requests_per_minute=60 tokens_per_minute=20000 streams=4". Each limit is optional, and their order
// is free. The error does not contain the key.
Result<AccessKey> parse_access_key(std::string_view text);

}  // namespace bulkhead::config
