// Who may call which route. Each route names one of these rules (routes.hpp).
//
// Key: if an API key is set, a request needs "Authorization: Bearer KEY". Keys of server.keys may only use models,
// within their limits (key_limits.hpp).
// Origin: a request must have no Origin or one of this server's own, and a Host that is a name of this server:
// localhost, 127.0.0.1, [::1], the bound address or one of server.allowed_hosts. That stops web pages from reaching a
// server on their reader's machine, by forms or by rebinding a name. The port is not compared: a page can't choose
// it, and a tunnel (`ssh -L`) has its own. A server that is not bound to loopback can't know all of its names. But it
// always has a key, which no foreign page knows. So it accepts any Host and still applies the Origin rule. Pages of
// server.allowed_origins may call everything, and the server tells browsers so (CORS).
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
  bool loopback = true;  // whether server.host is loopback; it does not change
};

enum class Who {
  kAnyone,    // anyone who can connect: for programs that monitor the daemon
  kOwnPages,  // the key rule and the origin rule, for reading as well as for changing
  kClients,   // the same, and clients' keys are accepted: for routes that use models or describe them
};

// Returns the text after "Bearer " in the request's Authorization; empty if there is none.
std::string_view bearer_of(const HttpRequest& request);
bool constant_time_equal(std::string_view a, std::string_view b);
// Returns the message of the refusal, or an empty text.
std::string key_violation(const ApiOptions& options, const HttpRequest& request);
std::string origin_violation(const ApiOptions& options, const HttpRequest& request);

// Returns whether the request comes from a page of server.allowed_origins.
bool is_allowed_page(const ApiOptions& options, const HttpRequest& request);
// Adds the headers that let a browser give the answer to such a page. Adds nothing for other callers.
void add_cors_headers(const ApiOptions& options, const HttpRequest& request,
                      HttpResponse& response);
// Returns the answer to a browser's preflight request: whether such a page may send a request (the browser sends no
// key with it). Empty: this is not a preflight request.
std::optional<HttpResponse> answer_preflight(const ApiOptions& options, const HttpRequest& request,
                                             const std::string& allow);

}  // namespace bulkhead::orchestrator
