#include "orchestrator/http/routes.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "config/base/log.hpp"
#include "config/base/overloaded.hpp"
#include "orchestrator/http/describe.hpp"
#include "orchestrator/http/embeddings.hpp"
#include "orchestrator/http/generation.hpp"
#include "orchestrator/http/incoming_request.hpp"
#include "orchestrator/http/llama_cpp.hpp"
#include "orchestrator/http/lookup.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/http/operating.hpp"
#include "orchestrator/http/page.hpp"
#include "orchestrator/http/questions.hpp"
#include "orchestrator/http/read_body.hpp"
#include "orchestrator/http/request_fields.hpp"
#include "orchestrator/http/request_line.hpp"
#include "orchestrator/http/rerank.hpp"
#include "orchestrator/http/responses.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

// How to handle a request in a protocol other than OpenAI's chats, and which class writes its answer.
struct Conversation {
  GenerationRequest wanted;
  std::unique_ptr<Dialect> dialect;
};

// A request to count the tokens of the prompt that a generation would have.
struct CountedPrompt {
  GenerationRequest wanted;
};

namespace {

// ---- answers without a worker ----

HttpResponse get_health(const ApiContext& context, const std::string&) {
  const Router& router = context.services.router;
  const bool ready = router.ready() && !router.draining();
  json health = describe_health(router);
  // Problems that do not keep models from being served, but that an operator should see.
  if (const DiskJournal* disk = context.streams.disk(); disk != nullptr && disk->failed())
    health["problems"] = {"the journal can't be written: " + disk->problem()};
  HttpResponse response = json_response(ready ? 200 : 503, health);
  if (!ready) response.headers.emplace_back("Retry-After", "1");
  return response;
}

// The event loop runs, so a restart would repair nothing.
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

// For balancers that send a request to the server with the fewest: vLLM's endpoint and member.
HttpResponse get_load(const ApiContext& context, const std::string&) {
  return json_response(200, {{"server_load", context.services.router.outstanding()}});
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

// ---- answers by a worker ----

// Returns the model's index, or nothing after a refusal.
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

// Makes what answers the call from now on.
template <typename Answer, typename... More>
std::shared_ptr<Answer> make_answer(Call& call, More&&... more) {
  auto answer = std::make_shared<Answer>(call.context.services, call.route.label, call.route.refuse,
                                         std::move(call.exchange), std::forward<More>(more)...);
  answer->take_ticket(std::move(call.ticket));
  return answer;
}

template <RenderAnswer render, typename Message>
void look_up(Call call, QuestionRequest<Message> wanted) {
  if (const auto model = admit(call, wanted.model, 1))
    make_answer<Lookup>(call, render)->start(*model, std::move(wanted.message), timeout_of(call));
}

// Admits a request of one or more answers. Returns the model's index, or nothing after a refusal.
std::optional<std::size_t> admit_answers(Call& call, const GenerationRequest& wanted) {
  const std::size_t choices = wanted.prompts.size() * wanted.n;
  const std::size_t most = call.context.options.server.max_choices;
  if (most == 0 || choices <= most) return admit(call, wanted.model, choices);
  call.refuse(
      invalid(fmt::format("The request asks for {} answers (prompts times n); this server gives at "
                          "most {} to a request (server.max_choices).",
                          choices, most),
              "n", "invalid_value"));
  return std::nullopt;
}

void generate(Call call, GenerationRequest wanted) {
  const auto model = admit_answers(call, wanted);
  if (!model) return;
  if (wanted.resumable) {
    if (auto error =
            call.context.streams.start(*model, std::move(wanted), call.exchange, call.ticket))
      call.refuse(*error);
    return;
  }
  make_answer<Generation>(call, std::move(wanted))->start(*model, timeout_of(call));
}

// Returns the field that asks for something that an answer in another protocol can't contain; null
// if there is none.
const char* beyond_dialects(const GenerationRequest& wanted, const Dialect& dialect) {
  if (wanted.prompts.size() * wanted.n != 1 && dialect.another(0) == nullptr)
    return wanted.n == 1 ? "prompt" : "n";
  if (wanted.parameters.logprobs >= 0 && !dialect.tells_logprobs()) return "logprobs";
  if (wanted.resumable) return "resumable";
  if (wanted.echo) return "echo";
  return wanted.return_token_ids ? "return_token_ids" : nullptr;
}

void answer_in(std::unique_ptr<Dialect> dialect, GenerationRequest wanted, Call call) {
  if (const char* name = beyond_dialects(wanted, *dialect); name != nullptr) {
    return call.refuse(
        invalid(fmt::format("'{}' can't have this value at this endpoint; /v1/chat/completions and "
                            "/v1/completions take it.",
                            name),
                name, "unsupported_parameter"));
  }
  const auto model = admit_answers(call, wanted);
  if (!model) return;
  make_answer<DialectAnswer>(call, std::move(wanted), std::move(dialect))
      ->start(*model, timeout_of(call));
}

// Reads a request in a protocol other than OpenAI's chats; `make` makes the writer of one answer.
template <auto parse, auto make>
Parsed<Conversation> read_conversation(std::string_view body) {
  auto parsed = parse(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  return Conversation{std::get<GenerationRequest>(std::move(parsed)), make(body)};
}

void converse(Call call, Conversation conversation) {
  answer_in(std::move(conversation.dialect), std::move(conversation.wanted), std::move(call));
}

template <auto parse>
Parsed<CountedPrompt> read_counted(std::string_view body) {
  auto parsed = parse(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  return CountedPrompt{std::get<GenerationRequest>(std::move(parsed))};
}

template <TokenCount::Render render>
void count_tokens(Call call, CountedPrompt prompt) {
  auto& [wanted] = prompt;
  if (const auto model = admit(call, wanted.model, 1))
    make_answer<TokenCount>(call, render)->start(*model, std::move(wanted), timeout_of(call));
}

template <typename Answer, typename Wanted>
void answer_inputs(Call call, Wanted wanted) {
  if (const auto model = admit(call, wanted.model, 1))
    make_answer<Answer>(call, std::move(wanted))->start(*model, timeout_of(call));
}
constexpr auto embed = answer_inputs<EmbeddingAnswer, EmbeddingRequest>;
constexpr auto rerank = answer_inputs<RerankAnswer, RerankRequest>;

// ---- llama.cpp's ----

HttpResponse get_llama_props(const ApiContext& context, const std::string&) {
  return json_response(200, llama_props(context.services.router));
}

// ---- Ollama's ----

void ask_as_ollama(Call call, OllamaRequest request) {
  if (!request.load_only)
    return answer_in(ollama_dialect(request.call), std::move(request.wanted), std::move(call));
  Router& router = call.context.services.router;
  const auto model = admit(call, request.wanted.model, 1);
  if (!model) return;
  const std::string name = router.models()[*model].id;
  if (request.unload && call.ticket != nullptr) {
    return call.refuse(
        api_error(kNotAllowed, "This key may ask models, but not unload them (server.api_key)."));
  }
  const auto done = request.unload ? router.unload(name) : router.load(name);
  if (!done.ok()) return call.refuse(api_error(kModelTooLarge, done.error().message(), "model"));
  HttpResponse response;
  response.body = ollama_loaded_body(request.call, name, request.unload ? "unload" : "load");
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

void show_as_ollama(Call call, std::string name) {
  if (const auto model = admit(call, name, 1))
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
  call.ended(200);
}

// ---- the rows ----

constexpr auto kGet = Route::Method::kGet;
constexpr auto kPost = Route::Method::kPost;
constexpr auto kDelete = Route::Method::kDelete;
constexpr auto kAnyone = Who::kAnyone;
constexpr auto kOwnPages = Who::kOwnPages;
constexpr auto kClients = Who::kClients;
constexpr const char* kActionLabel = "/v1/workers/{name}/{action}";
// The protocols' forms of refusals.
constexpr RefusalForm kOpenAi = to_response;
constexpr RefusalForm kResponses = responses_refusal;
constexpr RefusalForm kMessages = messages_refusal;
constexpr RefusalForm kOllama = ollama_refusal;

// Method, path, label in metrics, who may call, form of refusals; then what answers at once, or the body's parser
// (nullptr: the body is not read) and the handler.
// clang-format off
constexpr Route kRoutes[] = {
    {kGet, "/", "/", kAnyone, kOpenAi, get_page},
    {kGet, "/page/{file}", "/page/{file}", kAnyone, kOpenAi, get_page},
    {kGet, "/health", "/health", kAnyone, kOpenAi, get_health},
    {kGet, "/livez", "/livez", kAnyone, kOpenAi, get_live},
    {kGet, "/readyz", "/readyz", kAnyone, kOpenAi, get_ready},
    {kGet, "/load", "/load", kClients, kOpenAi, get_load},
    {kGet, "/metrics", "/metrics", kOwnPages, kOpenAi, get_metrics},
    {kGet, "/v1/models", "/v1/models", kClients, kOpenAi, get_models},
    {kGet, "/v1/models/{id}", "/v1/models/{id}", kClients, kOpenAi, get_model},
    {kPost, "/v1/models/load", "/v1/models/load", kOwnPages, kOpenAi, parse_model_name, load_model},
    {kPost, "/v1/models/unload", "/v1/models/unload", kOwnPages, kOpenAi, parse_model_name, unload_model},
    {kGet, "/v1/workers", "/v1/workers", kOwnPages, kOpenAi, get_workers},
    {kPost, "/v1/workers/{name}/drain", kActionLabel, kOwnPages, kOpenAi, nullptr, drain_worker},
    {kPost, "/v1/workers/{name}/restart", kActionLabel, kOwnPages, kOpenAi, parse_restart, restart_worker},
    {kPost, "/v1/workers/{name}/profile", kActionLabel, kOwnPages, kOpenAi, nullptr, profile_worker},
    {kPost, "/v1/workers/{name}/kill", kActionLabel, kOwnPages, kOpenAi, nullptr, kill_worker},
    {kPost, "/v1/completions", "/v1/completions", kClients, kOpenAi, parse_completion, generate},
    {kPost, "/v1/chat/completions", "/v1/chat/completions", kClients, kOpenAi, parse_chat, generate},
    {kPost, "/v1/responses", "/v1/responses", kClients, kResponses,
     read_conversation<parse_responses, responses_dialect>, converse},
    {kPost, "/v1/responses/input_tokens", "/v1/responses/input_tokens", kClients, kResponses,
     read_counted<parse_responses>, count_tokens<input_tokens_body>},
    {kPost, "/v1/chat/completions/input_tokens", "/v1/chat/completions/input_tokens", kClients, kOpenAi,
     read_counted<parse_chat>, count_tokens<input_tokens_body>},
    {kPost, "/v1/messages", "/v1/messages", kClients, kMessages,
     read_conversation<parse_messages, messages_dialect>, converse},
    {kPost, "/v1/messages/count_tokens", "/v1/messages/count_tokens", kClients, kMessages,
     read_counted<parse_messages>, count_tokens<counted_tokens_body>},
    {kPost, "/v1/embeddings", "/v1/embeddings", kClients, kOpenAi, parse_openai_embeddings, embed},
    {kPost, "/completion", "/completion", kClients, kOpenAi,
     read_conversation<parse_llama_completion, llama_completion_dialect>, converse},
    {kPost, "/infill", "/infill", kClients, infill_refusal,
     read_conversation<parse_llama_infill, llama_completion_dialect>, converse},
    {kPost, "/v1/rerank", "/v1/rerank", kClients, kOpenAi, parse_rerank, rerank},
    {kPost, "/v1/reranking", "/v1/rerank", kClients, kOpenAi, parse_rerank, rerank},
    {kPost, "/v2/rerank", "/v1/rerank", kClients, kOpenAi, parse_rerank, rerank},
    {kGet, "/props", "/props", kClients, kOpenAi, get_llama_props},
    {kPost, "/api/chat", "/api/chat", kClients, kOllama, parse_ollama_chat, ask_as_ollama},
    {kPost, "/api/generate", "/api/generate", kClients, kOllama, parse_ollama_generate, ask_as_ollama},
    {kPost, "/api/embed", "/api/embed", kClients, kOllama, parse_ollama_embed, embed},
    {kPost, "/api/embeddings", "/api/embeddings", kClients, kOllama, parse_ollama_embeddings, embed},
    {kPost, "/api/show", "/api/show", kClients, kOllama, parse_ollama_name, show_as_ollama},
    {kGet, "/api/tags", "/api/tags", kClients, kOllama, get_ollama_tags},
    {kGet, "/api/ps", "/api/ps", kClients, kOllama, get_ollama_ps},
    {kGet, "/api/version", "/api/version", kAnyone, kOllama, get_ollama_version},
    {kPost, "/api/pull", "/api/pull", kClients, kOllama, nullptr, refuse_as_ollama},
    {kPost, "/api/push", "/api/push", kClients, kOllama, nullptr, refuse_as_ollama},
    {kPost, "/api/create", "/api/create", kClients, kOllama, nullptr, refuse_as_ollama},
    {kPost, "/api/copy", "/api/copy", kClients, kOllama, nullptr, refuse_as_ollama},
    {kDelete, "/api/delete", "/api/delete", kClients, kOllama, nullptr, refuse_as_ollama},
    {kGet, "/v1/workers/{name}/log", "/v1/workers/{name}/log", kOwnPages, kOpenAi, get_worker_log},
    {kGet, "/v1/requests", "/v1/requests", kOwnPages, kOpenAi, get_requests},
    {kGet, "/v1/crashes", "/v1/crashes", kOwnPages, kOpenAi, get_crashes},
    {kGet, "/v1/settings", "/v1/settings", kOwnPages, kOpenAi, get_settings},
    {kGet, "/v1/requests/{id}/events", "/v1/requests/{id}/events", kClients, kOpenAi, nullptr, go_on_reading},
    {kPost, "/tokenize", "/tokenize", kClients, kOpenAi, parse_tokenize, look_up<tokenized_body>},
    {kPost, "/apply-template", "/apply-template", kClients, kOpenAi,
     parse_apply_template, look_up<applied_template_body>},
    {kPost, "/check-constraint", "/check-constraint", kClients, kOpenAi,
     parse_check_constraint, look_up<checked_constraint_body>},
    {kPost, "/detokenize", "/detokenize", kClients, kOpenAi, parse_detokenize, look_up<detokenized_body>},
};
// clang-format on

// Says whether a path has the form of a row's path; if so, sets `parameter` to what stands for the row's {...}.
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
    match.allow += route.method == kPost       ? "POST, "
                   : route.method == kDelete   ? "DELETE, "
                   : route.answer() != nullptr ? "GET, HEAD, "
                                               : "GET, ";
  }
  match.allow += "OPTIONS";
  return match;
}

}  // namespace

std::string_view Call::key_name() const {
  return ticket == nullptr ? std::string_view() : ticket->name();
}

void Call::respond(HttpResponse response) {
  ended(response.status);
  exchange->respond(std::move(response));
}

void Call::ended(int status) const {
  end_request(context.services.metrics,
              {.method = exchange->method,
               .endpoint = route.label,
               .status = status,
               .took = std::chrono::steady_clock::now() - exchange->arrived,
               .trace = &exchange->trace,
               .key = exchange->key_name,
               .id = exchange->request_id()});
}

void Call::refuse(const ApiError& error) {
  respond(route.refuse(error, exchange->request_id()));
}

void handle(Call call) {
  std::visit(Overloaded{
                 [](Route::AtOnce) {},  // the route has been answered from its head
                 [&call](Route::Handle handler) { handler(std::move(call)); },
                 [&call](const auto& takes) { read_body(std::move(call), takes); },
             },
             call.route.way);
}

const char* Route::second_id_field() const {
  return refuse == kMessages ? "request-id" : nullptr;
}

const Route& nearest_route(std::string_view path) {
  if (const RouteMatch match = find_route(path, ""); match.route != nullptr) return *match.route;
  const std::string plain = without_slips(path);
  const Route* nearest = &kRoutes[0];
  for (const Route& route : kRoutes) {
    if (shared_parts(route.path, plain) > shared_parts(nearest->path, plain)) nearest = &route;
  }
  return *nearest;
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
