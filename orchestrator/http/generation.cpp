#include "orchestrator/http/generation.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/random.hpp"
#include "orchestrator/http/errors.hpp"

namespace bulkhead::orchestrator {

Generation::Generation(EventLoop& loop, Router& router, Metrics& metrics,
                       std::shared_ptr<Exchange> exchange, GenerationRequest request,
                       std::function<void()> finished)
    : router_(router),
      metrics_(metrics),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      finished_(std::move(finished)),
      deadline_(loop),
      began_(Clock::now()) {}

void Generation::start(std::size_t model, std::chrono::seconds timeout) {
  head_.chat = request_.chat;
  head_.id = fmt::format("{}-{:016x}", request_.chat ? "chatcmpl" : "cmpl", random_u64());
  head_.created = std::time(nullptr);
  head_.model = router_.models()[model].id;
  if (!request_.has_seed) request_.parameters.sampling.seed = random_u64();

  auto weak = weak_from_this();
  exchange_->on_lost = [weak](Exchange::Lost lost) {
    auto self = weak.lock();
    if (self == nullptr || self->over_) return;
    bool slow = lost == Exchange::Lost::kTooSlow;
    slow ? self->metrics_.slow_client() : self->metrics_.client_hang_up();
    self->cancel_all();
    self->end(499, slow ? "client too slow" : "client hung up");
  };
  deadline_.start(timeout, [this, timeout] {
    ApiError error =
        to_api_error({FailureKind::kTimeout,
                      fmt::format("The request took more than {} s (server.request_timeout_s).",
                                  timeout.count()),
                      ""});
    fail(error);
  });

  std::uint32_t count = static_cast<std::uint32_t>(request_.prompts.size()) * request_.n;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t top = static_cast<std::uint32_t>(std::max(request_.parameters.logprobs, 0));
    Choice choice{.index = i,
                  .request = {},
                  .prompt_ids = {},
                  .tokens = {},
                  .text = {},
                  .logprobs = LogprobsJson(request_.chat, top),
                  .logprobs_text = {},
                  .finish_reason = {},
                  .last_tokens = {}};
    choice.counts_prompt = i % request_.n == 0;
    choices_.push_back(std::move(choice));
  }
  for (Choice& choice : choices_) {
    ipc::Submit submit = request_.parameters;
    submit.prompt = request_.prompts[choice.index / request_.n];
    submit.sampling.seed += choice.index % request_.n;
    choice.request = router_.start(model, std::move(submit), *this);
  }
  request_.prompts.clear();  // the journal has them
}

Generation::Choice* Generation::find(RequestId request) {
  auto found = std::ranges::find(choices_, request, &Choice::request);
  return found == choices_.end() ? nullptr : &*found;
}

void Generation::send(std::string_view events) {
  if (streaming_) {
    exchange_->write(events);
  } else {
    held_ += events;
  }
}

ChoicePart Generation::part(Choice& choice, std::string_view text,
                            std::span<const ipc::TokenId> tokens) {
  ChoicePart part;
  part.index = choice.index;
  part.text = text;
  if (request_.return_token_ids) {
    part.token_ids = tokens;
    if (choice.counts_prompt && !std::exchange(choice.told_prompt, true))
      part.prompt_token_ids = &choice.prompt_ids;
  }
  return part;
}

void Generation::on_accepted(RequestId request, std::span<const ipc::TokenId> prompt_tokens) {
  Choice* choice = find(request);
  if (choice == nullptr || over_) return;
  choice->accepted = true;
  choice->prompt_tokens = prompt_tokens.size();
  if (request_.return_token_ids)
    choice->prompt_ids.assign(prompt_tokens.begin(), prompt_tokens.end());
  if (request_.stream && request_.chat) {
    ChoicePart role = part(*choice, "", {});
    role.role = true;
    send(sse_chunk(head_, role, request_.include_usage));
  }
  begin_if_accepted();
}

void Generation::begin_if_accepted() {
  if (!request_.stream || streaming_ || !std::ranges::all_of(choices_, &Choice::accepted)) return;
  streaming_ = true;
  exchange_->begin_stream(head_.id);
  if (!held_.empty()) exchange_->write(std::exchange(held_, {}));
}

