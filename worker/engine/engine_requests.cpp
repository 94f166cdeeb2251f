// Turns what the daemon asks for into sequences of the scheduler: tokenizes and checks texts, answers Accepted, and
// restores what a resumed request had before.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "ipc/sampler_advice.hpp"
#include "worker/engine/engine_request.hpp"
#include "worker/engine/forced_source.hpp"

namespace bulkhead::engine {
namespace {

// A record must fit the smallest ring, whatever ipc.flush_tokens says.
constexpr std::uint32_t kMostUnsent = 64;
constexpr std::uint32_t kMostUnsentWithLogprobs = 4;

ipc::FailureCode failure_code(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
      return ipc::FailureCode::kInvalidRequest;
    case ErrorCode::kUnsupported:
      return ipc::FailureCode::kUnsupported;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kUnavailable:
      return ipc::FailureCode::kResourceExhausted;
    case ErrorCode::kCorrupt:
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kDeviceLost:
    case ErrorCode::kInternal:
      return ipc::FailureCode::kInternal;
  }
  return ipc::FailureCode::kInternal;
}

Status check_tokens(std::span<const TokenId> tokens, std::uint32_t vocabulary, const char* what) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= vocabulary) {
      return Error(ErrorCode::kInvalidArgument,
                   std::string(what) + " " + std::to_string(tokens[i]) + " at index " +
                       std::to_string(i) + " is not in the model's vocabulary of " +
                       std::to_string(vocabulary) + " tokens");
    }
  }
  return {};
}

// Makes these tokens impossible, whatever the request asks for.
void forbid_tokens(std::span<const TokenId> tokens, std::vector<ipc::TokenBias>& biases) {
  for (const TokenId token : tokens) {
    std::erase_if(biases, [token](const ipc::TokenBias& each) { return each.token == token; });
    biases.push_back({token, -kMostEdited});
  }
}

}  // namespace

void Engine::submit(ipc::Submit submit) {
  const RequestId id = submit.request;
  if (draining_) {
    return fail(id, ipc::FailureCode::kResourceExhausted, kDraining);
  }
  if (requests_.contains(id)) {
    return fail(id, ipc::FailureCode::kInternal, "the request's number is in use already");
  }
  if (const std::string refusal = cant_generate(); !refusal.empty())
    return fail(id, ipc::FailureCode::kUnsupported, refusal, "model");
  ipc::take_advice(options_.sampler_advice, submit.open_samplers, submit.sampling);
  if (const Status status = check_sampling(submit.sampling); !status.ok()) {
    const std::string& message = status.error().message();
    return fail(id, ipc::FailureCode::kInvalidRequest, message,
                message.substr(0, message.find(' ')));
  }
  if (std::holds_alternative<std::vector<ipc::ChatMessage>>(submit.prompt)) {
    return fail(id, ipc::FailureCode::kUnsupported, "an older build began this chat; send it again",
                "messages");
  }
  auto owned = std::make_unique<Request>();
  Request& request = *owned;
  request.id = id;
  request.sampling = submit.sampling;
  request.wanted_logprobs = submit.logprobs;
  // An answer with a constraint ends where the constraint lets it end.
  request.ignore_eos = submit.ignore_eos && submit.constraint.kind == ipc::ConstraintKind::kNone &&
                       submit.tool_choice == ipc::ToolChoice::kAuto;
  request.max_tokens = submit.max_tokens;
  request.accepted = std::move(submit.accepted_tokens);
  request.text = TextStream(std::move(submit.stop));
  request.bias = std::move(submit.logit_bias);
  if (language_.tokenizer != nullptr) forbid_tokens(language_.tokenizer->forbidden(), request.bias);
  request.stop_tokens = std::move(submit.stop_tokens);
  request.tell_prompt = submit.tell_prompt;
  request.prompt_only = submit.prompt_only;
  request.count_only = submit.count_only;
  requests_.emplace(id, std::move(owned));

  auto* tokens = std::get_if<std::vector<TokenId>>(&submit.prompt);
  if (tokens != nullptr && submit.constraint.kind == ipc::ConstraintKind::kNone)
    return start(request, std::move(*tokens));
  request.ticket = ++last_ticket_;
  tickets_.emplace(request.ticket, id);
  Preparer::Job job{request.ticket, {}, std::move(submit.constraint)};
  if (tokens != nullptr) {
    job.work = Preparer::Tokens{std::move(*tokens)};
  } else if (auto* chat = std::get_if<ipc::ChatPrompt>(&submit.prompt)) {
    request.chat = true;
    job.work = Preparer::Chat{.prompt = std::move(*chat),
                              .seed = submit.sampling.seed,
                              .one_call = submit.one_call,
                              .tool_choice = submit.tool_choice,
                              .tool_name = std::move(submit.tool_name),
                              .reasoning_budget = submit.reasoning_budget,
                              .allowed_tools = std::move(submit.allowed_tools)};
  } else if (auto* infill = std::get_if<ipc::InfillPrompt>(&submit.prompt)) {
    job.work = std::move(*infill);
  } else {
    job.work = Preparer::Text{std::move(std::get<std::string>(submit.prompt))};
  }
  preparer_.submit(std::move(job));
}

