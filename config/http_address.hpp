// The address of a plain HTTP server in a setting: http://HOST[:PORT][/PATH].
#pragma once

#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::config {

struct HttpAddress {
  std::string host;  // without the brackets of an IPv6 address
  std::string port = "80";
  std::string path;       // "/v1/traces"; empty: none was given
  std::string authority;  // host and port as they were written, for the field `Host`
};

// kInvalidArgument says what is wrong with `text`. https is refused, because the daemon has no TLS.
Result<HttpAddress> parse_http_address(std::string_view text);

}  // namespace bulkhead::config