void Generation::on_tokens(RequestId request, std::span<const ipc::TokenId> tokens,
                           std::string_view text, std::span<const ipc::TokenLogprob> logprobs) {
  Choice* choice = find(request);
  if (choice == nullptr || over_) return;
  Clock::time_point now = Clock::now();
  if (first_token_ == Clock::time_point{}) {
    first_token_ = now;
    metrics_.first_token(now - began_);
  }
  if (choice->last_tokens != Clock::time_point{})
    metrics_.next_tokens(now - choice->last_tokens, tokens.size());
  choice->last_tokens = now;
  choice->tokens.insert(choice->tokens.end(), tokens.begin(), tokens.end());
  if (!logprobs.empty()) choice->logprobs.add(logprobs);
  if (!request_.stream) {
    choice->text += text;
    return;
  }
  std::string logprobs_text = logprobs.empty() ? "" : choice->logprobs.take();
  // Tokens that released no text yet are worth a chunk only to those who asked for something else
  // about them.
  if (text.empty() && logprobs.empty() && !request_.return_token_ids) return;
  ChoicePart piece = part(*choice, text, tokens);
  piece.logprobs = logprobs_text;
  send(sse_chunk(head_, piece, request_.include_usage));
}

void Generation::on_finished(RequestId request, const ipc::Finished& finished,
                             const JournalEntry&) {
  const std::string_view rest = finished.text;
  auto self = shared_from_this();
  Choice* choice = find(request);
  if (choice == nullptr || over_) return;
  choice->request = {};
  choice->done = true;
  choice->finish_reason = finish_reason_name(finished.reason);
  choice->cached_tokens = finished.cached_tokens;
  if (request_.stream) {
    if (!rest.empty()) send(sse_chunk(head_, part(*choice, rest, {}), request_.include_usage));
    ChoicePart last = part(*choice, "", {});
    last.finish_reason = choice->finish_reason;
    send(sse_chunk(head_, last, request_.include_usage));
  } else {
    choice->text += rest;
    if (request_.parameters.logprobs >= 0) choice->logprobs_text = choice->logprobs.take();
  }
  if (!std::ranges::all_of(choices_, &Choice::done)) return;

  if (request_.stream) {
    if (request_.include_usage) send(sse_usage(head_, usage()));
    send(kSseDone);
    exchange_->on_lost = nullptr;
    exchange_->end_stream(false);
  } else {
    std::vector<ChoicePart> parts;
    for (Choice& each : choices_) {
      parts.push_back(part(each, each.text, each.tokens));
      parts.back().logprobs = each.logprobs_text;
      parts.back().finish_reason = each.finish_reason;
    }
    HttpResponse response;
    response.body = answer_body(head_, parts, usage());
    exchange_->on_lost = nullptr;
    respond(std::move(response));
  }
  end(200, choices_.size() == 1 ? choices_.front().finish_reason : "all");
}

void Generation::on_failed(RequestId request, const Failure& failure) {
  Choice* choice = find(request);
  if (choice == nullptr || over_) return;
  choice->request = {};
  fail(to_api_error(failure));
}

void Generation::on_answer(RequestId, const ipc::FromWorker&) {}

void Generation::fail(const ApiError& error) {
  auto self = shared_from_this();
  cancel_all();
  exchange_->on_lost = nullptr;
  if (streaming_) {
    exchange_->write(sse_error(error));
    exchange_->end_stream(true);
  } else {
    respond(to_response(error));
  }
  end(error.status, error.code);
}

void Generation::respond(HttpResponse response) {
  response.headers.emplace_back("X-Request-Id", head_.id);
  exchange_->respond(std::move(response));
}

void Generation::cancel_all() {
  for (Choice& choice : choices_) {
    if (choice.request != RequestId{}) router_.cancel(std::exchange(choice.request, RequestId{}));
  }
}

Usage Generation::usage() const {
  Usage usage;
  for (const Choice& choice : choices_) {
    if (choice.counts_prompt) {
      usage.prompt_tokens += choice.prompt_tokens;
      usage.cached_tokens += choice.cached_tokens;
    }
    usage.completion_tokens += choice.tokens.size();
  }
  return usage;
}

void Generation::end(int status, std::string_view how) {
  over_ = true;
  deadline_.cancel();
  Usage used = usage();
  Clock::time_point now = Clock::now();
  auto ms = [](Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
  const char* endpoint = request_.chat ? "/v1/chat/completions" : "/v1/completions";
  metrics_.request_done(endpoint, status);
  metrics_.tokens(used.prompt_tokens, used.completion_tokens);
  metrics_.request_duration(now - began_);
  bool any_token = first_token_ != Clock::time_point{};
  spdlog::info(
      "request id={} endpoint={} model=\"{}\" stream={} choices={} status={} end=\"{}\" "
      "prompt_tokens={} cached_tokens={} completion_tokens={} "
      "ttft_ms={:.1f} total_ms={:.1f}",
      head_.id, endpoint, head_.model, request_.stream, choices_.size(), status, how,
      used.prompt_tokens, used.cached_tokens, used.completion_tokens,
      any_token ? ms(first_token_ - began_) : -1.0, ms(now - began_));
  finished_();
}

}  // namespace bulkhead::orchestrator
