// Runs turns: from planned steps to tokens, and from tokens to messages. engine_requests.cpp turns requests into
// sequences.
#include <algorithm>
#include <cmath>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/worker_figures.hpp"
#include "worker/engine/engine_request.hpp"

namespace bulkhead::engine {
namespace {

// The smallest chunk, however slow the device is: a step of one column takes little less time.
constexpr std::uint32_t kLeastPrefillChunk = 4;

std::uint64_t microseconds(Clock::duration duration) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(
      0, std::chrono::duration_cast<std::chrono::microseconds>(duration).count()));
}

}  // namespace

Engine::Engine(Executor& executor, const Language& language, EngineOptions options, Emit emit)
    : executor_(executor),
      language_(language),
      options_(std::move(options)),
      emit_(std::move(emit)),
      scheduler_(executor.limits(), options_.scheduler),
      guard_(executor, scheduler_.pool(), options_.check_memory, [this] { return options_.now(); }),
      sampler_(executor.limits().vocabulary),
      speculator_(executor.limits().max_drafts > 0 ? options_.speculation : Speculation::kOff),
      preparer_(language) {
  scheduler_.set_grow([this](std::uint32_t slab) { return grow_cache(slab); });
  for (const PageKind kind : kPageKinds)
    use_of(kind).needed_at.resize(scheduler_.pool().slabs(kind).count());
  slabs_leave_after_.resize(executor.limits().slab_numbers());
  for (const std::uint32_t slab : executor.present_slabs()) {
    note_slab_added(slab, options_.now());
    scheduler_.take_slab(slab);
  }
  scheduler_.set_ledger(&guard_);
  scheduler_.set_state_ledger(&guard_);
  if (options_.draft_model != nullptr && speculator_.on()) {
    draft_model_ =
        std::make_unique<DraftModel>(*options_.draft_model, executor.limits().vocabulary);
    speculator_.set_model(draft_model_.get());
  }
  // One step of many columns takes less time than as many steps of one column.
  if (const std::uint32_t step_us = executor.limits().step_us; step_us > 0) {
    const auto columns = 2 * std::chrono::microseconds(options_.longest_step).count() / step_us;
    scheduler_.limit_prefill(std::max(
        kLeastPrefillChunk, static_cast<std::uint32_t>(std::min<std::int64_t>(columns, 1 << 20))));
  }
}

Engine::~Engine() = default;

Result<bool> Engine::turn(const std::function<void()>& meanwhile) {
  poll();
  const Clock::time_point begin = options_.now();
  BULKHEAD_RETURN_IF_ERROR(submit_steps());
  if (scheduler_.in_flight() == 0) {
    speculator_.forget_model_time();
    BULKHEAD_RETURN_IF_ERROR(guard_.start(steps_submitted_));
    BULKHEAD_RETURN_IF_ERROR(look_at_memory(PageGuard::kAll));
    flush_all();
    return false;
  }
  meanwhile();
  poll();
  // The wait can't be interrupted, so tokens that would become too old during it are sent now.
  if (!pending_.empty() && begin + usual_step_ > oldest_pending_ + options_.flush_interval)
    flush_all();
  make_masks();
  constexpr std::uint32_t kSilence_ms = 500;
  for (;;) {
    BULKHEAD_TRY(const bool ended, executor_.ended(kSilence_ms));
    if (ended) break;
    meanwhile();
  }
  const auto waited = executor_.wait();
  const StepFacts& ended = step_facts_[steps_ended_++ % step_facts_.size()];
  if (!waited.ok()) return waited.error().within(ended.name(steps_ended_));
  const std::span<const ColumnOutput> outputs = *waited;
  if (executor_.lost()) counts_.add("requests_computed_again_total", scheduler_.lose_step());
  // The engine takes no results of the step before it knows that the pages were unchanged.
  BULKHEAD_RETURN_IF_ERROR(look_at_memory(steps_ended_));
  const Clock::time_point end = options_.now();
  usual_step_ = usual_step_.count() == 0 ? end - begin : (usual_step_ * 3 + (end - begin)) / 4;
  device_time_ += end - begin;
  pace_prefill(ended.columns, end - begin);
  scheduler_.complete();
  const Clock::duration took = end - step_ended_.value_or(begin);
  scheduler_.took(took - speculator_.model_time());
  last_step_ = scheduler_.step_number();
  const std::uint64_t tokens_before = counts_["generated_tokens_total"];
  handle_outputs(outputs);
  if (ended.generates) {
    speculator_.ended(
        {ended.columns - ended.drafts, ended.drafts,
         static_cast<std::uint32_t>(counts_["generated_tokens_total"] - tokens_before), took});
  } else {
    speculator_.forget_model_time();
  }
  step_ended_ = runnable() ? std::optional(end) : std::nullopt;
  if (flush_now_ || flush_due(options_.now())) flush_all();
  return true;
}

