#include "orchestrator/http/resumable_stream.hpp"

#include <algorithm>
#include <utility>

#include "config/base/log.hpp"

namespace bulkhead::orchestrator {

namespace {

// The most bytes that a reader is sent before its socket has taken them. This is less than the connection's own
// limit, so the stream waits for a slow reader. It needs no further memory for that reader, because the stream is
// kept anyway.
constexpr std::size_t kMaxAheadBytes = 256 * 1024;
constexpr std::size_t kSliceBytes = 64 * 1024;
constexpr std::size_t kHeldAheadBytes = 16 * 1024;  // counted before the events have this many bytes
// Memory that each event leaves for an error event. So a stream that finds no memory for its next event can say so.
constexpr std::size_t kRoomForError = 4 * 1024;
constexpr std::chrono::milliseconds kFullReaderPause{20};
constexpr const char* kOtherReader = "Another client reads this stream now.";

ChoiceOptions options_of(const BegunRequest& begun) {
  return {true, begun.include_usage, begun.return_token_ids, begun.submit.logprobs};
}

}  // namespace

ResumableStream::ResumableStream(ResumableStreams& owner, BegunRequest begun)
    : Answer(owner.services_, generation_endpoint(begun.chat)),
      owner_(owner),
      begun_(std::move(begun)),
      head_{begun_.chat, begun_.id, begun_.created, begun_.model},
      choice_(head_, options_of(begun_), 0, true),
      emit_([this](std::string_view event) { add_event(event, kRoomForError); }),
      expiry_(owner.services_.loop),
      full_reader_(owner.services_.loop) {}

ResumableStream::~ResumableStream() {
  owner_.memory_.change(held_, 0, false);
}

// ---- beginnings ----

Status ResumableStream::start(std::size_t model, std::shared_ptr<Exchange> exchange) {
  if (owner_.disk_ != nullptr) {
    BULKHEAD_TRY(std::string begun, encode_begun(begun_));
    key_ = owner_.disk_->new_key();
    owner_.disk_->append(key_, RecordType::kBegun, begun);
  }
  attach(std::move(exchange), 0);
  start_deadline(owner_.options_.timeout);
  request_ = services_.router.start(model, Work(std::move(begun_.submit)), *this);
  return {};
}

void ResumableStream::restore(DiskRequest& from) {
  key_ = from.key;
  recovered_ = true;
  const bool has_tokens =
      std::ranges::any_of(from.tokens, [](const auto& each) { return !each.tokens.empty(); });
  take_over("POST", TraceContext::from_record(begun_.trace), has_tokens);
  made_by_ = from.worker;
  head_.fingerprint = system_fingerprint(made_by_);
  choice_.accepted(from.accepted->prompt_tokens, emit_);
  for (const ipc::SequenceTokens& sequence : from.tokens) {
    choice_.tokens({sequence.request, sequence.first_index, sequence.tokens, sequence.text,
                    sequence.logprobs, sequence.parts},
                   emit_);
  }
  if (from.finished) render_finished(*from.finished);
  if (!from.failed.empty()) render_failed(from.failed);
  if (from.finished || !from.failed.empty()) was_over();
  (void)hold_events();  // what an earlier daemon had sent is kept in any case
  announced_ = true;
  durable_ = ends_.size();
}

void ResumableStream::go_on(std::optional<std::size_t> model, DiskRequest& from,
                            std::shared_ptr<KeyTicket> ticket) {
  take_ticket(std::move(ticket));
  start_deadline(owner_.options_.timeout);
  wait_for_reader();
  if (!model) {
    return fail(to_api_error(
        {ipc::FailureCode::kNotResumable,
         fmt::format("The stream can't go on: the model '{}' (file {}) is not served any more.",
                     begun_.model, begun_.file),
         ""}));
  }
  JournalEntry entry;
  entry.work = std::move(from.begun.submit);
  entry.accepted = true;
  entry.prompt_tokens = std::move(from.accepted->prompt_tokens);
  entry.max_tokens = from.accepted->max_tokens;
  for (const ipc::SequenceTokens& sequence : from.tokens)
    Journal::restore(entry, sequence);
  entry.made_by = made_by_;
  request_ = services_.router.resume(*model, std::move(entry), *this);
}

void ResumableStream::expire_after(std::chrono::seconds time) {
  expiry_.start(time, [this] { expired(); });
}

// ---- the reader ----

void ResumableStream::attach(std::shared_ptr<Exchange> exchange, std::size_t first_event) {
  exchange->take_request_id(begun_.id);
  if (reader_ != nullptr) {
    reader_->on_lost = nullptr;
    if (streaming_) {
      reader_->end_stream(true);
    } else {
      reader_->respond(refusal(kTakenOver, kOtherReader));
    }
  }
  reader_ = std::move(exchange);
  streaming_ = false;
  next_event_ = first_event;
  if (!over()) expiry_.cancel();
  watch(*reader_);
  // The stream stays in the trace in which it began, whoever reads it and whichever daemon continues it.
  if (trace().known()) {
    std::erase_if(reader_->extra_headers,
                  [](const auto& field) { return field.first == "traceparent"; });
    reader_->extra_headers.emplace_back("traceparent", trace().field());
  }
}

void ResumableStream::pump() {
  full_reader_.cancel();
  if (reader_ == nullptr || !announced_) return;
  if (!std::exchange(streaming_, true)) {
    reader_->begin_stream();
    watch_silence([this] {
      if (reader_ != nullptr && streaming_) reader_->write(kSseComment);
    });
  }
  while (next_event_ < durable_) {
    if (reader_->unsent_bytes() > kMaxAheadBytes) {
      full_reader_.start(kFullReaderPause, [this] { pump(); });
      return;
    }
    const std::size_t from = next_event_ == 0 ? 0 : ends_[next_event_ - 1];
    do {
      ++next_event_;
    } while (next_event_ < durable_ && ends_[next_event_] - from <= kSliceBytes);
    stream_spoke();
    reader_->write(std::string_view(events_).substr(from, ends_[next_event_ - 1] - from));
  }
  if (!over() || next_event_ < ends_.size()) return;
  reader_->on_lost = nullptr;
  reader_->end_stream(failed_);
  reader_ = nullptr;
}

// ---- what the router reports ----

void ResumableStream::on_warnings(RequestId, std::span<const std::string> warnings) {
  if (reader_ != nullptr && !streaming_) add_warnings(*reader_, warnings);
}

void ResumableStream::on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) {
  auto self = shared_from_this();
  if (head_.fingerprint.empty())
    head_.fingerprint = system_fingerprint(services_.router.identity(request_));
  choice_.accepted(prompt_tokens, emit_);
  if (owner_.disk_ == nullptr) return made_durable(ends_.size());
  tell_worker();
  const JournalEntry* entry = services_.router.entry(request_);
  keep(RecordType::kAccepted,
       encode_message(ipc::Accepted{
           RequestId{key_}, {prompt_tokens.begin(), prompt_tokens.end()}, entry->max_tokens}));
}