void Engine::cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  if (std::find(finished_.begin(), finished_.end(), &request) != finished_.end()) return;
  ipc::Finished message;
  message.request = id;
  message.reason = ipc::FinishReason::kCancelled;
  message.prompt_tokens = request.prompt_tokens;
  message.completion_tokens = request.delivered;  // tokens that nobody saw were never generated
  counts_.add("cancelled_requests_total");
  drop(request);
  emit_(message);
  say_drained();
}

void Engine::answer(ipc::Question question) {
  const auto id = [](const auto& asked) { return asked.request; };
  questions_.emplace(++last_ticket_, std::visit(id, question));
  preparer_.submit({last_ticket_, std::move(question)});
}

void Engine::drain() {
  draining_ = true;
  say_drained();
}

void Engine::say_drained() {
  if (!draining_ || drained_ || outstanding() > 0) return;
  drained_ = true;
  emit_(ipc::Drained{});
}

void Engine::poll() {
  while (auto outcome = preparer_.take())
    prepared(std::move(*outcome));
}

void Engine::prepared(Preparer::Outcome outcome) {
  if (questions_.contains(outcome.ticket)) return answered(outcome);
  const auto ticket = tickets_.find(outcome.ticket);
  if (ticket == tickets_.end()) return;  // the request was cancelled meanwhile
  Request& request = *requests_.at(ticket->second);
  tickets_.erase(ticket);
  request.ticket = 0;
  request.constraint = std::move(outcome.constraint);
  request.reader = std::move(outcome.reader);
  if (outcome.status.ok())
    return start(request, std::move(outcome.tokens), std::move(outcome.warnings));
  const RequestId id = request.id;
  std::string parameter = std::move(outcome.parameter);
  if (parameter.empty()) parameter = prompt_field(request);
  drop(request);
  fail(id, failure_code(outcome.status.error()), outcome.status.error().message(),
       std::move(parameter));
}

void Engine::answered(const Preparer::Outcome& outcome) {
  const RequestId request = questions_.extract(outcome.ticket).mapped();
  if (!outcome.status.ok()) {
    fail(request, failure_code(outcome.status.error()), outcome.status.error().message(),
         outcome.parameter);
  } else if (ipc::encoded_bound(*outcome.answer) > options_.max_message_bytes) {
    fail(request, ipc::FailureCode::kResourceExhausted,
         "the answer has " + std::to_string(ipc::encoded_bound(*outcome.answer)) +
             " bytes and the channel takes " + std::to_string(options_.max_message_bytes) +
             "; send less at once, or raise ipc.ring_kib");
  } else {
    emit_(*outcome.answer);
    say_drained();
  }
}

const char* Engine::prompt_field(const Request& request) {
  if (request.chat) return "messages";
  if (request.ranks) return "documents";
  return request.pools ? "input" : "prompt";
}

