#include "orchestrator/http/dialect.hpp"

#include <ctime>
#include <utility>

#include <nlohmann/json.hpp>

namespace bulkhead::orchestrator {

DialectAnswer::DialectAnswer(AnswerServices& services, std::string endpoint,
                             std::shared_ptr<Exchange> exchange, GenerationRequest request,
                             std::unique_ptr<Dialect> dialect)
    : Answer(services, std::move(endpoint)),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      dialect_(std::move(dialect)) {}

void DialectAnswer::start(std::size_t model, std::chrono::seconds timeout) {
  hold();
  head_ = {true, dialect_->new_id(), std::time(nullptr), services_.router.models()[model].id};
  resolve(request_);
  watch(*exchange_);
  start_deadline(timeout);
  ipc::Submit submit = std::move(request_.parameters);
  submit.prompt = std::move(request_.prompts.front());
  id_ = services_.router.start(model, std::move(submit), *this);
}

void DialectAnswer::on_warnings(RequestId, std::span<const std::string> warnings) {
  add_warnings(*exchange_, warnings);
}

void DialectAnswer::on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) {
  if (over_) return;
  usage_.prompt_tokens = prompt_tokens.size();
  if (request_.stream) {
    streaming_ = true;
    exchange_->begin_stream(head_.id, dialect_->content_type());
    watch_silence([this] { send(dialect_->keep_alive()); });
  }
  std::string events;
  dialect_->begin(head_, usage_, events);
  send(events);
}

void DialectAnswer::on_tokens(const ipc::SequenceTokensView& view) {
  if (over_) return;
  tokens_came(last_tokens_, view.tokens.size());
  usage_.completion_tokens += view.tokens.size();
  std::string events;
  dialect_->add(view.text, view.parts, events);
  send(events);
}

void DialectAnswer::on_finished(RequestId, const ipc::Finished& finished) {
  auto self = shared_from_this();
  if (over_) return;
  id_ = {};
  usage_.cached_tokens = finished.cached_tokens;
  usage_.reasoning_tokens = finished.reasoning_tokens;
  std::string events;
  if (!finished.text.empty() || !finished.parts.empty())
    dialect_->add(finished.text, finished.parts, events);
  dialect_->end(finished.reason, usage_, events);
  send(events);
  exchange_->on_lost = nullptr;
  if (streaming_) {
    exchange_->end_stream(false);
  } else {
    HttpResponse response;
    response.body = dialect_->whole();
    respond(std::move(response));
  }
  end_as(200, finish_reason_name(finished.reason, false));
}

void DialectAnswer::on_failed(RequestId request, const Failure& failure) {
  id_ = {};
  Answer::on_failed(request, failure);
}

void DialectAnswer::fail(const ApiError& error) {
  if (over_) return;
  auto self = shared_from_this();
  cancel();
  exchange_->on_lost = nullptr;
  if (streaming_) {
    std::string events;
    dialect_->fail(error, events);
    send(events);
    exchange_->end_stream(true);
  } else {
    respond(dialect_->refusal(error));
  }
  end_as(error.status, error.code);
}

void DialectAnswer::lost(Exchange::Lost how) {
  if (over_) return;
  auto self = shared_from_this();
  cancel();
  end_as(499, count_lost(how));
}

void DialectAnswer::send(const std::string& events) {
  if (!streaming_ || events.empty()) return;
  stream_spoke();
  exchange_->write(events);
}

void DialectAnswer::respond(HttpResponse response) {
  response.headers.emplace_back("X-Request-Id", head_.id);
  exchange_->respond(std::move(response));
}

void DialectAnswer::cancel() {
  if (id_ != RequestId{}) services_.router.cancel(std::exchange(id_, RequestId{}));
}

void DialectAnswer::end_as(int status, std::string_view how) {
  over_ = true;
  end(status, how, facts());
  release();
}

// ---- counting ----

void TokenCount::start(std::size_t model, GenerationRequest request, std::chrono::seconds timeout) {
  hold();
  resolve(request);
  watch(*exchange_);
  start_deadline(timeout);
  ipc::Submit submit = std::move(request.parameters);
  submit.prompt = std::move(request.prompts.front());
  submit.max_tokens = 1;
  id_ = services_.router.start(model, std::move(submit), *this);
}

void TokenCount::on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) {
  HttpResponse response;
  response.body = render_(prompt_tokens.size());
  finish(std::move(response));
}

void TokenCount::on_failed(RequestId request, const Failure& failure) {
  id_ = {};
  Answer::on_failed(request, failure);
}

void TokenCount::fail(const ApiError& error) {
  finish(refusal_(error));
}

void TokenCount::cancel() {
  if (id_ != RequestId{}) services_.router.cancel(std::exchange(id_, RequestId{}));
}

bool is_whole_object(std::string_view arguments) {
  const std::size_t first = arguments.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && arguments[first] == '{' &&
         nlohmann::json::accept(arguments);
}

ApiError with_own_names(ApiError error, std::span<const FieldName> names) {
  const std::string path = error.parameter;
  for (const FieldName& name : names) {
    const bool inside = name.chat.starts_with('.');
    const std::size_t at = path.find(name.chat);
    const std::size_t end = at + name.chat.size();
    if (at == std::string::npos || (!inside && at != 0)) continue;
    if (end != path.size() && path[end] != '.' && path[end] != '[') continue;
    error.parameter.replace(at, name.chat.size(), name.own);
    const std::string quoted = "'" + path + "'";
    if (const std::size_t told = error.message.find(quoted); told != std::string::npos)
      error.message.replace(told + 1, path.size(), error.parameter);
    return error;
  }
  return error;
}

}  // namespace bulkhead::orchestrator
