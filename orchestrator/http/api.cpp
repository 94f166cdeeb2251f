#include "orchestrator/http/api.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "config/base/log.hpp"
#include "config/base/text.hpp"
#include "orchestrator/http/describe.hpp"
#include "orchestrator/http/errors.hpp"
#include "orchestrator/http/generation.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

struct Api::Context {
  EventLoop& loop;
  Router& router;
  Metrics& metrics;
  ResumableStreams& streams;
  ApiOptions options;
  std::unordered_set<std::shared_ptr<void>> in_progress;
};

namespace {

// ---- routes ----

enum class Endpoint {
  kHealth,
  kMetrics,
  kModels,
  kModel,
  kWorkers,
  kWorkerAction,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kRequestEvents,
  kUnknown
};

struct Route {
  Endpoint endpoint = Endpoint::kUnknown;
  const char* label = "unknown";  // for metrics: bounded, whatever clients send
  bool post = false;
};

constexpr std::size_t kMostHostTold = 100;  // bytes of a Host in its refusal
constexpr std::string_view kRequestsPath = "/v1/requests/";
constexpr std::string_view kEventsPath = "/events";

Route route_of(const std::string& path) {
  struct Fixed {
    const char* path;
    Endpoint endpoint;
    bool post;
  };
  static constexpr std::array<Fixed, 8> kFixed = {{
      {"/health", Endpoint::kHealth, false},
      {"/metrics", Endpoint::kMetrics, false},
      {"/v1/models", Endpoint::kModels, false},
      {"/v1/workers", Endpoint::kWorkers, false},
      {"/v1/completions", Endpoint::kCompletions, true},
      {"/v1/chat/completions", Endpoint::kChat, true},
      {"/tokenize", Endpoint::kTokenize, true},
      {"/detokenize", Endpoint::kDetokenize, true},
  }};
  for (const Fixed& fixed : kFixed) {
    if (path == fixed.path) return {fixed.endpoint, fixed.path, fixed.post};
  }
  if (path.starts_with("/v1/models/") && path.size() > 11)
    return {Endpoint::kModel, "/v1/models/{id}", false};
  if (path.starts_with("/v1/workers/") &&
      (path.ends_with("/drain") || path.ends_with("/restart") || path.ends_with("/profile"))) {
    return {Endpoint::kWorkerAction, "/v1/workers/{name}/{action}", true};
  }
  if (path.starts_with(kRequestsPath) && path.ends_with(kEventsPath) &&
      path.size() > kRequestsPath.size() + kEventsPath.size()) {
    return {Endpoint::kRequestEvents, "/v1/requests/{id}/events", false};
  }
  return {};
}

HttpResponse json_response(int status, const json& body) {
  HttpResponse response;
  response.status = status;
  response.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  return response;
}

// A Tokenize or Detokenize in progress.
class Lookup : public RequestObserver, public std::enable_shared_from_this<Lookup> {
 public:
  Lookup(std::shared_ptr<Api::Context> context, std::shared_ptr<Exchange> exchange,
         const char* endpoint)
      : context_(std::move(context)),
        exchange_(std::move(exchange)),
        endpoint_(endpoint),
        deadline_(context_->loop) {}

  void start(std::size_t model, Work work) {
    context_->in_progress.insert(shared_from_this());
    auto weak = weak_from_this();
    exchange_->on_lost = [weak](Exchange::Lost) {
      auto self = weak.lock();
      if (self == nullptr) return;
      self->context_->router.cancel(self->request_);
      self->end(499);
    };
    std::uint32_t timeout = context_->options.request_timeout_s;
    deadline_.start(std::chrono::seconds(timeout), [this] {
      context_->router.cancel(request_);
      on_failed(request_, {FailureKind::kTimeout,
                           "The request took more than server.request_timeout_s.", ""});
    });
    request_ = context_->router.start(model, std::move(work), *this);
  }

  void on_accepted(RequestId, std::span<const ipc::TokenId>) override {}
  void on_tokens(RequestId, std::span<const ipc::TokenId>, std::string_view,
                 std::span<const ipc::TokenLogprob>) override {}
  void on_finished(RequestId, const ipc::Finished&, const JournalEntry&) override {}
  void on_failed(RequestId, const Failure& failure) override {
    ApiError error = to_api_error(failure);
    respond(to_response(error));
  }
  void on_answer(RequestId, const ipc::FromWorker& answer) override {
    HttpResponse response;
    if (const auto* tokenized = std::get_if<ipc::Tokenized>(&answer)) {
      response.body = "{\"tokens\":[";
      for (std::size_t i = 0; i < tokenized->tokens.size(); ++i) {
        if (i > 0) response.body += ',';
        response.body += std::to_string(tokenized->tokens[i]);
      }
      response.body += "],\"count\":" + std::to_string(tokenized->tokens.size()) + "}";
    } else if (const auto* detokenized = std::get_if<ipc::Detokenized>(&answer)) {
      // Its name in the request, and llama.cpp's.
      response.body = "{\"prompt\":";
      append_json_string(response.body, detokenized->text);
      response.body += ",\"content\":";
      append_json_string(response.body, detokenized->text);
      response.body += '}';
    }
    respond(std::move(response));
  }