void Engine::pace_prefill(std::uint32_t columns, std::chrono::nanoseconds took) {
  const std::uint32_t limit = scheduler_.prefill_limit();
  if (columns < std::min(limit, scheduler_.prefill_chunk()) / 2)
    return;  // this says little about a whole chunk
  if (took > options_.longest_step) {
    const double share = std::chrono::duration<double>(options_.longest_step) / took;
    scheduler_.limit_prefill(
        std::max(kLeastPrefillChunk, static_cast<std::uint32_t>(share * std::min(limit, columns))));
  } else if (took < options_.longest_step / 4) {
    scheduler_.limit_prefill(limit * 2);
  }
}

std::string Engine::StepFacts::name(std::uint64_t number) const {
  return "step " + std::to_string(number) + " (" + std::to_string(columns) + " columns of " +
         std::to_string(sequences) + " sequences)";
}

// Submits as many steps as the executor takes: while the host looks at one step's tokens, the device computes the
// next step.
Status Engine::submit_steps() {
  BULKHEAD_RETURN_IF_ERROR(plan_and_submit());
  return executor_.flush();
}

Status Engine::plan_and_submit() {
  BULKHEAD_RETURN_IF_ERROR(give_adjustments());
  if (profile_wanted_) {
    if (scheduler_.in_flight() > 0) return {};
    profile_wanted_ = false;
    BULKHEAD_RETURN_IF_ERROR(executor_.profile());
  }
  while (adjusted_step_ == nullptr &&
         scheduler_.in_flight() < std::max(1U, executor_.limits().steps_in_flight)) {
    BULKHEAD_TRY(const bool may_plan, ask_draft_model());
    if (!may_plan) return {};
    speculator_.propose(scheduler_);
    const Step* step = scheduler_.plan();
    if (step == nullptr) return {};
    mark_started();
    counts_.add("step_columns_total", step->columns.size());
    StepFacts& facts = step_facts_[steps_submitted_++ % step_facts_.size()];
    facts = {static_cast<std::uint32_t>(step->columns.size()),
             static_cast<std::uint32_t>(step->sequences.size()), scheduler_.planned_drafts(),
             std::ranges::none_of(step->columns, [](const Column& column) {
               return column.output == Output::kNone;
             })};
    BULKHEAD_RETURN_IF_ERROR(guard_.start(steps_submitted_));
    if (const Status submitted = executor_.submit(*step); !submitted.ok())
      return submitted.error().within(facts.name(steps_submitted_));
    if (scheduler_.in_flight() > 1) counts_.add("steps_ahead_total");
    if (std::ranges::any_of(step->columns, &Column::adjusted)) adjusted_step_ = step;
    BULKHEAD_RETURN_IF_ERROR(give_adjustments());
  }
  return {};
}

// Asks the draft model for guesses if they are worth their time. Returns false if it is to be asked once the steps in
// flight have ended.
Result<bool> Engine::ask_draft_model() {
  if (draft_model_ == nullptr) return true;
  const std::uint32_t rounds = speculator_.rounds_of_model(scheduler_);
  if (rounds == 0) return true;
  if (scheduler_.in_flight() > 0) return false;
  // The guesses take a part of a step's time.
  const Clock::time_point now = options_.now();
  if (!pending_.empty() && now + usual_step_ > oldest_pending_ + options_.flush_interval)
    flush_all();
  BULKHEAD_RETURN_IF_ERROR(speculator_.ask_model(rounds, options_.now));
  return true;
}

