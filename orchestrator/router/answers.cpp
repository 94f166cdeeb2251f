// How the router takes workers' answers: it checks tokens and answers against the journal, records
// them there, and then tells the request's observer.
#include <algorithm>
#include <utility>

#include "config/base/log.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

namespace {

// This is room for hundreds of answers as long as a large context. A worker that sends more attacks
// the daemon's memory.
constexpr std::size_t kMaxHeldBytesPerWorker = std::size_t{1} << 30;

Error violation(RequestId request, const char* what) {
  return Error(ErrorCode::kCorrupt, fmt::format("request {}: {}", request.value, what));
}

}  // namespace

void Router::progressed(RequestId request, Active& active, Worker& worker) {
  bool first_sign = !std::exchange(active.progressed, true);
  active.blame.progressed();
  if (active.recovering) {
    active.recovering = false;
    ++worker.recovered_requests;
    worker.recovery.resumed();
  }
  auto alone = alone_.find(&worker);
  if (alone != alone_.end() && alone->second == request) {
    alone_.erase(alone);
    first_sign = true;
  }
  if (first_sign && !waiting_[active.model].empty()) dispatch_later(active.model);
}

// An exception is the daemon's own, such as for lack of memory: the request fails with it, and the worker and all
// other requests go on.
Status Router::failing_alone(RequestId request, const std::function<Status()>& take) {
  const auto active = active_.find(request);
  RequestObserver* const observer = active == active_.end() ? nullptr : active->second.observer;
  try {
    return take();
  } catch (const std::exception& error) {
    loop_.caught("a request", error);
    if (observer == nullptr) return {};
  }
  try {
    forget(request, AtWorker::kCancel);
    observer->on_failed(request,
                        {ipc::FailureCode::kInternal,
                         "The server could not take the next part of the answer; it may lack "
                         "memory.",
                         ""});
  } catch (const std::exception& error) {
    loop_.caught("the end of a request", error);
  }
  return {};
}

Status Router::take_tokens(Worker& worker, const ipc::SequenceTokensView& view) {
  JournalEntry* entry = journal_.find(view.request);
  auto active = active_.find(view.request);
  if (entry == nullptr || active == active_.end())
    return violation(view.request, "tokens of an unknown request");
  const auto* submit = std::get_if<ipc::Submit>(&entry->work);
  if (submit == nullptr) return violation(view.request, "tokens for a request that generates none");
  if (view.tokens.empty()) return {};
  std::size_t wanted_logprobs = submit->logprobs >= 0 ? view.tokens.size() : 0;
  if (view.logprobs.size() != wanted_logprobs)
    return violation(view.request, "log-probabilities do not match what was asked");
  for (const ipc::TokenLogprob& logprob : view.logprobs) {
    if (logprob.top.size() > static_cast<std::size_t>(submit->logprobs) + 1) {
      return violation(view.request, "more log-probabilities than were asked for");
    }
  }
  const std::size_t held = Journal::answer_bytes(*entry);
  BULKHEAD_RETURN_IF_ERROR(
      Journal::append(*entry, view.first_index, view.tokens, view.text, view.parts));
  worker.held_bytes += Journal::answer_bytes(*entry) - held;
  if (worker.held_bytes > kMaxHeldBytesPerWorker) {
    return violation(view.request, "the worker's unfinished answers have become impossibly long");
  }
  if (entry->tokens.size() == view.tokens.size()) entry->file_mark = worker.file_mark();
  entry->numerics_id = worker.ready().numerics_id;
  worker.token_accepted();
  progressed(view.request, active->second, worker);
  active->second.observer->on_tokens(view);
  return {};
}

Status Router::worker_tokens(Worker& worker, const ipc::SequenceTokensView& view) {
  return failing_alone(view.request, [&] { return take_tokens(worker, view); });
}

