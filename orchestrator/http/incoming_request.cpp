#include "orchestrator/http/incoming_request.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "orchestrator/http/access.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::chrono::seconds kWholeBody{60};
constexpr std::size_t kLeastBytesInWindow = 8 * 1024;

// Returns the path of a target, percent-decoded; nothing if an escape is broken.
std::optional<std::string> decode_path(std::string_view target) {
  if (target.starts_with("http://") ||
      target.starts_with("https://")) {  // absolute form, as proxies send it
    std::size_t slash = target.find('/', target.find("//") + 2);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path += target[i];
      continue;
    }
    if (i + 2 >= target.size()) return std::nullopt;
    int high = digit(target[i + 1]), low = digit(target[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    path += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return path;
}

}  // namespace

std::optional<HttpRequest> request_of(const RequestHead& head) {
  HttpRequest request;
  request.method = head.method;
  request.http_1_1 = head.minor_version >= 1;
  request.has_body = head.has_body();
  request.hosts = static_cast<int>(head.count("Host"));
  request.host = head.field("Host");
  request.origin = head.field("Origin");
  request.authorization = head.field("Authorization");
  // Anthropic's clients send their key in this field.
  // A proxy's own Authorization (Basic) may pass through beside it.
  if (const auto key = head.field("X-Api-Key"); bearer_of(request).empty() && !key.empty())
    request.authorization = "Bearer " + std::string(key);
  request.last_event_id = head.field("Last-Event-ID");
  request.if_none_match = head.field("If-None-Match");
  request.trace = trace_of(head.field("traceparent"));
  request.cors_method = head.field("Access-Control-Request-Method");
  request.cors_headers = head.field("Access-Control-Request-Headers");
  std::optional<std::string> path = decode_path(head.target);
  if (!path) return std::nullopt;
  request.path = *std::move(path);
  return request;
}

std::string without_slips(std::string_view path) {
  std::string plain;
  for (const char c : path) {
    if (c != '/' || !plain.ends_with('/')) plain += c;
  }
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  return plain;
}

std::size_t shared_parts(std::string_view a, std::string_view b) {
  std::size_t parts = 0;
  for (std::size_t i = 1; i <= a.size() && i <= b.size(); ++i) {
    const bool ends = (i == a.size() || a[i] == '/') && (i == b.size() || b[i] == '/');
    if (ends && i > 1) ++parts;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return parts;
}

bool is_for_operators(std::string_view path) {
  constexpr std::array<std::string_view, 4> kPaths = {"/health", "/livez", "/readyz", "/metrics"};
  return std::ranges::find(kPaths, path) != kPaths.end() || path == "/v1/workers" ||
         path.starts_with("/v1/workers/");
}

IncomingBody::IncomingBody(const RequestHead& head, Clock::time_point now)
    : left_(head.content_length.value_or(0)), deadline_(now + kWholeBody) {
  if (head.chunked) chunks_.emplace();
}

Result<std::size_t> IncomingBody::take(std::string_view bytes, std::string& body,
                                       std::size_t most_bytes) {
  if (chunks_.has_value()) return chunks_->take(bytes, body, most_bytes);
  const auto taken = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
  body.append(bytes.substr(0, taken));
  left_ -= taken;
  return taken;
}

bool IncomingBody::next_window(Clock::time_point now) {
  return now < deadline_ && std::exchange(bytes_in_window_, 0) >= kLeastBytesInWindow;
}

}  // namespace bulkhead::orchestrator