 private:
  void respond(HttpResponse response) {
    auto self = shared_from_this();
    int status = response.status;
    exchange_->on_lost = nullptr;
    exchange_->respond(std::move(response));
    end(status);
  }
  void end(int status) {
    deadline_.cancel();
    context_->metrics.request_done(endpoint_, status);
    context_->in_progress.erase(shared_from_this());
  }

  std::shared_ptr<Api::Context> context_;
  std::shared_ptr<Exchange> exchange_;
  const char* endpoint_;
  Timer deadline_;
  RequestId request_;
};

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

Api::Api(EventLoop& loop, Router& router, Metrics& metrics, ResumableStreams& streams,
         ApiOptions options)
    : context_(std::make_shared<Context>(
          Context{loop, router, metrics, streams, std::move(options), {}})) {}

Api::~Api() = default;

void Api::configure(std::string api_key, std::uint32_t request_timeout_s) {
  context_->options.api_key = std::move(api_key);
  context_->options.request_timeout_s = request_timeout_s;
}

HttpResponse Api::protocol_error(int status, const std::string& message) {
  context_->metrics.request_done("unknown", status);
  HttpResponse response = to_response(plain_error(status, message,
                                                  status == 413   ? "body_too_large"
                                                  : status == 431 ? "headers_too_large"
                                                  : status == 503 ? "too_many_connections"
                                                                  : "bad_request"));
  response.close = true;
  return response;
}

std::optional<HttpResponse> Api::answer_head(const HttpRequest& request) {
  Route route = route_of(request.path);
  auto answer = [&](HttpResponse response) {
    context_->metrics.request_done(route.label, response.status);
    return response;
  };
  auto refuse = [&](int status, std::string message, std::string code) {
    return answer(to_response(plain_error(status, std::move(message), std::move(code))));
  };
  if (request.hosts > 1 || (request.http_1_1 && request.hosts == 0)) {
    return refuse(400, "An HTTP/1.1 request has exactly one Host field.", "bad_request");
  }
  const ApiOptions& options = context_->options;
  if (!options.api_key.empty() && route.endpoint != Endpoint::kHealth) {
    constexpr std::string_view kBearer = "Bearer ";
    std::string_view given = request.authorization;
    bool bearer =
        given.size() > kBearer.size() && lower(given.substr(0, kBearer.size())) == "bearer ";
    if (!bearer || !constant_time_equal(given.substr(kBearer.size()), options.api_key)) {
      return refuse(401, "A valid API key is needed: Authorization: Bearer KEY.",
                    "invalid_api_key");
    }
  }
  if (route.endpoint == Endpoint::kUnknown) {
    return refuse(404, fmt::format("There is no endpoint {} {}.", request.method, request.path),
                  "unknown_url");
  }
  const bool events = route.endpoint == Endpoint::kRequestEvents;
  const char* allow = route.post ? "POST, OPTIONS" : events ? "GET, OPTIONS" : "GET, HEAD, OPTIONS";
  if (request.method == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back("Allow", allow);
    return answer(std::move(response));
  }
  bool reading = request.method == "GET" || (request.method == "HEAD" && !events);
  if (route.post ? request.method != "POST" : !reading) {
    HttpResponse response = to_response(
        plain_error(405, fmt::format("{} is not allowed here, only {}.", request.method, allow),
                    "method_not_allowed"));
    response.headers.emplace_back("Allow", allow);
    return answer(std::move(response));
  }
  if (!route.post && !events) return answer(answer_get(request.path));
  std::string violation = origin_violation(options, request);
  if (!violation.empty()) return refuse(403, violation, "forbidden_origin");
  return std::nullopt;
}

HttpResponse Api::answer_get(const std::string& path) {
  Router& router = context_->router;
  switch (route_of(path).endpoint) {
    case Endpoint::kHealth: {
      const bool ready = router.ready() && !router.draining();
      HttpResponse response = json_response(ready ? 200 : 503, describe_health(router));
      if (!ready) response.headers.emplace_back("Retry-After", "1");
      return response;
    }
    case Endpoint::kMetrics: {
      HttpResponse response;
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = context_->metrics.text(connection_count ? connection_count() : 0);
      return response;
    }
    case Endpoint::kModels: {
      json data = json::array();
      for (const ModelInfo& model : router.models()) {
        if (!model.retired) data.push_back(describe_model(model));
      }
      return json_response(200, {{"object", "list"}, {"data", std::move(data)}});
    }
    case Endpoint::kModel: {
      std::string name = path.substr(std::string_view("/v1/models/").size());
      const ModelInfo* model = router.find_model(name);
      if (model == nullptr) {
        ApiError error = plain_error(404, fmt::format("The model '{}' does not exist.", name),
                                     "model_not_found");
        error.parameter = "model";
        return to_response(error);
      }
      return json_response(200, describe_model(*model));
    }
    case Endpoint::kWorkers:
      return json_response(200, describe_workers(router, context_->streams.disk()));
    default:
      break;
  }
  return to_response(plain_error(404, "There is no such endpoint.", "unknown_url"));
}

void Api::handle_worker_action(const std::string& path, Exchange& exchange) {
  std::string_view rest = std::string_view(path).substr(std::string_view("/v1/workers/").size());
  std::size_t slash = rest.rfind('/');
  std::string name(rest.substr(0, slash));
  std::string_view action = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  const char* label = "/v1/workers/{name}/{action}";
  Worker* worker = context_->router.find_worker(name);
  Spare* spare = context_->router.find_spare(name);
  HttpResponse response;
  if (spare != nullptr && action == "restart") {
    spdlog::info("worker {}: {} requested", name, action);
    spare->restart();
    response = json_response(202, {{"name", name}, {"state", to_string(spare->state())}});
  } else if (spare != nullptr) {
    response = to_response(plain_error(
        409,
        fmt::format("The worker '{}' stands by and has no request; it can only be restarted.",
                    name),
        "worker_not_ready"));
  } else if (worker == nullptr) {
    response = to_response(
        plain_error(404, fmt::format("There is no worker '{}'; /v1/workers lists them.", name),
                    "worker_not_found"));
  } else if ((action == "profile" && !worker->profile()) ||
             (action == "drain" && !worker->drain())) {
    response = to_response(plain_error(
        409,
        fmt::format("The worker '{}' is {}; only a ready one can be {}.", name,
                    to_string(worker->state()), action == "drain" ? "drained" : "profiled"),
        "worker_not_ready"));
  } else {
    spdlog::info("worker {}: {} requested", name, action);
    if (action == "restart") worker->restart();
    response =
        json_response(202, describe_worker(context_->router, *worker, context_->streams.disk()));
  }
  context_->metrics.request_done(label, response.status);
  exchange.respond(std::move(response));
}

void Api::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  Route route = route_of(request.path);
  Router& router = context_->router;
  auto refuse = [&](const ApiError& error) {
    context_->metrics.request_done(route.label, error.status);
    exchange->respond(to_response(error));
  };
  // The model's index, or nothing after a refusal.
  auto admit = [&](const std::string& model, std::size_t count) -> std::optional<std::size_t> {
    Failure failure;
    Result<std::size_t> index = router.admit(model, count, failure);
    if (index.ok()) return *index;
    refuse(to_api_error(failure));
    return std::nullopt;
  };
  auto look_up = [&](const std::string& model, Work work) {
    if (auto index = admit(model, 1)) {
      std::make_shared<Lookup>(context_, std::move(exchange), route.label)
          ->start(*index, std::move(work));
    }
  };