void Engine::mark_started() {
  for (const Scheduler::Member& member : scheduler_.planned_members()) {
    auto& request = static_cast<Request&>(*member.sequence);
    if (request.started) continue;
    request.started = true;
    request.started_at = request.first_token_at = options_.now();
  }
}

// Outputs of sequences that are gone, most often after their end, are ignored: they were neither drawn nor counted.
void Engine::handle_outputs(std::span<const ColumnOutput> outputs) {
  std::erase_if(failed_masks_, [this](const FailedMask& each) { return each.step < steps_ended_; });
  for (const ColumnOutput& output : outputs) {
    Sequence* sequence = scheduler_.sequence_of(output.column);
    if (sequence == nullptr) {
      counts_.add("discarded_outputs_total");
      continue;
    }
    auto& request = static_cast<Request&>(*sequence);
    const std::uint32_t position = scheduler_.position_of(output.column);
    if (request.pools) {
      take_hidden(request, output, position);
    } else if (position + 1 < request.prompt_length) {
      score_prompt(request, output, position);
    } else {
      check_draft(request, output);
    }
  }
}

// An output after a wrong guess is of no use, because its column computed another token than the sequence has. One
// that was drawn under another mask than the constraint's is of no use either.
void Engine::check_draft(Request& request, const ColumnOutput& output) {
  const bool draft = scheduler_.is_draft(output.column);
  const bool right =
      (!draft || drawn_under_its_mask(request, output.column)) && scheduler_.confirm(output.column);
  if (draft) speculator_.checked(request, right);
  if (!right) return;
  // The tokens that drafts bring at once must fit one record, too.
  if (request.unsent.tokens.size() >= request.most_unsent) flush_all();
  handle_output(request, output);
}

