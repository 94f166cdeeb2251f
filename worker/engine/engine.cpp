#include "worker/engine/engine.hpp"

#include <algorithm>
#include <cmath>

namespace bulkhead::engine {
namespace {

// Whatever ipc.flush_tokens says: a record must fit the smallest ring.
constexpr std::uint32_t kMostUnsent = 64;
constexpr std::uint32_t kMostUnsentWithLogprobs = 4;
// However slow the device is: a step of one column takes not much less.
constexpr std::uint32_t kLeastPrefillChunk = 4;

std::uint64_t microseconds(Clock::duration duration) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(
      0, std::chrono::duration_cast<std::chrono::microseconds>(duration).count()));
}

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
    default:
      return ipc::FailureCode::kInternal;
  }
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

// What the prefix cache saved. Prompt tokens that a sequence computes anew after it lost its pages
// count again, found or not.
void add_prefix_figures(const Scheduler& scheduler, ipc::Stats& stats) {
  const PrefixFigures& figures = scheduler.prefix_figures();
  const auto add = [&](const char* name, auto value) {
    stats.counters.push_back({name, static_cast<double>(value)});
  };
  add("prefix_cache_hit_tokens_total", figures.hit_tokens);
  add("prefix_cache_miss_tokens_total", figures.miss_tokens);
  add("prefix_cache_hit_pages_total", figures.hit_pages);
  add("prefix_cache_miss_pages_total", figures.miss_pages);
  add("prefix_cache_pages", scheduler.pool().cached_pages());
  add("prefix_cache_evictions_total", scheduler.pool().evictions());
  const std::uint64_t tokens = figures.hit_tokens + figures.miss_tokens;
  add("prefix_cache_hit_ratio",
      tokens == 0 ? 0.0 : static_cast<double>(figures.hit_tokens) / static_cast<double>(tokens));
}

}  // namespace

struct Engine::Request : Sequence {
  RequestId id;
  std::uint64_t ticket = 0;  // with the tokenizer's thread; 0: not there
  ipc::Sampling sampling;
  std::int32_t wanted_logprobs = -1;
  bool ignore_eos = false;
  bool chat = false;
  std::uint32_t max_tokens = 0;   // as asked; then resolved
  std::vector<TokenId> accepted;  // until start()
  std::uint32_t prompt_tokens = 0;
  std::uint32_t accepted_count = 0;  // generated before this worker knew the request
  std::uint32_t generated = 0;       // in all
  std::uint32_t delivered = 0;       // of those, sent
  TokenHistory history;
  TextStream text;
  ipc::SequenceTokens unsent;
  std::uint32_t flush_tokens = 1;
  bool any_sent = false;  // by this worker
  ipc::Finished finished;
  bool started = false;
  Clock::time_point started_at, first_token_at;
};

Engine::Engine(Executor& executor, const Language& language, EngineOptions options, Emit emit)
    : executor_(executor),
      language_(language),
      options_(std::move(options)),
      emit_(std::move(emit)),
      scheduler_(executor.limits(), options_.scheduler),
      sampler_(executor.limits().vocabulary),
      preparer_(language) {
  // Many columns take less than as many single ones.
  if (const std::uint32_t step_us = executor.limits().step_us; step_us > 0) {
    const auto columns = 2 * std::chrono::microseconds(options_.longest_step).count() / step_us;
    scheduler_.set_prefill_chunk(std::max(
        kLeastPrefillChunk, static_cast<std::uint32_t>(std::min<std::int64_t>(columns, 1 << 20))));
  }
}

Engine::~Engine() = default;

