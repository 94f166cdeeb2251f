// Who may call what. Each route says which of these rules it is under (routes.hpp).
//
// Key: with an API key set, a request needs "Authorization: Bearer KEY". Keys of server.keys may ask models, within
// their limits (key_limits.hpp), and nothing else.
// Origin: a request needs an absent or same-origin Origin, and a Host by which this server is known:
// localhost, 127.0.0.1, [::1], the bound address or one of server.allowed_hosts. That stops web pages
// from reaching a server on their reader's machine, by forms or by rebinding a name; a page has no choice of
// the port, and a tunnel (`ssh -L`) has one of its own. A server bound to anything but loopback has names
// that it can't know, and always has a key, which no foreign page holds: there any Host will do, and the
// Origin rule stays. Pages of server.allowed_origins may call everything, and browsers are told so (CORS).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/settings.hpp"
#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

struct ApiOptions {
  config::ServerSettings server;
  bool loopback = true;  // what server.host is, and stays
};

enum class Who {
  kAnyone,    // who can connect: what machines ask that watch over the daemon
  kOwnPages,  // the key rule and the origin rule; reading counts as well as changing
  kClients,   // the same, and clients' keys: what asks models, or tells of them
};

// Returns what follows "Bearer " in the request's Authorization; empty if nothing does.
std::string_view bearer_of(const HttpRequest& request);
bool constant_time_equal(std::string_view a, std::string_view b);
// The refusal's sentence, or empty.
std::string key_violation(const ApiOptions& options, const HttpRequest& request);
std::string origin_violation(const ApiOptions& options, const HttpRequest& request);

// Whether the request comes from a page of server.allowed_origins.
bool is_allowed_page(const ApiOptions& options, const HttpRequest& request);
// What tells a browser that such a page may read the answer. Nothing for other callers.
void add_cors_headers(const ApiOptions& options, const HttpRequest& request,
                      HttpResponse& response);
// The answer to a browser that asks, for such a page, whether it may send a request (it sends no key
// with that). Empty: this is no such question.
std::optional<HttpResponse> answer_preflight(const ApiOptions& options, const HttpRequest& request,
                                             const std::string& allow);

}  // namespace bulkhead::orchestrator