void Engine::handle_output(Request& request, const ColumnOutput& output) {
  TokenId token = output.best;
  const char* failure = mask_failure(output.column);
  std::string message;
  const bool finite = std::isfinite(output.best_logprob);
  if (!finite && compute_again(request)) return;
  if (request.output == Output::kSampled && request.generated < request.accepted_count)
    counts_.add("draws_below_accepted_total");
  if (request.output != Output::kLogits) {
    if (!finite || token >= executor_.limits().vocabulary) {
      failure = kNotFinite;
    }
  } else {
    if (request.generated < request.accepted_count) counts_.add("draws_below_accepted_total");
    const auto sampled = sample(request, output.logits);
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
  if (request.prompt_only) return finish(request, ipc::FinishReason::kLength);
  if (request.generated == request.accepted_count) request.first_token_at = options_.now();
  const bool ends = !request.ignore_eos && language_.tokenizer->ends_generation(token);
  if (ends || std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end()) {
    return finish(request, ipc::FinishReason::kStop);
  }
  if (request.wanted_logprobs >= 0) record_logprobs(request, output, token);
  take_token(request, token, output.hidden);
}

// Computes the request again. What made its outputs invalid may have been a passing fault, or may be in its pages, so
// the first time it is computed in other pages. The second time this returns false, and the engine checks the
// weights.
bool Engine::compute_again(Request& request) {
  counts_.add("nonfinite_outputs_total");
  if (std::exchange(request.computed_again, true)) {
    guard_.doubt_weights();
    return false;
  }
  spdlog::warn("the model's outputs for a request are not finite numbers: it is computed again");
  counts_.add("requests_computed_again_total");
  scheduler_.compute_again(request);
  return true;
}

Result<TokenId> Engine::sample(Request& request, std::span<const float> logits) {
  Adjustment adjustment{{}, request.history.edits()};
  if (request.constraint != nullptr) {
    BULKHEAD_TRY(adjustment.mask, request.constraint->mask());
  }
  return sampler_.sample(logits, request.sampling, request.generated, adjustment);
}

void Engine::take_token(Request& request, TokenId token, std::span<const float> hidden) {
  request.tokens.push_back(token);
  speculator_.appended(request, hidden);
  request.history.add_generated(token);
  ++request.generated;
  counts_.add("generated_tokens_total");
  if (request.unsent.tokens.empty()) {
    if (pending_.empty()) oldest_pending_ = options_.now();
    pending_.push_back(&request);
  }
  request.unsent.tokens.push_back(token);
  bool stopped = read_token(request, token, request.unsent.text, request.unsent.parts);
  if (request.constraint != nullptr) {
    request.constraint->advance(token);
    stopped = stopped || request.constraint->complete();
  }
  if (!request.any_sent || request.unsent.tokens.size() >= request.flush_tokens) flush_now_ = true;
  if (stopped) return finish(request, ipc::FinishReason::kStop);
  if (request.generated >= request.max_tokens) return finish(request, ipc::FinishReason::kLength);
  if (request.constraint == nullptr || request.adjusted) return;
  if (const Output output = next_output(request); output != request.output)
    scheduler_.ask(request, output);
}

bool Engine::read_token(Request& request, TokenId token, std::string& text,
                        std::vector<ipc::AnswerPart>& parts) {
  if (request.reader == nullptr) return request.text.push(language_.tokenizer->piece(token), text);
  std::string released;
  const bool stopped = request.text.push(request.reader->text_of(token), released);
  const bool over = request.reader->feed(released, parts);
  request.cut_call = stopped && !over && request.reader->in_call();
  return over || stopped;
}

void Engine::record_logprobs(Request& request, const ColumnOutput& output, TokenId token) {
  const auto wanted = static_cast<std::uint32_t>(request.wanted_logprobs);
  const Sampler::Logprobs logprobs = output.logits.empty()
                                         ? Sampler::Logprobs{output.logprob, output.top}
                                         : sampler_.logprobs(output.logits, token, wanted);
  request.unsent.logprobs.push_back(entry_of(token, logprobs));
}

ipc::TokenLogprob Engine::entry_of(TokenId token, const Sampler::Logprobs& logprobs) const {
  ipc::TokenLogprob entry;
  entry.logprob = logprobs.chosen;
  entry.bytes = language_.tokenizer->piece(token);
  entry.top.reserve(logprobs.best.size());
  for (const RankedToken& ranked : logprobs.best) {
    entry.top.push_back(
        {ranked.token, ranked.value, std::string(language_.tokenizer->piece(ranked.token))});
  }
  return entry;
}

void Engine::finish(Request& request, ipc::FinishReason reason) {
  ipc::Finished& message = request.finished;
  const Clock::time_point now = options_.now();
  // If the answer ended without a stop string, the text that was held back is released. That may complete a stop
  // string (a broken character's U+FFFD). After a stop string, nothing is held back any more.
  std::vector<ipc::AnswerPart>& parts = message.parts;
  const bool by_text = request.text.finish(message.text);
  if (by_text) reason = ipc::FinishReason::kStop;
  if (request.reader != nullptr) {
    message.reasoning_tokens = request.reader->reasoning_tokens();
    const bool over = request.reader->feed(std::exchange(message.text, {}), parts);
    if (by_text && !over) request.cut_call = request.reader->in_call();
    // A client must not mistake a part of a call for a whole call.
    if (request.cut_call) reason = ipc::FinishReason::kLength;
    request.reader->finish(reason, parts);
  }
  message.reason = reason;
  message.stopped_by = request.text.stopped_by();
  message.prompt_tokens = request.prompt_tokens;
  message.completion_tokens = request.generated;
  message.cached_tokens = std::min(request.reused, request.prompt_tokens);
  message.accepted_drafts = request.drafting.accepted;
  message.rejected_drafts = request.drafting.drafted - request.drafting.accepted;
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
      counts_.add("token_batches_total");
    }
  } else {
    emit_(batch_);
    counts_.add("token_batches_total");
  }
  // The buffers go back to their requests, emptied but not freed.
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    ipc::SequenceTokens& unsent = pending_[i]->unsent;
    std::swap(batch.sequences[i], unsent);
    unsent.first_index += static_cast<std::uint32_t>(unsent.tokens.size());
    unsent.tokens.clear();
    unsent.text.clear();
    unsent.logprobs.clear();
    unsent.parts.clear();
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

}  // namespace bulkhead::engine