void Engine::submit(ipc::Submit submit) {
  const RequestId id = submit.request;
  if (draining_) {
    return fail(id, ipc::FailureCode::kResourceExhausted,
                "this worker is being drained; try again");
  }
  if (requests_.contains(id)) {
    return fail(id, ipc::FailureCode::kInternal, "the request's number is in use already");
  }
  if (const Status status = check_sampling(submit.sampling); !status.ok()) {
    const std::string& message = status.error().message();
    return fail(id, ipc::FailureCode::kInvalidRequest, message,
                message.substr(0, message.find(' ')));
  }
  auto owned = std::make_unique<Request>();
  Request& request = *owned;
  request.id = id;
  request.sampling = submit.sampling;
  request.wanted_logprobs = submit.logprobs;
  request.ignore_eos = submit.ignore_eos;
  request.max_tokens = submit.max_tokens;
  request.accepted = std::move(submit.accepted_tokens);
  request.text = TextStream(std::move(submit.stop));
  requests_.emplace(id, std::move(owned));

  if (auto* tokens = std::get_if<std::vector<TokenId>>(&submit.prompt)) {
    return start(request, std::move(*tokens));
  }
  request.ticket = ++last_ticket_;
  tickets_.emplace(request.ticket, id);
  if (auto* messages = std::get_if<std::vector<ipc::ChatMessage>>(&submit.prompt)) {
    request.chat = true;
    preparer_.submit({request.ticket, Preparer::Chat{std::move(*messages)}});
  } else {
    preparer_.submit(
        {request.ticket, Preparer::Text{std::move(std::get<std::string>(submit.prompt))}});
  }
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
  drop(request);
  emit_(message);
  say_drained();
}

void Engine::tokenize(ipc::Tokenize job) {
  jobs_.emplace(++last_ticket_, PlainJob{job.request, false});
  preparer_.submit({last_ticket_, std::move(job)});
}

void Engine::detokenize(ipc::Detokenize job) {
  jobs_.emplace(++last_ticket_, PlainJob{job.request, true});
  preparer_.submit({last_ticket_, std::move(job)});
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
  if (jobs_.contains(outcome.ticket)) return prepared_job(outcome);
  const auto ticket = tickets_.find(outcome.ticket);
  if (ticket == tickets_.end()) return;  // cancelled meanwhile
  Request& request = *requests_.at(ticket->second);
  tickets_.erase(ticket);
  request.ticket = 0;
  if (outcome.status.ok()) return start(request, std::move(outcome.tokens));
  const RequestId id = request.id;
  const char* parameter = request.chat ? "messages" : "prompt";
  drop(request);
  fail(id, failure_code(outcome.status.error()), outcome.status.error().message(), parameter);
}

void Engine::prepared_job(const Preparer::Outcome& outcome) {
  const PlainJob job = jobs_.at(outcome.ticket);
  jobs_.erase(outcome.ticket);
  ipc::FromWorker answer;
  if (job.detokenize) {
    answer = ipc::Detokenized{job.request, outcome.text};
  } else {
    answer = ipc::Tokenized{job.request, outcome.tokens};
  }
  if (!outcome.status.ok()) {
    fail(job.request, failure_code(outcome.status.error()), outcome.status.error().message());
  } else if (ipc::encoded_bound(answer) > options_.max_message_bytes) {
    fail(job.request, ipc::FailureCode::kResourceExhausted,
         "the answer has " + std::to_string(ipc::encoded_bound(answer)) +
             " bytes and the channel takes " + std::to_string(options_.max_message_bytes) +
             "; send less at once, or raise ipc.ring_kib");
  } else {
    emit_(answer);
    say_drained();
  }
}