Status Router::worker_answer(Worker& worker, ipc::FromWorker&& answer) {
  RequestId request = std::visit(
      [](const auto& message) {
        if constexpr (requires { message.request; }) return message.request;
        return RequestId{};
      },
      answer);
  return failing_alone(request, [&] { return take_answer(worker, request, std::move(answer)); });
}

Status Router::take_answer(Worker& worker, RequestId request, ipc::FromWorker&& answer) {
  JournalEntry* entry = journal_.find(request);
  auto active = active_.find(request);
  if (entry == nullptr || active == active_.end())
    return violation(request, "an answer to an unknown request");
  RequestObserver& observer = *active->second.observer;

  if (auto* accepted = std::get_if<ipc::Accepted>(&answer)) {
    bool again = entry->accepted;
    BULKHEAD_RETURN_IF_ERROR(Journal::accept(*entry, accepted->prompt_tokens, accepted->max_tokens,
                                             worker.ready().context_limit));
    if (again) return {};
    if (!accepted->warnings.empty()) observer.on_warnings(request, accepted->warnings);
    observer.on_accepted(request, entry->prompt_tokens);
    return {};
  }
  if (auto* told = std::get_if<ipc::PromptTokens>(&answer)) {
    BULKHEAD_TRY(const std::size_t known, Journal::tell_prompt(*entry, *told));
    observer.on_prompt_tokens(request, std::span(told->tokens).subspan(known));
    return {};
  }
  if (auto* failed = std::get_if<ipc::Failed>(&answer)) {
    progressed(request, active->second, worker);
    forget(request, AtWorker::kEnded);
    observer.on_failed(request, {failed->code, failed->message, failed->parameter});
    return {};
  }
  if (auto* finished = std::get_if<ipc::Finished>(&answer)) {
    if (!entry->accepted) return violation(request, "finished before it was accepted");
    if (!Journal::prompt_is_told(*entry))
      return violation(request, "finished before the tokens of its prompt were sent");
    if (finished->reason == ipc::FinishReason::kCancelled)
      return violation(request, "cancelled without being asked");
    if (finished->cached_tokens > entry->prompt_tokens.size())
      return violation(request, "more tokens from its cache than the prompt has");
    if (finished->accepted_drafts > finished->completion_tokens)
      return violation(request, "more guessed tokens than the answer has");
    const std::size_t held = Journal::answer_bytes(*entry);  // the journal has not counted the rest
    BULKHEAD_RETURN_IF_ERROR(Journal::append_rest(*entry, finished->text, finished->parts));
    // A successor's cache may hold what its predecessor computed for this same request.
    if (entry->resubmissions > 0) finished->cached_tokens = 0;
    progressed(request, active->second, worker);
    // The router forgets the request before it tells the observer, so that the observer may start
    // another one.
    worker.held_bytes -= std::min(worker.held_bytes, held);
    forget(request, AtWorker::kEnded);
    observer.on_finished(request, *finished);
    return {};
  }
  const bool fits = std::visit(
      [&answer](const auto& asked) {
        using Asked = std::remove_cvref_t<decltype(asked)>;
        if constexpr (requires { typename Asked::Answer; })
          return std::holds_alternative<typename Asked::Answer>(answer);
        return false;
      },
      entry->work);
  if (!fits) return violation(request, "an answer of another kind than was asked for");
  if (const auto* tokenized = std::get_if<ipc::Tokenized>(&answer)) {
    const ipc::TokenTexts asked = std::get<ipc::Tokenize>(entry->work).texts;
    const std::size_t texts = asked == ipc::TokenTexts::kNone ? 0 : tokenized->tokens.size();
    if (tokenized->form != asked || tokenized->texts.size() != texts)
      return violation(request, "other texts of tokens than were asked for");
  }
  progressed(request, active->second, worker);
  forget(request, AtWorker::kEnded);
  observer.on_answer(request, answer);
  return {};
}

}  // namespace bulkhead::orchestrator
