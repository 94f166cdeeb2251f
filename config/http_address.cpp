#include "config/http_address.hpp"

#include <algorithm>

namespace bulkhead::config {

Result<HttpAddress> parse_http_address(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [text](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument,
                 "'" + std::string(text) + "' " + what + "; write it as http://127.0.0.1:4318");
  };
  if (!text.starts_with(kScheme)) return wrong("is no address that begins with http://");
  const bool plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain) return wrong("has characters that no address has");
  const std::string_view rest = text.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  HttpAddress address;
  address.authority = rest.substr(0, slash);
  address.path = rest.substr(slash) == "/" ? "" : rest.substr(slash);
  std::string_view host = address.authority;
  if (host.find_first_of("@?#") != std::string_view::npos) return wrong("names no host");
  const std::size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  if (bracket == std::string_view::npos) return wrong("lacks a ]");
  if (const std::size_t colon = host.find(':', bracket); colon != std::string_view::npos) {
    const std::string_view port = host.substr(colon + 1);
    const bool is_number = !port.empty() && port.size() <= 5 &&
                           port.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_number || std::stoi(std::string(port)) > 65535 || std::stoi(std::string(port)) == 0)
      return wrong("has no port from 1 to 65535");
    address.port = port;
    host = host.substr(0, colon);
  }
  if (bracket != 0) host = host.substr(1, bracket - 1);
  if (host.empty()) return wrong("names no host");
  address.host = host;
  return address;
}

}  // namespace bulkhead::config
