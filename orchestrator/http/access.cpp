#include "orchestrator/http/access.hpp"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "config/base/text.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kMostHostTold = 100;  // bytes of a Host in its refusal

}  // namespace

bool constant_time_equal(std::string_view a, std::string_view b) {
  // Every byte of `a` (the caller's) is looked at, whatever `b` (the secret) is.
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    unsigned char other = b.empty() ? 0 : static_cast<unsigned char>(b[i % b.size()]);
    difference =
        static_cast<unsigned char>(difference | (static_cast<unsigned char>(a[i]) ^ other));
  }
  return difference == 0;
}

std::string origin_violation(const ApiOptions& options, const HttpRequest& request) {
  std::string host = lower(request.host);
  if (!request.origin.empty()) {
    std::string origin = lower(request.origin);
    if (host.empty() || (origin != "http://" + host && origin != "https://" + host)) {
      return "Requests from web pages of another origin are refused (Origin).";
    }
  }
  if (!options.loopback) return "";
  std::string name = host;
  std::size_t colon = host.rfind(':');
  bool number = true;
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    name = host.substr(0, colon);
    number =
        std::ranges::all_of(host.substr(colon + 1), [](char c) { return c >= '0' && c <= '9'; });
  }
  std::string bound = lower(options.bound_host);
  bool known_name = name == "localhost" || name == "127.0.0.1" || name == "[::1]" ||
                    name == bound || name == "[" + bound + "]";
  if (known_name && number && !name.empty()) return "";
  return fmt::format(
      "This server is not known by the name '{}' (Host); it answers to localhost, 127.0.0.1, "
      "[::1]{}.",
      request.host.substr(0, kMostHostTold),
      bound == "localhost" || bound == "127.0.0.1" || bound == "::1" || bound == "[::1]"
          ? ""
          : " and " + options.bound_host);
}

std::string key_violation(const ApiOptions& options, const HttpRequest& request) {
  if (options.api_key.empty()) return "";
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view given = request.authorization;
  const bool bearer =
      given.size() > kBearer.size() && lower(given.substr(0, kBearer.size())) == kBearer;
  if (bearer && constant_time_equal(given.substr(kBearer.size()), options.api_key)) return "";
  return "A valid API key is needed: Authorization: Bearer KEY.";
}

}  // namespace bulkhead::orchestrator