void Engine::start(Request& request, std::vector<TokenId> prompt) {
  const RequestId id = request.id;
  const std::uint32_t limit = scheduler_.sequence_limit();
  const std::uint32_t vocabulary = executor_.limits().vocabulary;
  const auto refuse = [&](ipc::FailureCode code, std::string message) {
    const char* parameter = request.chat ? "messages" : "prompt";
    drop(request);
    fail(id, code, std::move(message), parameter);
  };
  if (prompt.empty()) {
    return refuse(ipc::FailureCode::kInvalidRequest,
                  "the prompt is empty: it needs a token at least");
  }
  if (prompt.size() >= limit) {
    const ExecutorLimits& limits = executor_.limits();
    const bool cache = limit < std::max(limits.context, limits.asked_context);
    return refuse(ipc::FailureCode::kContextExceeded,
                  "prompt has " + std::to_string(prompt.size()) + " tokens; the " +
                      (cache ? "KV cache holds " : "context is ") + std::to_string(limit) +
                      ", and the answer needs one at least; shorten the prompt" +
                      (cache                          ? " or raise engine.kv_cache_mb"
                       : limit < limits.model_context ? " or raise the model's `context`"
                                                      : ": the model allows no more"));
  }
  Status known = check_tokens(prompt, vocabulary, "prompt token");
  if (known.ok()) known = check_tokens(request.accepted, vocabulary, "accepted token");
  if (!known.ok()) return refuse(ipc::FailureCode::kInvalidRequest, known.error().message());

  request.prompt_tokens = static_cast<std::uint32_t>(prompt.size());
  const std::uint32_t room = limit - request.prompt_tokens;
  request.max_tokens = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);
  ipc::FromWorker accepted = ipc::Accepted{id, std::move(prompt), request.max_tokens};
  if (ipc::encoded_bound(accepted) > options_.max_message_bytes) {
    return refuse(ipc::FailureCode::kResourceExhausted,
                  "the prompt's " + std::to_string(request.prompt_tokens) +
                      " token ids don't fit the channel; raise ipc.ring_kib");
  }
  emit_(accepted);

  request.most_tokens = request.prompt_tokens + request.max_tokens;
  request.tokens = std::move(std::get<ipc::Accepted>(accepted).prompt_tokens);
  request.tokens.reserve(request.most_tokens);
  const bool row = !logprobs_on_device(request) || request.sampling.temperature != 0 ||
                   has_penalties(request.sampling);
  request.output = row ? Output::kLogits : Output::kGreedy;
  if (draws_on_device(request)) {
    const ipc::Sampling& sampling = request.sampling;
    request.output = Output::kSampled;
    request.choice = {sampling.temperature, sampling.top_k, sampling.top_p,
                      sampling.min_p,       sampling.seed,  request.prompt_tokens};
  }
  request.logprobs = request.wanted_logprobs;
  request.history = TokenHistory(request.sampling, vocabulary, request.most_tokens);
  request.history.add_prompt(request.tokens);
  request.flush_tokens = std::min(
      options_.flush_tokens, request.wanted_logprobs >= 0 ? kMostUnsentWithLogprobs : kMostUnsent);
  request.finished.request = id;
  request.unsent.request = id;
  prompt_tokens_ += request.prompt_tokens;
  const std::vector<TokenId> before = std::move(request.accepted);
  resume(request, before);
}

// A row of logits that nothing on the host looks at.
bool Engine::draws_on_device(const Request& request) const {
  const std::uint32_t most = executor_.limits().sampled_top_k;
  const ipc::Sampling& sampling = request.sampling;
  return most > 0 && sampling.temperature != 0 && !has_penalties(sampling) &&
         logprobs_on_device(request) &&
         (sampling.top_k <= most || sampling.top_k >= executor_.limits().vocabulary);
}

// Those that it wants, if any.
bool Engine::logprobs_on_device(const Request& request) const {
  return request.wanted_logprobs <= executor_.limits().most_logprobs;
}

