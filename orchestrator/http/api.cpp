#include "orchestrator/http/api.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/request_line.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr const char* kUnknownLabel = "unknown";

// Returns 304 to a client that already has this answer (RFC 9110, section 13.1.2).
void leave_out_what_it_has(const HttpRequest& request, HttpResponse& response) {
  if (request.if_none_match.empty() || response.status != 200) return;
  const auto etag =
      std::ranges::find(response.headers, "ETag", &std::pair<std::string, std::string>::first);
  if (etag == response.headers.end()) return;
  // Tags are quoted, so no tag can be a part of another one. A weak tag (W/"...") counts as well.
  if (request.if_none_match != "*" && request.if_none_match.find(etag->second) == std::string::npos)
    return;
  response.status = 304;
  response.body.clear();
}

}  // namespace

Api::Api(EventLoop& loop, Router& router, Metrics& metrics, ResumableStreams& streams,
         ApiOptions options)
    : context_{{loop, router, metrics}, streams, std::move(options)} {
  context_.bodies = std::make_unique<BodyReader>(loop);
  configure(context_.options.server);
}

void Api::configure(config::ServerSettings server) {
  context_.services.keep_alive = std::chrono::seconds(server.stream_keep_alive_s);
  context_.limits.configure(server.keys, KeyUse::Clock::now());
  context_.options.server = std::move(server);
}

HttpResponse Api::protocol_error(const ErrorKind& kind, const std::string& message,
                                 std::string_view path, Exchange& exchange) {
  const Route& route = nearest_route(path);
  exchange.second_id_field = route.second_id_field();
  const std::string& id = exchange.request_id();
  RequestLine line{.method = exchange.method,
                   .endpoint = kUnknownLabel,
                   .status = kind.status,
                   .trace = &exchange.trace,
                   .key = exchange.key_name,
                   .id = id};
  // The exchange has a method if answer_head() accepted the head. Then the server refuses the body.
  const RouteMatch match = find_route(path, exchange.method);
  if (!exchange.method.empty() && match.route != nullptr) {
    line.endpoint = match.route->label;
    line.took = std::chrono::steady_clock::now() - exchange.arrived;
  }
  end_request(context_.services.metrics, std::move(line));
  HttpResponse response = route.refuse(api_error(kind, message), id);
  response.close = true;
  return response;
}

std::optional<HttpResponse> Api::answer_head(const HttpRequest& request, Exchange& exchange) {
  const RouteMatch match = find_route(request.path, request.method);
  const Route* const route = match.route;
  const Route& protocol = route != nullptr ? *route : nearest_route(request.path);
  exchange.second_id_field = protocol.second_id_field();
  auto answer = [&](HttpResponse response) {
    add_cors_headers(context_.options, request, response);
    const char* const label = route != nullptr ? route->label : kUnknownLabel;
    if (request.trace.known()) response.headers.emplace_back("traceparent", request.trace.field());
    end_request(context_.services.metrics,
                {.method = request.method,
                 .endpoint = label,
                 .status = response.status,
                 .took = std::chrono::steady_clock::now() - request.arrived,
                 .trace = &request.trace,
                 .key = exchange.key_name,
                 .id = exchange.request_id()});
    return response;
  };
  const auto refuse = [&](const ErrorKind& kind, std::string message) {
    return protocol.refuse(api_error(kind, std::move(message)), exchange.request_id());
  };
  if (request.hosts > 1 || (request.http_1_1 && request.hosts == 0))
    return answer(refuse(kBadRequest, "An HTTP/1.1 request has exactly one Host field."));
  if (auto preflight = answer_preflight(context_.options, request, match.allow))
    return answer(*std::move(preflight));
  // A preflight request never has a key. If its page may not call this server, the answer gives that reason, and not
  // the missing key.
  if (request.method == "OPTIONS" && !request.cors_method.empty()) {
    if (std::string why = origin_violation(context_.options, request); !why.empty())
      return answer(refuse(kForbiddenOrigin, std::move(why)));
  }
  if (route == nullptr || route->who != Who::kAnyone) {
    std::string why = key_violation(context_.options, request);
    const KeyUse* const client = why.empty() ? nullptr : context_.limits.find(bearer_of(request));
    if (!why.empty() && client == nullptr) return answer(refuse(kInvalidApiKey, std::move(why)));
    if (client != nullptr) exchange.key_name = client->key.name;
    if (client != nullptr && route != nullptr && route->who != Who::kClients) {
      return answer(refuse(kNotAllowed,
                           "This key may only ask models; what operators see and do needs the "
                           "server's own key (server.api_key)."));
    }
  }
  if (route == nullptr) {
    return answer(refuse(kUnknownUrl,
                         fmt::format("There is no endpoint {} {}. Clients of OpenAI's API take "
                                     "http://HOST:PORT/v1 as their base URL, those of Anthropic's "
                                     "and Ollama's http://HOST:PORT; GET /v1/models shows whether "
                                     "that is right.",
                                     request.method, request.path)));
  }
  if (request.method == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back("Allow", match.allow);
    return answer(std::move(response));
  }
  if (!route->takes(request.method)) {
    HttpResponse response =
        refuse(kMethodNotAllowed,
               fmt::format("{} is not allowed here, only {}.", request.method, match.allow));
    response.headers.emplace_back("Allow", match.allow);
    return answer(std::move(response));
  }
  if (route->who != Who::kAnyone) {
    if (std::string why = origin_violation(context_.options, request); !why.empty())
      return answer(refuse(kForbiddenOrigin, std::move(why)));
  }
  const Route::AtOnce at_once = route->answer();
  if (at_once == nullptr) {
    take_over_head(request, exchange);
    return std::nullopt;
  }
  HttpResponse response = at_once(context_, match.parameter);
  leave_out_what_it_has(request, response);
  return answer(std::move(response));
}

