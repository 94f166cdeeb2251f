#include "orchestrator/http/dialect.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include <nlohmann/json.hpp>

#include "ipc/sampler_advice.hpp"
#include "orchestrator/http/choice.hpp"

namespace bulkhead::orchestrator {

DialectAnswer::DialectAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
                             std::shared_ptr<Exchange> exchange, GenerationRequest request,
                             std::unique_ptr<Dialect> dialect)
    : ConnectedAnswer(services, std::move(endpoint), refuse, std::move(exchange)),
      request_(std::move(request)) {
  answers_.push_back({.dialect = std::move(dialect)});
}

void DialectAnswer::start(std::size_t model, std::chrono::seconds timeout) {
  head_ = {true, answers_[0].dialect->new_id(), std::time(nullptr),
           services_.router.models()[model].id};
  exchange_->take_request_id(head_.id);
  begin(timeout);
  add_warnings(*exchange_, request_.warnings);
  resolve(request_, services_.router.models()[model]);
  ipc::Sampling sampling = request_.parameters.sampling;
  ipc::take_advice(advice_of(services_.router.models()[model]), request_.parameters.open_samplers,
                   sampling);
  answers_[0].dialect->note_sampling(sampling);
  const std::size_t count = request_.prompts.size() * request_.n;
  for (std::uint32_t i = 1; i < count; ++i)
    answers_.push_back({.dialect = answers_[0].dialect->another(i)});
  if (!hold_prompts(request_)) return;
  start_each(model, count, [this, model](std::size_t index) {
    Prompt& prompt = request_.prompts[index / request_.n];
    const std::size_t bytes = bytes_of(prompt) + bytes_of_parameters(request_.parameters);
    ipc::Submit submit = request_.parameters;
    submit.prompt = (index + 1) % request_.n == 0 ? std::move(prompt) : prompt;
    submit.sampling.seed += index % request_.n;
    answers_[index].request = services_.router.start(model, std::move(submit), *this);
    return bytes;
  });
}

DialectAnswer::Running* DialectAnswer::find(RequestId request) {
  const auto found = std::ranges::find(answers_, request, &Running::request);
  return found == answers_.end() || over() ? nullptr : &*found;
}

void DialectAnswer::on_warnings(RequestId, std::span<const std::string> warnings) {
  if (!streaming_) add_warnings(*exchange_, warnings);
}

void DialectAnswer::on_accepted(RequestId request, std::span<const ipc::TokenId> prompt_tokens) {
  Running* const running = find(request);
  if (running == nullptr) return;
  running->usage.prompt_tokens = prompt_tokens.size();
  running->accepted = true;
  std::string events;
  running->dialect->begin(head_, running->usage, events);
  send(events);
  if (!request_.stream) return;
  begin_stream_in_time({.count = answers_.size(),
                        .n = request_.n,
                        .accepted = [this](std::size_t index) { return answers_[index].accepted; },
                        .begin =
                            [this] {
                              exchange_->begin_stream(answers_[0].dialect->content_type(),
                                                      answers_.size());
                              send(std::exchange(held_, {}));
                            },
                        .send = [this] { send(answers_[0].dialect->keep_alive()); }});
}

void DialectAnswer::on_tokens(const ipc::SequenceTokensView& view) {
  Running* const running = find(view.request);
  if (running == nullptr) return;
  tokens_came(running->last_tokens, view.tokens.size());
  if (running->first_tokens == Clock::time_point{}) running->first_tokens = running->last_tokens;
  running->usage.completion_tokens += view.tokens.size();
  running->dialect->note_tokens(view.tokens, view.logprobs);
  add(*running, view.text, view.parts);
}

void DialectAnswer::add(Running& running, std::string_view text,
                        std::span<const ipc::AnswerPart> parts) {
  running.calls_tools =
      running.calls_tools ||
      std::ranges::find(parts, ipc::PartKind::kCall, &ipc::AnswerPart::kind) != parts.end();
  std::string events;
  if (request_.hide_reasoning) {
    running.dialect->add(text, without_reasoning(parts), events);
  } else {
    running.dialect->add(text, parts, events);
  }
  send(events);
}