  switch (route.endpoint) {
    case Endpoint::kWorkerAction:
      return handle_worker_action(request.path, *exchange);
    case Endpoint::kTokenize: {
      auto parsed = parse_tokenize(request.body);
      if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
      auto& wanted = std::get<TokenizeRequest>(parsed);
      return look_up(wanted.model, std::move(wanted.message));
    }
    case Endpoint::kDetokenize: {
      auto parsed = parse_detokenize(request.body);
      if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
      auto& wanted = std::get<DetokenizeRequest>(parsed);
      return look_up(wanted.model, std::move(wanted.message));
    }
    case Endpoint::kCompletions:
    case Endpoint::kChat: {
      auto parsed = route.endpoint == Endpoint::kChat ? parse_chat(request.body)
                                                      : parse_completion(request.body);
      if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
      auto& wanted = std::get<GenerationRequest>(parsed);
      auto model = admit(wanted.model, wanted.prompts.size() * wanted.n);
      if (!model) return;
      if (wanted.resumable) {
        if (auto error = context_->streams.start(*model, std::move(wanted), exchange))
          refuse(*error);
        return;
      }
      auto holder = std::make_shared<std::weak_ptr<void>>();
      auto context = context_;
      auto generation = std::make_shared<Generation>(
          context_->loop, router, context_->metrics, std::move(exchange), std::move(wanted),
          [context, holder] { context->in_progress.erase(holder->lock()); });
      *holder = generation;
      context_->in_progress.insert(generation);
      return generation->start(*model, std::chrono::seconds(context_->options.request_timeout_s));
    }
    case Endpoint::kRequestEvents: {
      const std::size_t id_bytes = request.path.size() - kRequestsPath.size() - kEventsPath.size();
      if (auto error = context_->streams.attach(request.path.substr(kRequestsPath.size(), id_bytes),
                                                request.last_event_id, exchange))
        return refuse(*error);
      return context_->metrics.request_done(route.label, 200);
    }
    default:
      return refuse(plain_error(404, "There is no such endpoint.", "unknown_url"));
  }
}

}  // namespace bulkhead::orchestrator
