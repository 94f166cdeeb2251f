// The endpoints, one row each: routes.cpp. A new endpoint is a row there with its handler; one that
// reaches the worker has a parser and a message as well.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "orchestrator/http/access.hpp"
#include "orchestrator/http/answer.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/key_limits.hpp"
#include "orchestrator/http/resumable.hpp"

namespace bulkhead::orchestrator {

// What handlers work with.
struct ApiContext {
  AnswerServices services;
  ResumableStreams& streams;
  ApiOptions options;
  std::function<std::size_t()> connection_count = {};
  KeyLimits limits = {};
};

struct Route;

// A request that has come whole.
struct Call {
  ApiContext& context;
  const Route& route;
  std::string parameter;  // what stood for the path's {...}
  HttpRequest request;
  std::shared_ptr<Exchange> exchange;

  std::string_view key_name() const;  // name of the client's key; empty if the client has none
  void respond(HttpResponse response);
  // Refuses the request in the form of the route's protocol: refusal_for().
  void refuse(const ApiError& error);
};

struct Route {
  enum class Method { kGet, kPost };

  Method method;
  std::string_view path;  // with at most one {...}, which stands for one character or more
  const char* label;      // for metrics: bounded, whatever clients send
  Who who;
  // One of the two. `answer`: at once, from the head (a HEAD gets the same); `handle`: once the body
  // is there, for as long as it takes.
  HttpResponse (*answer)(const ApiContext& context, const std::string& parameter) = nullptr;
  void (*handle)(Call call) = nullptr;

  bool takes(std::string_view method_name) const {
    if (method == Method::kPost) return method_name == "POST";
    return method_name == "GET" || (method_name == "HEAD" && answer != nullptr);
  }
};

std::span<const Route> routes();

// Renders `error` in the form of the protocol that the path belongs to (OpenAI, Anthropic, Ollama). The path
// need not have a route.
HttpResponse refusal_for(std::string_view path, const ApiError& error);

// The route of a path, and what stands for its {...}.
struct RouteMatch {
  const Route* route = nullptr;  // null: there is none
  std::string parameter;
  std::string allow;  // the methods that the path has
};
// Returns the route with this path and method; if there is none, one with this path. Extra slashes do no harm, and
// /v1 may be missing or doubled: people easily write base URLs so.
RouteMatch find_route(std::string_view path, std::string_view method);

}  // namespace bulkhead::orchestrator
