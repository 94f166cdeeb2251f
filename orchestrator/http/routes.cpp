#include "orchestrator/http/routes.hpp"

#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "config/base/log.hpp"
#include "orchestrator/http/describe.hpp"
#include "orchestrator/http/embeddings.hpp"
#include "orchestrator/http/generation.hpp"
#include "orchestrator/http/llama_cpp.hpp"
#include "orchestrator/http/lookup.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/http/operating.hpp"
#include "orchestrator/http/page.hpp"
#include "orchestrator/http/questions.hpp"
#include "orchestrator/http/request_fields.hpp"
#include "orchestrator/http/responses.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

// ---- answered at once ----

HttpResponse get_health(const ApiContext& context, const std::string&) {
  const Router& router = context.services.router;
  const bool ready = router.ready() && !router.draining();
  json health = describe_health(router);
  // What does not keep models from being served, and an operator should see to.
  if (const DiskJournal* disk = context.streams.disk(); disk != nullptr && disk->failed())
    health["problems"] = {"the journal can't be written: " + disk->problem()};
  HttpResponse response = json_response(ready ? 200 : 503, health);
  if (!ready) response.headers.emplace_back("Retry-After", "1");
  return response;
}

// The loop runs: there is nothing that a new start would mend.
HttpResponse get_live(const ApiContext&, const std::string&) {
  return json_response(200, {{"status", "alive"}});
}

HttpResponse get_ready(const ApiContext& context, const std::string&) {
  const Router& router = context.services.router;
  const bool ready = router.ready() && !router.draining();
  HttpResponse response =
      json_response(ready ? 200 : 503, {{"status", ready ? "ready" : "not ready"}});
  if (!ready) response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse get_metrics(const ApiContext& context, const std::string&) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body =
      context.services.metrics.text(context.connection_count ? context.connection_count() : 0);
  return response;
}

HttpResponse get_models(const ApiContext& context, const std::string&) {
  json data = json::array();
  for (const ModelInfo& model : context.services.router.models()) {
    if (!model.retired) data.push_back(describe_model(context.services.router, model));
  }
  return json_response(200, {{"object", "list"}, {"data", std::move(data)}});
}

HttpResponse get_model(const ApiContext& context, const std::string& name) {
  const Router& router = context.services.router;
  const ModelInfo* model = router.find_model(name);
  if (model != nullptr) return json_response(200, describe_model(router, *model));
  return to_response(
      api_error(kModelNotFound, fmt::format("The model '{}' does not exist.", name), "model"));
}

HttpResponse get_page(const ApiContext&, const std::string& name) {
  return page_response(name.empty() ? "index.html" : name);
}

// ---- answered by a worker ----

// The model's index, or nothing after a refusal.
std::optional<std::size_t> admit(Call& call, const std::string& model, std::size_t count) {
  Failure failure;
  Result<std::size_t> index =
      call.context.services.router.admit(model, count, failure, call.key_name());
  if (index.ok()) return *index;
  call.refuse(to_api_error(failure));
  return std::nullopt;
}

std::chrono::seconds timeout_of(const Call& call) {
  return std::chrono::seconds(call.context.options.server.request_timeout_s);
}