std::optional<Engine::Refusal> Engine::refusal_of(const Request& request,
                                                  std::span<const TokenId> prompt) const {
  const std::uint32_t limit = scheduler_.sequence_limit();
  const std::uint32_t vocabulary = executor_.limits().vocabulary;
  const auto invalid = [](std::string message, const char* parameter = "") {
    return Refusal{ipc::FailureCode::kInvalidRequest, std::move(message), parameter};
  };
  if (prompt.empty()) return invalid("the prompt is empty: it needs a token at least");
  if (prompt.size() + (request.pools ? 0 : 1) > limit) {
    const ExecutorLimits& limits = executor_.limits();
    const bool cache = limit < std::max(limits.context, limits.asked_context);
    // Claude Code, litellm and others look for "prompt is too long" and "model's maximum context length is" to learn
    // that they must shorten a conversation.
    return Refusal{ipc::FailureCode::kContextExceeded,
                   "this model's maximum context length is " + std::to_string(limit) + " tokens" +
                       (cache ? " (the KV cache holds no more)" : "") +
                       ", and the prompt is too long: it has " + std::to_string(prompt.size()) +
                       (request.pools ? "" : ", and the answer needs one at least") +
                       "; shorten the prompt" +
                       (cache                          ? " or raise engine.kv_cache_mb"
                        : limit < limits.model_context ? " or raise the model's `context`"
                                                       : ": the model allows no more")};
  }
  Status known = check_tokens(prompt, vocabulary, "prompt token");
  if (known.ok()) known = check_tokens(request.accepted, vocabulary, "accepted token");
  if (!known.ok()) return invalid(known.error().message());
  for (const ipc::TokenBias& bias : request.bias) {
    known = check_tokens(std::span(&bias.token, 1), vocabulary, "biased token");
    if (!known.ok()) return invalid(known.error().message(), "logit_bias");
  }
  known = check_tokens(request.stop_tokens, vocabulary, "stop token");
  if (!known.ok()) return invalid(known.error().message(), "stop");
  return std::nullopt;
}

void Engine::refuse(Request& request, Refusal refusal) {
  const RequestId id = request.id;
  if (*refusal.parameter == '\0') refusal.parameter = prompt_field(request);
  drop(request);
  fail(id, refusal.code, std::move(refusal.message), refusal.parameter);
}