void Engine::resume(Request& request, std::span<const TokenId> accepted) {
  // Generated before, by a worker that died, and sent: their text is not sent again, but decides
  // what is held back.
  std::string sent_before;
  bool stopped = false;
  if (!accepted.empty()) ++resumed_requests_;
  for (const TokenId token : accepted) {
    request.tokens.push_back(token);
    request.history.add_generated(token);
    ++request.generated;
    stopped = request.text.push(language_.tokenizer->piece(token), sent_before);
    if (stopped || request.generated == request.max_tokens) break;
  }
  request.accepted_count = request.generated;
  request.delivered = request.generated;
  request.unsent.first_index = request.generated;
  request.started_at = request.first_token_at = options_.now();
  if (stopped) {
    finish(request, ipc::FinishReason::kStop);
  } else if (request.generated >= request.max_tokens) {
    finish(request, ipc::FinishReason::kLength);
  } else {
    return scheduler_.add(request);
  }
  flush_now_ = false;  // nobody's tokens wait for this
  emit_finished();
}

Result<bool> Engine::turn(const std::function<void()>& meanwhile) {
  poll();
  const Clock::time_point begin = options_.now();
  BULKHEAD_RETURN_IF_ERROR(submit_steps());
  if (scheduler_.in_flight() == 0) {
    flush_all();
    return false;
  }
  meanwhile();
  poll();
  // The wait can't be interrupted: what would get too old during it goes now.
  if (!pending_.empty() && begin + usual_step_ > oldest_pending_ + options_.flush_interval)
    flush_all();
  const auto waited = executor_.wait();
  const StepFacts& ended = step_facts_[steps_ended_++ % step_facts_.size()];
  if (!waited.ok()) return waited.error().within(ended.name(steps_ended_));
  const std::span<const ColumnOutput> outputs = *waited;
  const Clock::time_point end = options_.now();
  usual_step_ = usual_step_.count() == 0 ? end - begin : (usual_step_ * 3 + (end - begin)) / 4;
  device_time_ += end - begin;
  pace_prefill(ended.columns, end - begin);
  scheduler_.complete();
  last_step_ = scheduler_.step_number();
  handle_outputs(outputs);
  if (flush_now_ || flush_due(options_.now())) flush_all();
  return true;
}

void Engine::pace_prefill(std::uint32_t columns, std::chrono::nanoseconds took) {
  const std::uint32_t chunk = scheduler_.prefill_chunk();
  if (columns < chunk / 2) return;  // says little of a whole chunk
  if (took > options_.longest_step) {
    const double share = std::chrono::duration<double>(options_.longest_step) / took;
    scheduler_.set_prefill_chunk(
        std::max(kLeastPrefillChunk, static_cast<std::uint32_t>(share * chunk)));
  } else if (took < options_.longest_step / 4) {
    scheduler_.set_prefill_chunk(chunk * 2);
  }
}

std::string Engine::StepFacts::name(std::uint64_t number) const {
  return "step " + std::to_string(number) + " (" + std::to_string(columns) + " columns of " +
         std::to_string(sequences) + " sequences)";
}

// As many as the executor takes: while the host looks at one step's tokens, the device is at the
// next.
Status Engine::submit_steps() {
  if (profile_wanted_) {
    if (scheduler_.in_flight() > 0) return {};
    profile_wanted_ = false;
    BULKHEAD_RETURN_IF_ERROR(executor_.profile());
  }
  while (scheduler_.in_flight() < std::max(1U, executor_.limits().steps_in_flight)) {
    const Step* step = scheduler_.plan();
    if (step == nullptr) return {};
    mark_started();
    step_columns_ += step->columns.size();
    StepFacts& facts = step_facts_[steps_submitted_++ % step_facts_.size()];
    facts = {static_cast<std::uint32_t>(step->columns.size()),
             static_cast<std::uint32_t>(step->sequences.size())};
    if (const Status submitted = executor_.submit(*step); !submitted.ok())
      return submitted.error().within(facts.name(steps_submitted_));
    if (scheduler_.in_flight() > 1) ++steps_ahead_;
  }
  return {};
}

void Engine::mark_started() {
  for (const Scheduler::Member& member : scheduler_.planned_members()) {
    auto& request = static_cast<Request&>(*member.sequence);
    if (request.started) continue;
    request.started = true;
    request.started_at = request.first_token_at = options_.now();
  }
}

