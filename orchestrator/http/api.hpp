// The endpoints: who may call, what a path means, and what is answered. Knows the router and the
// wire format; no sockets.
//
// Who may call: with an API key set, everything but /health needs "Authorization: Bearer KEY".
// Requests that change something (any method but GET, HEAD and OPTIONS) need an absent or
// same-origin Origin, and a Host by which this server is known: localhost, 127.0.0.1, [::1] or the
// bound address. That stops web pages from reaching a server on their reader's machine, by forms or
// by rebinding a name; a page has no choice of the port, and a tunnel (`ssh -L`) has one of its own.
// A server bound to anything but loopback has names that it can't know, and always has a key, which
// no foreign page holds: there any Host will do, and the Origin rule stays.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/resumable.hpp"
#include "orchestrator/metrics/metrics.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

struct ApiOptions {
  std::string api_key;
  std::string bound_host;  // as configured
  bool loopback = true;
  std::uint32_t request_timeout_s = 600;
};

class Api {
 public:
  Api(EventLoop& loop, Router& router, Metrics& metrics, ResumableStreams& streams,
      ApiOptions options);
  ~Api();

  // For requests that come from now on.
  void configure(std::string api_key, std::uint32_t request_timeout_s);

  // An answer that needs no body read: a refusal, a GET. Empty: read the body and call handle().
  std::optional<HttpResponse> answer_head(const HttpRequest& request);
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange);
  // For errors of the HTTP layer itself, in the same shape.
  HttpResponse protocol_error(int status, const std::string& message);

  std::function<std::size_t()> connection_count;

  struct Context;  // what answers in progress share

 private:
  HttpResponse answer_get(const std::string& path);
  void handle_worker_action(const std::string& path, Exchange& exchange);

  std::shared_ptr<Context> context_;
};

bool constant_time_equal(std::string_view a, std::string_view b);
// The Origin and Host rule above; the refusal's sentence, or empty.
std::string origin_violation(const ApiOptions& options, const HttpRequest& request);

}  // namespace bulkhead::orchestrator