void Engine::start(Request& request, std::vector<TokenId> prompt,
                   std::vector<std::string> warnings) {
  const RequestId id = request.id;
  const std::uint32_t limit = scheduler_.sequence_limit();
  if (request.truncates) truncate(prompt);
  if (std::optional<Refusal> refusal = refusal_of(request, prompt))
    return refuse(request, *std::move(refusal));
  request.prompt_tokens = request.own_from = static_cast<std::uint32_t>(prompt.size());
  const std::uint32_t room = limit - request.prompt_tokens;
  request.max_tokens = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);
  if (request.pools) {
    request.tokens = std::move(prompt);
    request.output = Output::kHidden;
    const bool mean = options_.pooling == Pooling::kMean && !request.ranks;
    if (mean) request.prompt_output = Output::kHidden;
    request.prompt_length = request.most_tokens = request.prompt_tokens;
    counts_.add("prompt_tokens_total", request.prompt_tokens);
    return scheduler_.add(request);
  }
  const std::uint32_t vocabulary = executor_.limits().vocabulary;
  const std::uint32_t most_edits = TokenHistory::most_edits(
      request.sampling, request.bias, vocabulary, request.prompt_tokens, request.max_tokens);
  if (const Status reserved = reserve_rows(request, most_edits); !reserved.ok()) {
    return refuse(request, {ipc::FailureCode::kResourceExhausted,
                            "too little memory for an answer whose logits are changed: " +
                                reserved.error().message()});
  }
  ipc::FromWorker accepted =
      ipc::Accepted{id, std::move(prompt), request.max_tokens, std::move(warnings)};
  if (ipc::encoded_bound(accepted) > options_.max_message_bytes) {
    return refuse(request, {ipc::FailureCode::kResourceExhausted,
                            "the prompt's " + std::to_string(request.prompt_tokens) +
                                " token ids don't fit the channel; raise ipc.ring_kib"});
  }
  emit_(accepted);
  if (request.count_only) {
    ipc::Finished counted;
    counted.request = id;
    counted.reason = ipc::FinishReason::kLength;
    counted.prompt_tokens = request.prompt_tokens;
    drop(request);
    emit_(counted);
    return say_drained();
  }

  request.most_tokens = request.prompt_tokens + request.max_tokens;
  request.tokens = std::move(std::get<ipc::Accepted>(accepted).prompt_tokens);
  request.tokens.reserve(request.most_tokens);
  if (request.prompt_only) request.most_tokens = request.prompt_tokens + 1;
  const ipc::Sampling& sampling = request.sampling;
  request.choice = {sampling.temperature, sampling.top_k, sampling.top_p,
                    sampling.min_p,       sampling.seed,  request.prompt_tokens};
  request.adjusted = device_adjusts(request);
  request.edited = request.adjusted && request.edits_logits();
  request.may_ask_otherwise = request.constraint != nullptr && !request.adjusted;
  request.logprobs = request.prompt_only ? -1 : request.wanted_logprobs;
  request.history = TokenHistory(request.sampling, request.bias, vocabulary, most_edits);
  request.history.add_prompt(request.tokens);
  request.most_unsent = request.wanted_logprobs >= 0 ? kMostUnsentWithLogprobs : kMostUnsent;
  request.flush_tokens = std::min(options_.flush_tokens, request.most_unsent);
  request.finished.request = id;
  request.unsent.request = request.untold.request = id;
  if (request.tell_prompt) begin_telling(request);
  counts_.add("prompt_tokens_total", request.prompt_tokens);
  const std::vector<TokenId> before = std::move(request.accepted);
  resume(request, before);
}

// Sends the prompt's tokens all at once if the request asks for no log-probabilities. Otherwise the engine sends
// each token as soon as the position before it is computed.
void Engine::begin_telling(Request& request) {
  tell_prompt_token(request, {});
  if (request.scores_prompt()) {
    request.prompt_output = Output::kLogits;
    request.prompt_length = request.prompt_tokens;
    return;
  }
  while (request.told < request.prompt_tokens)
    tell_prompt_token(request, {});
}

void Engine::score_prompt(Request& request, const ColumnOutput& output, std::uint32_t position) {
  // The client has the other positions already: a sequence that lost its pages computes them again.
  if (position + 1 != request.told) return;
  if (!std::isfinite(output.best_logprob)) {
    if (compute_again(request)) return;
    const RequestId id = request.id;
    drop(request);
    return fail(id, ipc::FailureCode::kInternal, kNotFinite);
  }
  tell_prompt_token(request,
                    sampler_.logprobs(output.logits, request.tokens[position + 1],
                                      static_cast<std::uint32_t>(request.wanted_logprobs)));
}

void Engine::tell_prompt_token(Request& request, const Sampler::Logprobs& logprobs) {
  ipc::PromptTokens& untold = request.untold;
  untold.tokens.push_back(entry_of(request.tokens[request.told], logprobs));
  ++request.told;
  const std::size_t most = request.wanted_logprobs >= 0 ? kMostUnsentWithLogprobs : kMostUnsent;
  if (untold.tokens.size() < most && request.told < request.prompt_tokens) return;
  emit_(untold);
  untold.first_index = request.told;
  untold.tokens.clear();
}

// The host gets the row of logits only if it has something to do with them. If the device can't adjust logits, it may
// still choose the tokens that no constraint holds.
Output Engine::next_output(Request& request) const {
  if (request.prompt_only) return Output::kGreedy;
  const bool held =
      request.constraint != nullptr && !request.adjusted && !request.constraint->is_free();
  if (held || draws_on_host(request)) return Output::kLogits;
  return request.sampling.temperature == 0 ? Output::kGreedy : Output::kSampled;
}