// Outputs of sequences that are gone, most often past their end, concern nobody: they were neither
// drawn nor counted.
void Engine::handle_outputs(std::span<const ColumnOutput> outputs) {
  for (const ColumnOutput& output : outputs) {
    Sequence* sequence = scheduler_.sequence_of(output.column);
    if (sequence != nullptr) {
      handle_output(static_cast<Request&>(*sequence), output);
    } else {
      ++discarded_outputs_;
    }
  }
}

void Engine::handle_output(Request& request, const ColumnOutput& output) {
  TokenId token = output.best;
  const char* failure = nullptr;
  std::string message;
  if (request.output == Output::kSampled && request.generated < request.accepted_count)
    ++draws_below_accepted_;
  if (request.output != Output::kLogits) {
    if (!std::isfinite(output.best_logprob) || token >= executor_.limits().vocabulary) {
      failure = "the model's logits are not finite numbers; its weights may be damaged";
    }
  } else {
    if (request.generated < request.accepted_count) ++draws_below_accepted_;
    const auto sampled =
        sampler_.sample(output.logits, request.sampling, request.history, request.generated);
    if (sampled.ok()) {
      token = *sampled;
    } else {
      message = sampled.error().message();
      failure = message.c_str();
    }
  }
  if (failure != nullptr) {
    const RequestId id = request.id;
    std::string text = failure;
    drop(request);
    return fail(id, ipc::FailureCode::kInternal, std::move(text));
  }
  if (request.generated == request.accepted_count) request.first_token_at = options_.now();
  if (!request.ignore_eos && language_.tokenizer->ends_generation(token)) {
    return finish(request, ipc::FinishReason::kStop);
  }
  if (request.wanted_logprobs >= 0) record_logprobs(request, output, token);
  take_token(request, token);
}

void Engine::take_token(Request& request, TokenId token) {
  request.tokens.push_back(token);
  request.history.add_generated(token);
  ++request.generated;
  ++generated_tokens_;
  if (request.unsent.tokens.empty()) {
    if (pending_.empty()) oldest_pending_ = options_.now();
    pending_.push_back(&request);
  }
  request.unsent.tokens.push_back(token);
  const bool stopped = request.text.push(language_.tokenizer->piece(token), request.unsent.text);
  if (!request.any_sent || request.unsent.tokens.size() >= request.flush_tokens) flush_now_ = true;
  if (stopped) {
    finish(request, ipc::FinishReason::kStop);
  } else if (request.generated >= request.max_tokens) {
    finish(request, ipc::FinishReason::kLength);
  }
}

void Engine::record_logprobs(Request& request, const ColumnOutput& output, TokenId token) {
  const auto wanted = static_cast<std::uint32_t>(request.wanted_logprobs);
  const Sampler::Logprobs logprobs = output.logits.empty()
                                         ? Sampler::Logprobs{output.logprob, output.top}
                                         : sampler_.logprobs(output.logits, token, wanted);
  ipc::TokenLogprob& entry = request.unsent.logprobs.emplace_back();
  entry.logprob = logprobs.chosen;
  entry.bytes = language_.tokenizer->piece(token);
  entry.top.reserve(logprobs.best.size());
  for (const RankedToken& ranked : logprobs.best) {
    entry.top.push_back(
        {ranked.token, ranked.value, std::string(language_.tokenizer->piece(ranked.token))});
  }
}

void Engine::finish(Request& request, ipc::FinishReason reason) {
  ipc::Finished& message = request.finished;
  const Clock::time_point now = options_.now();
  // An end without a stop string lets go of what was held back, which can complete one (a broken
  // character's U+FFFD). After a stop string there is nothing left to let go of.
  if (request.text.finish(message.text)) reason = ipc::FinishReason::kStop;
  message.reason = reason;
  message.prompt_tokens = request.prompt_tokens;
  message.completion_tokens = request.generated;
  message.cached_tokens = std::min(request.adopted, request.prompt_tokens);
  message.prefill_microseconds = microseconds(request.first_token_at - request.started_at);
  message.decode_microseconds = microseconds(now - request.first_token_at);
  scheduler_.remove(request);
  finished_.push_back(&request);
  flush_now_ = true;
}

