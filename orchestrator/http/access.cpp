#include "orchestrator/http/access.hpp"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "config/base/text.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kMostHostTold = 100;  // most bytes of a Host header that the refusal repeats

}  // namespace

bool constant_time_equal(std::string_view a, std::string_view b) {
  // Looks at every byte of `a` (the caller's), whatever `b` (the secret) is.
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    unsigned char other = b.empty() ? 0 : static_cast<unsigned char>(b[i % b.size()]);
    difference =
        static_cast<unsigned char>(difference | (static_cast<unsigned char>(a[i]) ^ other));
  }
  return difference == 0;
}

bool is_allowed_page(const ApiOptions& options, const HttpRequest& request) {
  if (request.origin.empty()) return false;
  const std::string origin = lower(request.origin);
  return std::ranges::any_of(options.server.allowed_origins, [&](const std::string& allowed) {
    if (allowed == "*") return !options.server.api_key.empty();
    return origin == lower(allowed);
  });
}

std::string origin_violation(const ApiOptions& options, const HttpRequest& request) {
  const std::string host = lower(request.host);
  if (!request.origin.empty() && !is_allowed_page(options, request)) {
    const std::string origin = lower(request.origin);
    if (host.empty() || (origin != "http://" + host && origin != "https://" + host)) {
      return "Requests from web pages of another origin are refused (Origin); "
             "server.allowed_origins names the pages that may call.";
    }
  }
  if (!options.loopback) return "";
  std::string name = host;
  const std::size_t colon = host.rfind(':');
  bool number = true;
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    name = host.substr(0, colon);
    number =
        std::ranges::all_of(host.substr(colon + 1), [](char c) { return c >= '0' && c <= '9'; });
  }
  const std::string bound = lower(options.server.host);
  const bool own = name == "localhost" || name == "127.0.0.1" || name == "[::1]" || name == bound ||
                   name == "[" + bound + "]";
  const bool allowed =
      std::ranges::any_of(options.server.allowed_hosts, [&](const std::string& allowed_host) {
        return name == lower(allowed_host) || host == lower(allowed_host);
      });
  if ((own || allowed) && number && !name.empty()) return "";
  if (request.host.empty())
    return "The request does not say by which name it reached this server: send a Host field, such "
           "as localhost.";
  return fmt::format(
      "This server is not known by the name '{}' (Host); it answers to localhost, 127.0.0.1, "
      "[::1]{} and the names of server.allowed_hosts.",
      request.host.substr(0, kMostHostTold),
      bound == "localhost" || bound == "127.0.0.1" || bound == "::1" || bound == "[::1]"
          ? ""
          : ", " + options.server.host);
}

void add_cors_headers(const ApiOptions& options, const HttpRequest& request,
                      HttpResponse& response) {
  if (!is_allowed_page(options, request)) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", request.origin);
  response.headers.emplace_back("Access-Control-Expose-Headers",
                                "X-Request-Id, request-id, Retry-After, X-Bulkhead-Warning");
  response.headers.emplace_back("Vary", "Origin");
}

std::optional<HttpResponse> answer_preflight(const ApiOptions& options, const HttpRequest& request,
                                             const std::string& allow) {
  if (request.method != "OPTIONS" || request.cors_method.empty() ||
      !is_allowed_page(options, request))
    return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.headers.emplace_back("Allow", allow);
  response.headers.emplace_back("Access-Control-Allow-Methods", allow);
  if (!request.cors_headers.empty())
    response.headers.emplace_back("Access-Control-Allow-Headers", request.cors_headers);
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

std::string_view bearer_of(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view given = request.authorization;
  if (given.size() <= kBearer.size() || lower(given.substr(0, kBearer.size())) != kBearer)
    return "";
  return given.substr(kBearer.size());
}

std::string key_violation(const ApiOptions& options, const HttpRequest& request) {
  if (options.server.api_key.empty()) return "";
  if (constant_time_equal(bearer_of(request), options.server.api_key)) return "";
  return "A valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY.";
}

}  // namespace bulkhead::orchestrator
