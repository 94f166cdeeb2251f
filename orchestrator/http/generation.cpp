#include "orchestrator/http/generation.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/random.hpp"

namespace bulkhead::orchestrator {

Generation::Generation(AnswerServices& services, std::string endpoint, RefusalForm refuse,
                       std::shared_ptr<Exchange> exchange, GenerationRequest request)
    : ConnectedAnswer(services, std::move(endpoint), refuse, std::move(exchange)),
      request_(std::move(request)),
      emit_([this](std::string_view event) {
        if (streaming_) {
          stream_spoke();
          exchange_->write(event);
        } else {
          held_ += event;
        }
      }) {}

void Generation::start(std::size_t model, std::chrono::seconds timeout) {
  head_.chat = request_.chat;
  head_.id = fmt::format("{}-{:016x}", request_.chat ? "chatcmpl" : "cmpl", random_u64());
  exchange_->take_request_id(head_.id);
  begin(timeout);
  head_.created = std::time(nullptr);
  head_.model = services_.router.models()[model].id;
  resolve(request_, services_.router.models()[model]);

  const ChoiceOptions options{
      request_.stream,
      request_.include_usage,
      request_.return_token_ids,
      request_.parameters.logprobs,
      request_.echo,
      request_.hide_reasoning,
  };
  const auto count = static_cast<std::uint32_t>(request_.prompts.size()) * request_.n;
  for (std::uint32_t i = 0; i < count; ++i)
    choices_.push_back({Choice(head_, options, i, i % request_.n == 0, echoed(i / request_.n))});
  if (!hold_prompts(request_)) return;
  start_each(model, count, [this, model](std::size_t index) {
    Prompt& prompt = request_.prompts[index / request_.n];
    const std::size_t bytes = bytes_of(prompt) + bytes_of_parameters(request_.parameters);
    ipc::Submit submit = request_.parameters;
    // If the prompt is a text, the echo repeats it as the client sent it.
    submit.tell_prompt =
        request_.echo && (submit.logprobs >= 0 || echoed(index / request_.n).empty());
    submit.prompt = (index + 1) % request_.n == 0 ? std::move(prompt) : prompt;
    submit.sampling.seed += index % request_.n;
    choices_[index].request = services_.router.start(model, std::move(submit), *this);
    return bytes;
  });
}

Generation::Running* Generation::find(RequestId request) {
  auto found = std::ranges::find(choices_, request, &Running::request);
  return found == choices_.end() || over() ? nullptr : &*found;
}

void Generation::on_warnings(RequestId, std::span<const std::string> warnings) {
  if (!streaming_) add_warnings(*exchange_, warnings);
}

void Generation::on_accepted(RequestId request, std::span<const ipc::TokenId> prompt_tokens) {
  Running* running = find(request);
  if (running == nullptr) return;
  if (head_.fingerprint.empty())
    head_.fingerprint = system_fingerprint(services_.router.identity(request));
  running->choice.accepted(prompt_tokens, emit_);
  if (!request_.stream) return;
  begin_stream_in_time(
      {.count = choices_.size(),
       .n = request_.n,
       .accepted = [this](std::size_t index) { return choices_[index].choice.is_accepted(); },
       .begin =
           [this] {
             exchange_->begin_stream(kEventStream, choices_.size());
             if (!held_.empty()) exchange_->write(std::exchange(held_, {}));
           },
       .send = [this] { exchange_->write(kSseComment); }});
}

std::string Generation::echoed(std::size_t prompt) const {
  const auto* text = std::get_if<std::string>(&request_.prompts[prompt]);
  return request_.echo && text != nullptr ? *text : std::string();
}

void Generation::on_prompt_tokens(RequestId request, std::span<const ipc::TokenLogprob> tokens) {
  if (Running* running = find(request)) running->choice.prompt_tokens(tokens, emit_);
}

void Generation::on_tokens(const ipc::SequenceTokensView& view) {
  Running* running = find(view.request);
  if (running == nullptr) return;
  tokens_came(running->last_tokens, view.tokens.size());
  if (running->first_tokens == Clock::time_point{}) running->first_tokens = running->last_tokens;
  running->choice.tokens(view, emit_);
}

void Generation::on_finished(RequestId request, const ipc::Finished& finished) {
  auto self = shared_from_this();
  Running* running = find(request);
  if (running == nullptr) return;
  running->request = {};
  queue_ended(running->first_tokens, finished);
  running->choice.finished(finished, emit_);
  if (!std::ranges::all_of(choices_, [](const Running& each) { return each.choice.is_done(); }))
    return;
  std::string last_events = request_.include_usage ? sse_usage(head_, usage()) : std::string();
  last_events += kSseDone;
  finish(choices_.size() == 1 ? choices_.front().choice.finish_reason() : "all", last_events);
}

std::string Generation::whole() {
  std::vector<ChoicePart> parts;
  for (Running& each : choices_)
    parts.push_back(each.choice.whole());
  return answer_body(head_, parts, usage());
}

void Generation::on_failed(RequestId request, const Failure& failure) {
  // find() returns null if the request had ended already when an exception made it fail.
  if (Running* running = find(request)) running->request = {};
  Answer::on_failed(request, failure);
}

void Generation::cancel() {
  for (Running& each : choices_) {
    if (each.request != RequestId{})
      services_.router.cancel(std::exchange(each.request, RequestId{}));
  }
}

Usage Generation::usage() const {
  Usage usage;
  for (const Running& each : choices_)
    each.choice.add_to(usage);
  return usage;
}

Answer::Facts Generation::facts() const {
  return {head_.id, head_.model, request_.stream, choices_.size(), usage()};
}

std::vector<RequestId> Generation::unfinished() const {
  std::vector<RequestId> requests;
  for (const Running& each : choices_) {
    if (each.request != RequestId{}) requests.push_back(each.request);
  }
  return requests;
}

}  // namespace bulkhead::orchestrator