// `parse`: from the body to something with `model` and `message`, or an error.
template <auto parse, RenderAnswer render>
void look_up(Call call) {
  auto parsed = parse(call.request.body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.refuse(*error);
  auto& wanted = std::get<0>(parsed);
  const auto model = admit(call, wanted.model, 1);
  if (!model) return;
  std::make_shared<Lookup>(call.context.services, call.route.label, std::move(call.exchange),
                           render)
      ->start(*model, std::move(wanted.message), timeout_of(call));
}

template <auto parse>
void generate(Call call) {
  auto parsed = parse(call.request.body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.refuse(*error);
  auto& wanted = std::get<GenerationRequest>(parsed);
  const auto model = admit(call, wanted.model, wanted.prompts.size() * wanted.n);
  if (!model) return;
  if (wanted.resumable) {
    if (auto error = call.context.streams.start(*model, std::move(wanted), call.exchange))
      call.refuse(*error);
    return;
  }
  std::make_shared<Generation>(call.context.services, call.route.label, std::move(call.exchange),
                               std::move(wanted))
      ->start(*model, timeout_of(call));
}

// Returns the field that asks for something that an answer in another protocol can't contain; null
// if there is none.
const char* beyond_dialects(const GenerationRequest& wanted) {
  if (wanted.prompts.size() != 1) return "prompt";
  if (wanted.n != 1) return "n";
  if (wanted.parameters.logprobs >= 0) return "logprobs";
  if (wanted.resumable) return "resumable";
  if (wanted.echo) return "echo";
  return wanted.return_token_ids ? "return_token_ids" : nullptr;
}

void answer_in(std::unique_ptr<Dialect> dialect, Parsed<GenerationRequest> parsed, Call call) {
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.respond(dialect->refusal(*error));
  auto& wanted = std::get<GenerationRequest>(parsed);
  if (const char* name = beyond_dialects(wanted); name != nullptr) {
    return call.respond(dialect->refusal(invalid(
        fmt::format("'{}' can't be so here: this endpoint gives one answer to one prompt, and "
                    "no more than its text.",
                    name),
        name, "unsupported_parameter")));
  }
  Failure failure;
  const auto model = call.context.services.router.admit(wanted.model, 1, failure, call.key_name());
  if (!model.ok()) return call.respond(dialect->refusal(to_api_error(failure)));
  std::make_shared<DialectAnswer>(call.context.services, call.route.label, std::move(call.exchange),
                                  std::move(wanted), std::move(dialect))
      ->start(*model, timeout_of(call));
}

// Handles a request in a protocol other than OpenAI's; `make` makes the writer of one answer.
template <auto parse, auto make>
void converse(Call call) {
  auto parsed = parse(call.request.body);
  auto dialect = make(call.request.body);
  answer_in(std::move(dialect), std::move(parsed), std::move(call));
}

template <auto parse, TokenCount::Render render, TokenCount::Refusal refusal_of>
void count_tokens(Call call) {
  auto parsed = parse(call.request.body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.refuse(*error);
  auto& wanted = std::get<GenerationRequest>(parsed);
  const auto model = admit(call, wanted.model, 1);
  if (!model) return;
  std::make_shared<TokenCount>(call.context.services, call.route.label, std::move(call.exchange),
                               render, refusal_of)
      ->start(*model, std::move(wanted), timeout_of(call));
}

template <EmbeddingForm form>
void embed(Call call) {
  auto parsed = parse_embeddings(form, call.request.body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.refuse(*error);
  auto& wanted = std::get<EmbeddingRequest>(parsed);
  const auto model = admit(call, wanted.model, 1);
  if (!model) return;
  std::make_shared<EmbeddingAnswer>(call.context.services, call.route.label,
                                    std::move(call.exchange), std::move(wanted))
      ->start(*model, timeout_of(call));
}

// ---- llama.cpp's ----

HttpResponse get_llama_props(const ApiContext& context, const std::string&) {
  return json_response(200, llama_props(context.services.router));
}

void refuse_rerank(Call call) {
  call.refuse(api_error(kNotImplemented,
                        "/v1/rerank is not supported: this server computes no models that rank "
                        "documents. /v1/embeddings gives vectors to compare."));
}

// ---- Ollama's ----

template <OllamaCall kind>
void ask_as_ollama(Call call) {
  OllamaRequest request = parse_ollama(kind, call.request.body);
  if (!request.load_only)
    return answer_in(ollama_dialect(kind), std::move(request.wanted), std::move(call));
  Router& router = call.context.services.router;
  const auto model = admit(call, std::get<GenerationRequest>(request.wanted).model, 1);
  if (!model) return;
  const std::string name = router.models()[*model].id;
  if (request.unload && call.exchange->ticket != nullptr) {
    return call.refuse(
        api_error(kNotAllowed, "This key may ask models, and not unload them (server.api_key)."));
  }
  const auto done = request.unload ? router.unload(name) : router.load(name);
  if (!done.ok()) return call.refuse(api_error(kModelTooLarge, done.error().message(), "model"));
  HttpResponse response;
  response.body = ollama_loaded_body(kind, name, request.unload ? "unload" : "load");
  call.respond(std::move(response));
}

HttpResponse get_ollama_tags(const ApiContext& context, const std::string&) {
  return json_response(200, ollama_tags(context.services.router));
}
HttpResponse get_ollama_ps(const ApiContext& context, const std::string&) {
  return json_response(200, ollama_ps(context.services.router));
}
HttpResponse get_ollama_version(const ApiContext&, const std::string&) {
  return json_response(200, {{"version", kOllamaVersion}});
}

void show_as_ollama(Call call) {
  Parsed<std::string> name = parse_ollama_name(call.request.body);
  if (auto* error = std::get_if<ApiError>(&name)) return call.refuse(*error);
  const auto model = admit(call, std::get<std::string>(name), 1);
  if (!model) return;
  call.respond(json_response(200, ollama_show(call.context.services.router.models()[*model])));
}

// Only the configuration names models: the server fetches, makes and removes none over HTTP.
void refuse_as_ollama(Call call) {
  call.refuse(api_error(
      kNotImplemented,
      fmt::format(
          "{} is not supported: the daemon's configuration names the models (models[].path, "
          "--model FILE).",
          call.request.path)));
}

void go_on_reading(Call call) {
  if (auto error =
          call.context.streams.attach(call.parameter, call.request.last_event_id, call.exchange))
    return call.refuse(*error);
  call.context.services.metrics.count(events::kRequestsDone, {call.route.label, "200"});
}

// ---- the rows ----

constexpr auto kGet = Route::Method::kGet;
constexpr auto kPost = Route::Method::kPost;
constexpr const char* kActionLabel = "/v1/workers/{name}/{action}";

constexpr Route kRoutes[] = {
    {kGet, "/", "/", Who::kAnyone, get_page},
    {kGet, "/page/{file}", "/page/{file}", Who::kAnyone, get_page},
    {kGet, "/health", "/health", Who::kAnyone, get_health},
    {kGet, "/livez", "/livez", Who::kAnyone, get_live},
    {kGet, "/readyz", "/readyz", Who::kAnyone, get_ready},
    {kGet, "/metrics", "/metrics", Who::kOwnPages, get_metrics},
    {kGet, "/v1/models", "/v1/models", Who::kClients, get_models},
    {kGet, "/v1/models/{id}", "/v1/models/{id}", Who::kClients, get_model},
    {kPost, "/v1/models/load", "/v1/models/load", Who::kOwnPages, nullptr, load_model},
    {kPost, "/v1/models/unload", "/v1/models/unload", Who::kOwnPages, nullptr, unload_model},
    {kGet, "/v1/workers", "/v1/workers", Who::kOwnPages, get_workers},
    {kPost, "/v1/workers/{name}/drain", kActionLabel, Who::kOwnPages, nullptr, drain_worker},
    {kPost, "/v1/workers/{name}/restart", kActionLabel, Who::kOwnPages, nullptr, restart_worker},
    {kPost, "/v1/workers/{name}/profile", kActionLabel, Who::kOwnPages, nullptr, profile_worker},
    {kPost, "/v1/workers/{name}/kill", kActionLabel, Who::kOwnPages, nullptr, kill_worker},
    {kPost, "/v1/completions", "/v1/completions", Who::kClients, nullptr,
     generate<parse_completion>},
    {kPost, "/v1/chat/completions", "/v1/chat/completions", Who::kClients, nullptr,
     generate<parse_chat>},
    {kPost, "/v1/responses", "/v1/responses", Who::kClients, nullptr,
     converse<parse_responses, responses_dialect>},
    {kPost, "/v1/messages", "/v1/messages", Who::kClients, nullptr,
     converse<parse_messages, messages_dialect>},
    {kPost, "/v1/messages/count_tokens", "/v1/messages/count_tokens", Who::kClients, nullptr,
     count_tokens<parse_messages, counted_tokens_body, messages_refusal>},
    {kPost, "/v1/embeddings", "/v1/embeddings", Who::kClients, nullptr,
     embed<EmbeddingForm::kOpenAi>},
    {kPost, "/completion", "/completion", Who::kClients, nullptr,
     converse<parse_llama_completion, llama_completion_dialect>},
    {kPost, "/infill", "/infill", Who::kClients, nullptr,
     converse<parse_llama_infill, llama_completion_dialect>},
    {kPost, "/v1/rerank", "/v1/rerank", Who::kClients, nullptr, refuse_rerank},
    {kGet, "/props", "/props", Who::kClients, get_llama_props},
    {kPost, "/api/chat", "/api/chat", Who::kClients, nullptr, ask_as_ollama<OllamaCall::kChat>},
    {kPost, "/api/generate", "/api/generate", Who::kClients, nullptr,
     ask_as_ollama<OllamaCall::kGenerate>},
    {kPost, "/api/embed", "/api/embed", Who::kClients, nullptr, embed<EmbeddingForm::kOllama>},
    {kPost, "/api/embeddings", "/api/embeddings", Who::kClients, nullptr,
     embed<EmbeddingForm::kOllamaSingle>},
    {kPost, "/api/show", "/api/show", Who::kClients, nullptr, show_as_ollama},
    {kGet, "/api/tags", "/api/tags", Who::kClients, get_ollama_tags},
    {kGet, "/api/ps", "/api/ps", Who::kClients, get_ollama_ps},
    {kGet, "/api/version", "/api/version", Who::kAnyone, get_ollama_version},
    {kPost, "/api/pull", "/api/pull", Who::kClients, nullptr, refuse_as_ollama},
    {kPost, "/api/push", "/api/push", Who::kClients, nullptr, refuse_as_ollama},
    {kPost, "/api/create", "/api/create", Who::kClients, nullptr, refuse_as_ollama},
    {kPost, "/api/copy", "/api/copy", Who::kClients, nullptr, refuse_as_ollama},
    {kGet, "/v1/workers/{name}/log", "/v1/workers/{name}/log", Who::kOwnPages, get_worker_log},
    {kGet, "/v1/requests", "/v1/requests", Who::kOwnPages, get_requests},
    {kGet, "/v1/crashes", "/v1/crashes", Who::kOwnPages, get_crashes},
    {kGet, "/v1/settings", "/v1/settings", Who::kOwnPages, get_settings},
    {kGet, "/v1/requests/{id}/events", "/v1/requests/{id}/events", Who::kClients, nullptr,
     go_on_reading},
    {kPost, "/tokenize", "/tokenize", Who::kClients, nullptr,
     look_up<parse_tokenize, tokenized_body>},
    {kPost, "/apply-template", "/apply-template", Who::kClients, nullptr,
     look_up<parse_apply_template, applied_template_body>},
    {kPost, "/detokenize", "/detokenize", Who::kClients, nullptr,
     look_up<parse_detokenize, detokenized_body>},
};

// Whether a path has the form of a row's; then `parameter` is what stands for its {...}.
bool matches(std::string_view form, std::string_view path, std::string_view& parameter) {
  const std::size_t open = form.find('{');
  if (open == std::string_view::npos) return form == path;
  const std::string_view before = form.substr(0, open);
  const std::string_view after = form.substr(form.find('}') + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) ||
      !path.ends_with(after))
    return false;
  parameter = path.substr(before.size(), path.size() - before.size() - after.size());
  return true;
}

RouteMatch find_exactly(std::string_view path, std::string_view method) {
  RouteMatch match;
  for (const Route& route : kRoutes) {
    std::string_view parameter;
    if (!matches(route.path, path, parameter)) continue;
    if (match.route == nullptr || route.takes(method)) {
      match.route = &route;
      match.parameter = parameter;
    }
    match.allow += route.method == kPost     ? "POST, "
                   : route.answer != nullptr ? "GET, HEAD, "
                                             : "GET, ";
  }
  match.allow += "OPTIONS";
  return match;
}

// "//v1//models/" as it was meant: base URLs get slashes at their ends.
std::string without_slips(std::string_view path) {
  std::string plain;
  for (const char c : path) {
    if (c != '/' || !plain.ends_with('/')) plain += c;
  }
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  return plain;
}

}  // namespace

std::string_view Call::key_name() const {
  return exchange->ticket == nullptr ? std::string_view() : exchange->ticket->name();
}

void Call::respond(HttpResponse response) {
  context.services.metrics.count(events::kRequestsDone,
                                 {route.label, std::to_string(response.status)});
  exchange->respond(std::move(response));
}

void Call::refuse(const ApiError& error) {
  respond(refusal_for(route.path, error));
}

std::span<const Route> routes() {
  return kRoutes;
}

HttpResponse refusal_for(std::string_view path, const ApiError& error) {
  const std::string plain = without_slips(path);
  if (plain.starts_with("/api/")) return ollama_refusal(error);
  if (plain.starts_with("/v1/messages")) return messages_refusal(error);
  return to_response(error);
}

RouteMatch find_route(std::string_view path, std::string_view method) {
  if (RouteMatch match = find_exactly(path, method); match.route != nullptr) return match;
  const std::string plain = without_slips(path);
  if (RouteMatch match = find_exactly(plain, method); match.route != nullptr) return match;
  RouteMatch match = find_exactly("/v1" + plain, method);
  if (match.route == nullptr && plain.starts_with("/v1/v1/"))
    match = find_exactly(std::string_view(plain).substr(3), method);
  return match;
}

}  // namespace bulkhead::orchestrator