void DialectAnswer::on_finished(RequestId request, const ipc::Finished& finished) {
  Running* const running = find(request);
  if (running == nullptr) return;
  running->request = {};
  running->done = true;
  queue_ended(running->first_tokens, finished);
  running->usage.cached_tokens = finished.cached_tokens;
  running->usage.reasoning_tokens = finished.reasoning_tokens;
  if (!finished.text.empty() || !finished.parts.empty())
    add(*running, finished.text, finished.parts);
  std::string events;
  const ipc::FinishReason told =
      running->dialect->end(finished.reason, finished.stopped_by, running->usage, events);
  if (!std::ranges::all_of(answers_, &Running::done)) return send(events);
  finish(answers_.size() == 1 ? finish_reason_name(told, running->calls_tools) : "all", events);
}

void DialectAnswer::on_failed(RequestId request, const Failure& failure) {
  // find() returns null if the request had ended already when an exception made it fail.
  if (Running* const running = find(request)) running->request = {};
  Answer::on_failed(request, failure);
}

std::string DialectAnswer::whole() {
  if (answers_.size() == 1) return answers_[0].dialect->whole();
  std::string all;
  for (const Running& each : answers_)
    all += (all.empty() ? '[' : ',') + each.dialect->whole();
  return all + ']';
}

std::string DialectAnswer::failure(const ApiError& error) {
  std::string events;
  answers_[0].dialect->fail(error, events);
  return events;
}

void DialectAnswer::send(const std::string& events) {
  if (!request_.stream || events.empty()) return;
  if (!streaming_) {
    held_ += events;
    return;
  }
  stream_spoke();
  exchange_->write(events);
}

void DialectAnswer::cancel() {
  for (Running& each : answers_) {
    if (each.request != RequestId{})
      services_.router.cancel(std::exchange(each.request, RequestId{}));
  }
}

Answer::Facts DialectAnswer::facts() const {
  Usage all;
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    const Usage& each = answers_[i].usage;
    if (i % request_.n == 0) {  // a prompt counts once, however many answers it has
      all.prompt_tokens += each.prompt_tokens;
      all.cached_tokens += each.cached_tokens;
    }
    all.completion_tokens += each.completion_tokens;
    all.reasoning_tokens += each.reasoning_tokens;
  }
  return {head_.id, head_.model, request_.stream, answers_.size(), all};
}

std::vector<RequestId> DialectAnswer::unfinished() const {
  std::vector<RequestId> requests;
  for (const Running& each : answers_) {
    if (each.request != RequestId{}) requests.push_back(each.request);
  }
  return requests;
}

// ---- counting ----

void TokenCount::start(std::size_t model, GenerationRequest request, std::chrono::seconds timeout) {
  begin(timeout);
  resolve(request, services_.router.models()[model]);
  if (!hold_prompts(request)) return;
  ipc::Submit submit = std::move(request.parameters);
  submit.prompt = std::move(request.prompts.front());
  submit.max_tokens = 1;
  submit.count_only = true;
  id_ = services_.router.start(model, std::move(submit), *this);
}

void TokenCount::on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) {
  tokens_ = prompt_tokens.size();
}

void TokenCount::on_finished(RequestId, const ipc::Finished&) {
  id_ = {};
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

std::string as_invalid_json(std::string_view arguments) {
  std::string out = "{\"INVALID_JSON\":";
  append_json_string(out, arguments);
  return out + "}";
}

namespace {

void replace_quoted(std::string& text, const std::string& name, std::string_view own) {
  const std::string quoted = "'" + name + "'";
  if (const std::size_t at = text.find(quoted); at != std::string::npos)
    text.replace(at + 1, name.size(), own);
}

}  // namespace

ApiError with_own_names(ApiError error, std::span<const FieldName> names) {
  const std::string path = error.parameter;
  for (const FieldName& name : names) {
    const bool inside = name.chat.starts_with('.');
    const std::size_t at = path.find(name.chat);
    const std::size_t end = at + name.chat.size();
    if (at == std::string::npos || (!inside && at != 0)) continue;
    if (end != path.size() && path[end] != '.' && path[end] != '[') continue;
    error.parameter.replace(at, name.chat.size(), name.own);
    replace_quoted(error.message, path, error.parameter);
    break;
  }
  // Such a message quotes the other field, too. Other messages may quote what the client wrote.
  if (error.code == "invalid_combination") {
    for (const FieldName& name : names)
      replace_quoted(error.message, std::string(name.chat), name.own);
  }
  return error;
}

}  // namespace bulkhead::orchestrator