void ResumableStream::on_tokens(const ipc::SequenceTokensView& view) {
  auto self = shared_from_this();
  tokens_came(last_tokens_, view.tokens.size());
  const auto first_index = static_cast<std::uint32_t>(usage().completion_tokens);
  choice_.tokens(view, emit_);
  const bool fits = hold_events();
  keep_tokens(view, first_index);
  if (fits || over()) return;
  fail(api_error(kOutOfMemory,
                 "The server has no room for more events of resumable streams (half of "
                 "server.max_memory_mb)."));
}

void ResumableStream::keep_tokens(const ipc::SequenceTokensView& view, std::uint32_t first_index) {
  if (owner_.disk_ == nullptr) return made_durable(ends_.size());
  if (first_index == 0) tell_worker();
  ipc::TokenBatch batch;
  batch.sequences.push_back({RequestId{key_},
                             first_index,
                             {view.tokens.begin(), view.tokens.end()},
                             std::string(view.text),
                             view.logprobs,
                             view.parts});
  keep(RecordType::kTokens, encode_tokens(batch));
}

void ResumableStream::on_finished(RequestId, const ipc::Finished& finished) {
  auto self = shared_from_this();
  request_ = {};
  if (!recovered_) queue_ended(first_token(), finished);
  render_finished(finished);
  end_with(200, choice_.finish_reason(), [&] {
    if (owner_.disk_ == nullptr) return made_durable(ends_.size());
    ipc::Finished record = finished;
    record.request = RequestId{key_};
    keep(RecordType::kFinished, encode_message(record));
  });
}

void ResumableStream::on_failed(RequestId request, const Failure& failure) {
  auto self = shared_from_this();
  request_ = {};
  Answer::on_failed(request, failure);
}

// ---- events ----

