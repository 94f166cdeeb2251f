// The API as the HTTP layer sees it: it passes a request to the request's route (routes.hpp) if access.hpp allows the
// caller that route. Nothing here uses sockets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/http/access.hpp"
#include "orchestrator/http/errors.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/resumable.hpp"
#include "orchestrator/http/routes.hpp"

namespace bulkhead::orchestrator {

class Api {
 public:
  Api(EventLoop& loop, Router& router, Metrics& metrics, ResumableStreams& streams,
      ApiOptions options);

  // Sends spans of answers to requests that come from now on. `spans` must outlive this object.
  void export_spans(SpanExport* spans) { context_.services.spans = spans; }
  // Uses these settings for requests that come from now on.
  void configure(config::ServerSettings server);

  // Returns the answer if it needs no body (a refusal, or the answer to a GET). Empty: read the body and call
  // handle(), or protocol_error() if the body can't be taken.
  std::optional<HttpResponse> answer_head(const HttpRequest& request, Exchange& exchange);
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange);
  // Renders an error of the HTTP layer itself in the form for clients of this path. The path is empty if the
  // connection does not know it.
  HttpResponse protocol_error(const ErrorKind& kind, const std::string& message,
                              std::string_view path, Exchange& exchange);

  std::vector<DaemonFigure> figures() const;  // the figures of clients' keys, for /metrics
  const KeyLimits& limits() const { return context_.limits; }

  std::function<std::size_t()>& connection_count = context_.connection_count;

 private:
  void take_over_head(const HttpRequest& request, Exchange& exchange) const;
  std::optional<ApiError> take_ticket(const HttpRequest& request, const Route& route,
                                      std::shared_ptr<KeyTicket>& ticket);

  ApiContext context_;
};

}  // namespace bulkhead::orchestrator