// Says whether the host draws the request's tokens even while no constraint holds the next one.
bool Engine::draws_on_host(const Request& request) const {
  const ExecutorLimits& limits = executor_.limits();
  if (request.edits_logits() && !limits.adjusts) return true;
  if (!logprobs_on_device(request)) return true;
  const ipc::Sampling& sampling = request.sampling;
  if (sampling.temperature == 0) return false;
  const bool fits = sampling.top_k <= limits.sampled_top_k || sampling.top_k >= limits.vocabulary;
  return limits.sampled_top_k == 0 || !fits;
}

// Says whether the device draws the request's tokens from logits that the request has changed: under the masks of its
// constraint, or with its biases and penalties.
bool Engine::device_adjusts(const Request& request) const {
  return (request.constraint != nullptr || request.edits_logits()) && executor_.limits().adjusts &&
         !request.prompt_only && !request.pools && !draws_on_host(request);
}

bool Engine::may_want_logits(const Request& request) const {
  if (request.pools) return false;
  if (request.scores_prompt()) return true;
  if (request.prompt_only || device_adjusts(request)) return false;
  return request.constraint != nullptr || draws_on_host(request);
}

// Reserves the memory before the engine accepts the request, so that no step fails because memory
// is short.
Status Engine::reserve_rows(Request& request, std::uint32_t most_edits) {
  const ExecutorLimits& limits = executor_.limits();
  if (device_adjusts(request)) {
    std::uint64_t edits = 0;
    for (const auto& each : requests_)
      edits += each.second->device_edits;
    BULKHEAD_RETURN_IF_ERROR(executor_.reserve_adjustments(edits + most_edits));
    request.device_edits = most_edits;
  }
  if (!may_want_logits(request)) return {};
  std::size_t outputs = limits.max_outputs;
  if (!request.scores_prompt()) {
    const auto wanting = std::ranges::count_if(
        requests_, [&](const auto& each) { return may_want_logits(*each.second); });
    outputs = static_cast<std::size_t>(wanting) + (speculator_.on() ? limits.max_drafts : 0);
  }
  return executor_.reserve_logits(
      static_cast<std::uint32_t>(std::min<std::size_t>(outputs, limits.max_outputs)));
}

// Says whether the device computes the log-probabilities that the request asks for, if it asks for
// any.
bool Engine::logprobs_on_device(const Request& request) const {
  return request.wanted_logprobs <= executor_.limits().most_logprobs;
}

void Engine::start_drafts(Request& request) {
  if (!speculator_.on() || request.prompt_only) return;
  speculator_.start(request, options_.draft_source
                                 ? options_.draft_source(request.tokens)
                                 : std::make_unique<NgramSource>(request.most_tokens));
  if (request.constraint != nullptr) {
    request.drafting.forced =
        std::make_unique<ForcedSource>(*request.constraint, *language_.tokenizer);
  }
}

void Engine::resume(Request& request, std::span<const TokenId> accepted) {
  // A worker that died has generated and sent these tokens. Their text is not sent again, but decides which text is
  // held back.
  std::string sent_before;
  std::vector<ipc::AnswerPart> parts_before;
  bool stopped = false;
  if (!accepted.empty()) counts_.add("resumed_requests_total");
  for (const TokenId token : accepted) {
    request.tokens.push_back(token);
    request.history.add_generated(token);
    ++request.generated;
    if (request.constraint != nullptr) request.constraint->advance(token);
    stopped = read_token(request, token, sent_before, parts_before);
    if (stopped || request.generated == request.max_tokens) break;
  }
  request.accepted_count = request.generated;
  request.delivered = request.generated;
  request.unsent.first_index = request.generated;
  request.started_at = request.first_token_at = options_.now();
  if (stopped || (request.constraint != nullptr && request.constraint->complete())) {
    finish(request, ipc::FinishReason::kStop);
  } else if (request.generated >= request.max_tokens) {
    finish(request, ipc::FinishReason::kLength);
  } else {
    request.output = next_output(request);
    start_drafts(request);
    return scheduler_.add(request);
  }
  flush_now_ = false;  // no sequence's tokens wait for this
  emit_finished();
}

}  // namespace bulkhead::engine