void ResumableStream::add_event(std::string_view event, std::size_t room) {
  const std::string id = fmt::format("id: {}\n", ends_.size());
  // If one of these calls throws, the stream is unchanged.
  events_.reserve(events_.size() + id.size() + event.size() + room);
  if (ends_.capacity() < ends_.size() + 2) ends_.reserve(2 * ends_.size() + 2);
  events_ += id;
  events_ += event;
  ends_.push_back(events_.size());
}

bool ResumableStream::hold_events() {
  const std::size_t bytes = events_.size() + ends_.size() * sizeof(ends_[0]);
  if (bytes <= held_) return true;
  while (!owner_.memory_.change(held_, bytes + kHeldAheadBytes, false)) {
    if (!owner_.drop_oldest_finished()) return false;
  }
  return true;
}

void ResumableStream::render_finished(const ipc::Finished& finished) {
  choice_.finished(finished, emit_);
  if (begun_.include_usage) add_event(sse_usage(head_, usage()), kRoomForError);
  add_event(kSseDone, kRoomForError);
}

void ResumableStream::render_failed(std::string_view event) {
  add_event(event, 0);
  failed_ = true;
}

Usage ResumableStream::usage() const {
  Usage usage;
  choice_.add_to(usage);
  return usage;
}

// ---- the journal ----

// Writes a record to the journal. Once it is on disk, the journal holds every event that exists now.
void ResumableStream::keep(RecordType type, const Result<std::string>& payload) {
  const std::size_t events = ends_.size();
  if (!payload.ok()) {
    spdlog::error("request id={} can't be journalled: {}", begun_.id, payload.error().message());
    return made_durable(events);
  }
  owner_.disk_->append(key_, type, *payload, [weak = weak_from_this(), events] {
    if (auto self = weak.lock()) static_cast<ResumableStream&>(*self).made_durable(events);
  });
}

void ResumableStream::made_durable(std::size_t events) {
  announced_ = true;
  durable_ = std::max(durable_, events);
  pump();
}

void ResumableStream::tell_worker() {
  std::string identity = services_.router.identity(request_);
  if (identity == made_by_) return;
  made_by_ = std::move(identity);
  owner_.disk_->append(key_, RecordType::kWorker, made_by_);
}

// ---- ends ----

void ResumableStream::lost(Exchange::Lost how) {
  auto self = shared_from_this();
  (void)count_lost(how);
  reader_ = nullptr;
  full_reader_.cancel();
  if (!announced_) return give_up("client hung up");  // the client can't come back, because it has no id yet
  if (!over()) wait_for_reader();
}

void ResumableStream::wait_for_reader() {
  expire_after(owner_.options_.window);
}

void ResumableStream::expired() {
  auto self = shared_from_this();
  if (reader_ != nullptr) return wait_for_reader();  // the reader is still reading, though the answer has ended
  over() ? drop() : give_up("nobody resumed it");
}

void ResumableStream::give_up(const char* why) {
  given_up_ = true;
  over() ? drop() : end_with(499, why, [] {});
}

void ResumableStream::drop() {
  expiry_.cancel();
  if (owner_.disk_ != nullptr) owner_.disk_->drop(key_);
  owner_.forget(begun_.id);
}

void ResumableStream::cancel() {
  if (request_ != RequestId{}) services_.router.cancel(std::exchange(request_, RequestId{}));
}

void ResumableStream::tell(const ApiError& error) {
  if (choice_.is_accepted()) {
    const std::string event = sse_error(error);
    render_failed(event);
    if (owner_.disk_ == nullptr) return made_durable(ends_.size());
    return keep(RecordType::kFailed, event);
  }
  given_up_ = true;  // the stream has not begun, so this is an ordinary error with its status
  if (reader_ == nullptr) return;
  reader_->on_lost = nullptr;
  reader_->respond(to_response(error));
  reader_ = nullptr;
}

// An exception interrupted the rendering, storing or sending of the end. Readers get the events that exist,
// and an error if the last one is missing.
void ResumableStream::tell_exception() {
  const ApiError error =
      to_api_error({ipc::FailureCode::kInternal,
                    "The server could not end the stream; it may lack memory.", ""});
  if (!choice_.is_accepted()) return tell(error);
  if (!failed_ && !events_.ends_with(kSseDone)) render_failed(sse_error(error));
  // The client has seen the failure, so no later daemon may continue the stream.
  if (failed_ && owner_.disk_ != nullptr) owner_.disk_->drop(key_);
  made_durable(ends_.size());
}

void ResumableStream::ended() {
  expire_after(owner_.options_.window);
  owner_.finished(begun_.id, bytes());
  if (given_up_) drop();
}

}  // namespace bulkhead::orchestrator
