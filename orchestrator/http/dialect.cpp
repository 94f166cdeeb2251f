#include "orchestrator/http/dialect.hpp"

#include <ctime>
#include <utility>

#include <nlohmann/json.hpp>

#include "orchestrator/http/choice.hpp"

namespace bulkhead::orchestrator {

DialectAnswer::DialectAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
                             std::shared_ptr<Exchange> exchange, GenerationRequest request,
                             std::unique_ptr<Dialect> dialect)
    : ConnectedAnswer(services, std::move(endpoint), refuse, std::move(exchange)),
      request_(std::move(request)),
      dialect_(std::move(dialect)) {}

void DialectAnswer::start(std::size_t model, std::chrono::seconds timeout) {
  begin(timeout);
  add_warnings(*exchange_, request_.warnings);
  head_ = {true, dialect_->new_id(), std::time(nullptr), services_.router.models()[model].id};
  resolve(request_);
  ipc::Submit submit = std::move(request_.parameters);
  submit.prompt = std::move(request_.prompts.front());
  id_ = services_.router.start(model, std::move(submit), *this);
}

void DialectAnswer::on_warnings(RequestId, std::span<const std::string> warnings) {
  add_warnings(*exchange_, warnings);
}

void DialectAnswer::on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) {
  if (over()) return;
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
  if (over()) return;
  tokens_came(last_tokens_, view.tokens.size());
  usage_.completion_tokens += view.tokens.size();
  add(view.text, view.parts);
}

void DialectAnswer::add(std::string_view text, std::span<const ipc::AnswerPart> parts) {
  std::string events;
  if (request_.hide_reasoning) {
    dialect_->add(text, without_reasoning(parts), events);
  } else {
    dialect_->add(text, parts, events);
  }
  send(events);
}

void DialectAnswer::on_finished(RequestId, const ipc::Finished& finished) {
  if (over()) return;
  id_ = {};
  queue_ended(first_token(), finished);
  usage_.cached_tokens = finished.cached_tokens;
  usage_.reasoning_tokens = finished.reasoning_tokens;
  if (!finished.text.empty() || !finished.parts.empty()) add(finished.text, finished.parts);
  std::string events;
  dialect_->end(finished.reason, finished.stopped_by, usage_, events);
  finish(finish_reason_name(finished.reason, false), events);
}

void DialectAnswer::on_failed(RequestId request, const Failure& failure) {
  id_ = {};
  Answer::on_failed(request, failure);
}

std::string DialectAnswer::failure(const ApiError& error) {
  std::string events;
  dialect_->fail(error, events);
  return events;
}

void DialectAnswer::send(const std::string& events) {
  if (!streaming_ || events.empty()) return;
  stream_spoke();
  exchange_->write(events);
}

void DialectAnswer::cancel() {
  if (id_ != RequestId{}) services_.router.cancel(std::exchange(id_, RequestId{}));
}

// ---- counting ----

void TokenCount::start(std::size_t model, GenerationRequest request, std::chrono::seconds timeout) {
  begin(timeout);
  resolve(request);
  ipc::Submit submit = std::move(request.parameters);
  submit.prompt = std::move(request.prompts.front());
  submit.max_tokens = 1;
  id_ = services_.router.start(model, std::move(submit), *this);
}

void TokenCount::on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) {
  tokens_ = prompt_tokens.size();
  finish("");
}

void TokenCount::on_failed(RequestId request, const Failure& failure) {
  id_ = {};
  Answer::on_failed(request, failure);
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