// Gives the exchange what the answer's head and the request's line need, whether the body then comes or is refused.
void Api::take_over_head(const HttpRequest& request, Exchange& exchange) const {
  HttpResponse cors;
  add_cors_headers(context_.options, request, cors);
  exchange.extra_headers = std::move(cors.headers);
  exchange.method = request.method;
  exchange.trace = request.trace;
  exchange.arrived = request.arrived;
  if (request.trace.known())
    exchange.extra_headers.emplace_back("traceparent", request.trace.field());
}

// Counts a client's request to a model against the limits of the client's key, and sets `ticket`.
// Leaves it as it is if the request needs none. Returns the refusal if the key may not send the
// request now.
std::optional<ApiError> Api::take_ticket(const HttpRequest& request, const Route& route,
                                         std::shared_ptr<KeyTicket>& ticket) {
  if (route.method != Route::Method::kPost || route.who != Who::kClients) return std::nullopt;
  if (key_violation(context_.options, request).empty())
    return std::nullopt;  // the server's own key
  KeyUse* const use = context_.limits.find(bearer_of(request));
  if (use == nullptr) {  // a reload removed the key while the body was arriving
    return api_error(kInvalidApiKey, key_violation(context_.options, request));
  }
  auto begun = context_.limits.begin(*use, KeyUse::Clock::now());
  if (auto* error = std::get_if<ApiError>(&begun)) return std::move(*error);
  ticket = std::get<0>(std::move(begun));
  return std::nullopt;
}

std::vector<DaemonFigure> Api::figures() const {
  std::vector<DaemonFigure> figures;
  const auto add = [&](const char* name, const char* help, const KeyUse& use, std::uint64_t value,
                       bool counts) {
    figures.push_back({name, help, static_cast<double>(value), counts, "key", use.key.name});
  };
  for (const auto& use : context_.limits.all()) {
    add("bulkhead_key_requests_total", "Requests of a client's key that were accepted", *use,
        use->requests, true);
    add("bulkhead_key_refused_total", "Requests of a client's key that were beyond its limits",
        *use, use->refused, true);
    add("bulkhead_key_tokens_total", "Tokens of prompts and answers of a client's key", *use,
        use->tokens, true);
    add("bulkhead_key_requests_in_progress", "Requests of a client's key in progress", *use,
        use->in_progress, false);
  }
  return figures;
}

void Api::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  RouteMatch match = find_route(request.path, request.method);
  const Route& route = *match.route;
  Call call{context_, route, std::move(match.parameter), {}, std::move(exchange), nullptr};
  if (const std::optional<ApiError> over = take_ticket(request, route, call.ticket))
    return call.refuse(*over);
  call.request = std::move(request);
  orchestrator::handle(std::move(call));
}

}  // namespace bulkhead::orchestrator
