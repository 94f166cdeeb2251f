// Who may call what. Each route says which of these rules it is under (routes.hpp).
//
// Key: with an API key set, a request needs "Authorization: Bearer KEY".
// Origin: a request needs an absent or same-origin Origin, and a Host by which
// this server is known: localhost, 127.0.0.1, [::1] or the bound address. That stops web pages from
// reaching a server on their reader's machine, by forms or by rebinding a name; a page has no choice of
// the port, and a tunnel (`ssh -L`) has one of its own. A server bound to anything but loopback has names
// that it can't know, and always has a key, which no foreign page holds: there any Host will do, and the
// Origin rule stays.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

struct ApiOptions {
  std::string api_key;
  std::string bound_host;  // as configured
  bool loopback = true;
  std::uint32_t request_timeout_s = 600;
};

enum class Who {
  kAnyone,    // who can connect: what machines ask that watch over the daemon
  kOwnPages,  // the key rule and the origin rule; reading counts as well as changing
};

bool constant_time_equal(std::string_view a, std::string_view b);
// The refusal's sentence, or empty.
std::string key_violation(const ApiOptions& options, const HttpRequest& request);
std::string origin_violation(const ApiOptions& options, const HttpRequest& request);

}  // namespace bulkhead::orchestrator