void Engine::fail(RequestId id, ipc::FailureCode code, std::string message, std::string parameter) {
  emit_(ipc::Failed{id, code, std::move(message), std::move(parameter)});
  say_drained();
}

void Engine::drop(Request& request) {
  scheduler_.remove(request);
  std::erase(pending_, &request);
  if (request.ticket != 0) tickets_.erase(request.ticket);
  requests_.erase(request.id);
}

bool Engine::flush_due(Clock::time_point now) const {
  return !pending_.empty() && now >= oldest_pending_ + options_.flush_interval;
}

void Engine::flush_all() {
  flush_now_ = false;
  emit_batch();
  emit_finished();
}

void Engine::emit_batch() {
  if (pending_.empty()) return;
  auto& batch = std::get<ipc::TokenBatch>(batch_);
  batch.step = last_step_;
  for (Request* request : pending_) {
    request->delivered += static_cast<std::uint32_t>(request->unsent.tokens.size());
    request->any_sent = true;
    std::swap(batch.sequences.emplace_back(), request->unsent);
  }
  if (batch.sequences.size() > 1 && ipc::encoded_bound(batch_) > options_.max_message_bytes) {
    for (ipc::SequenceTokens& sequence : batch.sequences) {
      emit_(ipc::TokenBatch{batch.step, {sequence}});
      ++batches_;
    }
  } else {
    emit_(batch_);
    ++batches_;
  }
  // The buffers go back to their requests, emptied but not freed.
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    ipc::SequenceTokens& unsent = pending_[i]->unsent;
    std::swap(batch.sequences[i], unsent);
    unsent.first_index += static_cast<std::uint32_t>(unsent.tokens.size());
    unsent.tokens.clear();
    unsent.text.clear();
    unsent.logprobs.clear();
  }
  batch.sequences.clear();
  pending_.clear();
}

void Engine::emit_finished() {
  if (finished_.empty()) return;
  for (Request* request : finished_) {
    emit_(request->finished);
    drop(*request);
  }
  finished_.clear();
  say_drained();
}

ipc::Stats Engine::stats() const {
  ipc::Stats stats;
  stats.steps = scheduler_.steps();
  stats.active_sequences = static_cast<std::uint32_t>(scheduler_.running());
  stats.waiting_sequences = static_cast<std::uint32_t>(scheduler_.waiting() + tickets_.size());
  stats.kv_pages_used = scheduler_.pool().used_pages();
  stats.kv_pages_total = scheduler_.pool().total_pages();
  const auto add = [&](const char* name, double value) { stats.counters.push_back({name, value}); };
  add("prompt_tokens_total", static_cast<double>(prompt_tokens_));
  add("generated_tokens_total", static_cast<double>(generated_tokens_));
  add("step_columns_total", static_cast<double>(step_columns_));
  add("step_seconds_total", std::chrono::duration<double>(device_time_).count());
  add("token_batches_total", static_cast<double>(batches_));
  add("preemptions_total", static_cast<double>(scheduler_.preemptions()));
  add("resumed_requests_total", static_cast<double>(resumed_requests_));
  add("steps_ahead_total", static_cast<double>(steps_ahead_));
  add("discarded_outputs_total", static_cast<double>(discarded_outputs_));
  add("draws_below_accepted_total", static_cast<double>(draws_below_accepted_));
  add_prefix_figures(scheduler_, stats);
  for (const Executor::Counter& counter : executor_.counters()) {
    stats.counters.push_back({counter.name, counter.value});
  }
  return stats;
}

}  // namespace bulkhead::engine
