#include "orchestrator/http/resumable.hpp"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/random.hpp"
#include "orchestrator/http/errors.hpp"

namespace bulkhead::orchestrator {

namespace {

// A reader is given so much more than its socket has taken. Below the connection's own limit, so
// that a slow reader of a resumable stream is waited for: nothing is kept for it that is not anyway.
constexpr std::size_t kMaxAheadBytes = 256 * 1024;
constexpr std::size_t kSliceBytes = 64 * 1024;
constexpr std::chrono::milliseconds kFullReaderPause{20};

// Who knows the id may read the stream (with the API key, where there is one): 128 random bits.
std::string new_id(bool chat) {
  return fmt::format("{}-{:016x}{:016x}", chat ? "chatcmpl" : "cmpl", random_u64(), random_u64());
}

}  // namespace

class ResumableStream : public RequestObserver,
                        public std::enable_shared_from_this<ResumableStream> {
 public:
  ResumableStream(ResumableStreams& owner, BegunRequest begun)
      : owner_(owner),
        begun_(std::move(begun)),
        head_{begun_.chat, begun_.id, begun_.created, begun_.model},
        logprobs_(begun_.chat,
                  static_cast<std::uint32_t>(std::max(begun_.submit.logprobs, std::int32_t{0}))),
        deadline_(owner.loop_),
        expiry_(owner.loop_),
        full_reader_(owner.loop_),
        began_(Clock::now()) {}

  std::size_t bytes() const { return events_.size(); }
  bool over() const { return over_; }
  bool being_read() const { return reader_ != nullptr; }

  Status start(std::size_t model, std::shared_ptr<Exchange> exchange) {
    if (owner_.disk_ != nullptr) {
      BULKHEAD_TRY(std::string begun, encode_begun(begun_));
      key_ = owner_.disk_->new_key();
      owner_.disk_->append(key_, RecordType::kBegun, begun);
    }
    attach(std::move(exchange), 0);
    start_deadline();
    request_ = owner_.router_.start(model, Work(std::move(begun_.submit)), *this);
    return {};
  }

  // The state that the records tell, without a word to a worker or the disk.
  void restore(DiskRequest& from) {
    key_ = from.key;
    recovered_ = true;
    made_by_ = from.worker;
    accepted(from.accepted->prompt_tokens);
    for (const ipc::SequenceTokens& sequence : from.tokens)
      render_tokens(sequence.tokens, sequence.text, sequence.logprobs);
    if (from.finished) render_finished(*from.finished);
    if (!from.failed.empty()) render_failed(from.failed);
    announced_ = true;
    durable_ = ends_.size();
  }

  // Hands an unfinished one to the workers.
  void go_on(std::optional<std::size_t> model, DiskRequest& from) {
    start_deadline();
    wait_for_reader();
    if (!model) {
      return fail(to_api_error(
          {FailureKind::kNotResumable,
           fmt::format("The stream can't go on: the model '{}' is not served any more.",
                       begun_.file),
           ""}));
    }
    JournalEntry entry;
    entry.work = std::move(from.begun.submit);
    entry.accepted = true;
    entry.prompt_tokens = std::move(from.accepted->prompt_tokens);
    entry.max_tokens = from.accepted->max_tokens;
    for (const ipc::SequenceTokens& sequence : from.tokens) {
      entry.tokens.insert(entry.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
      entry.text += sequence.text;
    }
    entry.made_by = made_by_;
    request_ = owner_.router_.resume(*model, std::move(entry), *this);
  }

  void expire_after(std::chrono::seconds time) {
    expiry_.start(time, [this] { expired(); });
  }

  // ---- the reader ----

  void attach(std::shared_ptr<Exchange> exchange, std::size_t first_event) {
    if (reader_ != nullptr) {
      reader_->on_lost = nullptr;
      if (streaming_) {
        reader_->end_stream(true);
      } else {
        reader_->respond(to_response(plain_error(409, kTakenOver, "taken_over")));
      }
    }
    reader_ = std::move(exchange);
    streaming_ = false;
    next_event_ = first_event;
    if (!over_) expiry_.cancel();
    reader_->on_lost = [weak = weak_from_this()](Exchange::Lost lost) {
      if (auto self = weak.lock()) self->reader_lost(lost);
    };
  }

  // Gives the reader what is durable and fits.
  void pump() {
    full_reader_.cancel();
    if (reader_ == nullptr || !announced_) return;
    if (!std::exchange(streaming_, true)) reader_->begin_stream(begun_.id);
    while (next_event_ < durable_) {
      if (reader_->unsent_bytes() > kMaxAheadBytes) {
        full_reader_.start(kFullReaderPause, [this] { pump(); });
        return;
      }
      const std::size_t from = next_event_ == 0 ? 0 : ends_[next_event_ - 1];
      do {
        ++next_event_;
      } while (next_event_ < durable_ && ends_[next_event_] - from <= kSliceBytes);
      reader_->write(std::string_view(events_).substr(from, ends_[next_event_ - 1] - from));
    }
    if (!over_ || next_event_ < ends_.size()) return;
    reader_->on_lost = nullptr;
    reader_->end_stream(failed_);
    reader_ = nullptr;
  }

  std::size_t known_events() const { return durable_; }

  // ---- RequestObserver ----

  void on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) override {
    auto self = shared_from_this();
    accepted(prompt_tokens);
    if (owner_.disk_ != nullptr) {
      tell_worker();
      const JournalEntry* entry = owner_.router_.entry(request_);
      keep(RecordType::kAccepted,
           encode_message(ipc::Accepted{RequestId{key_}, prompt_ids_, entry->max_tokens}));
    } else {
      made_durable(ends_.size());
    }
  }

  void on_tokens(RequestId, std::span<const ipc::TokenId> tokens, std::string_view text,
                 std::span<const ipc::TokenLogprob> logprobs) override {
    auto self = shared_from_this();
    const Clock::time_point now = Clock::now();
    if (first_token_ == Clock::time_point{}) {
      first_token_ = now;
      owner_.metrics_.first_token(now - began_);
    } else {
      owner_.metrics_.next_tokens(now - last_tokens_, tokens.size());
    }
    last_tokens_ = now;
    const auto first_index = static_cast<std::uint32_t>(tokens_);
    render_tokens(tokens, text, logprobs);
    if (owner_.disk_ == nullptr) return made_durable(ends_.size());
    if (first_index == 0) tell_worker();
    ipc::TokenBatch batch;
    batch.sequences.push_back({RequestId{key_},
                               first_index,
                               {tokens.begin(), tokens.end()},
                               std::string(text),
                               {logprobs.begin(), logprobs.end()}});
    keep(RecordType::kTokens, encode_tokens(batch));
  }

  void on_finished(RequestId, const ipc::Finished& finished, const JournalEntry&) override {
    auto self = shared_from_this();
    request_ = {};
    render_finished(finished);
    if (owner_.disk_ == nullptr) {
      made_durable(ends_.size());
    } else {
      ipc::Finished record = finished;
      record.request = RequestId{key_};
      keep(RecordType::kFinished, encode_message(record));
    }
    end(200, finish_reason_);
  }

  void on_failed(RequestId, const Failure& failure) override {
    auto self = shared_from_this();
    request_ = {};
    fail(to_api_error(failure));
  }

  void on_answer(RequestId, const ipc::FromWorker&) override {}

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* kTakenOver = "Another client reads this stream now.";

  // ---- events ----

  void add_event(std::string_view event) {
    fmt::format_to(std::back_inserter(events_), "id: {}\n", ends_.size());
    events_ += event;
    ends_.push_back(events_.size());
  }

  ChoicePart part(std::string_view text, std::span<const ipc::TokenId> tokens) {
    ChoicePart part;
    part.text = text;
    if (begun_.return_token_ids) {
      part.token_ids = tokens;
      if (!std::exchange(told_prompt_, true)) part.prompt_token_ids = &prompt_ids_;
    }
    return part;
  }

  void accepted(std::span<const ipc::TokenId> prompt_tokens) {
    accepted_ = true;
    prompt_ids_.assign(prompt_tokens.begin(), prompt_tokens.end());
    if (!begun_.chat) return;
    ChoicePart role = part("", {});
    role.role = true;
    add_event(sse_chunk(head_, role, begun_.include_usage));
  }

  void render_tokens(std::span<const ipc::TokenId> tokens, std::string_view text,
                     std::span<const ipc::TokenLogprob> logprobs) {
    tokens_ += tokens.size();
    std::string logprobs_text;
    if (!logprobs.empty()) {
      logprobs_.add(logprobs);
      logprobs_text = logprobs_.take();
    }
    if (text.empty() && logprobs.empty() && !begun_.return_token_ids) return;
    ChoicePart piece = part(text, tokens);
    piece.logprobs = logprobs_text;
    add_event(sse_chunk(head_, piece, begun_.include_usage));
  }

  void render_finished(const ipc::Finished& finished) {
    over_ = true;
    cached_tokens_ = finished.cached_tokens;
    finish_reason_ = finish_reason_name(finished.reason);
    if (!finished.text.empty())
      add_event(sse_chunk(head_, part(finished.text, {}), begun_.include_usage));
    ChoicePart last = part("", {});
    last.finish_reason = finish_reason_;
    add_event(sse_chunk(head_, last, begun_.include_usage));
    if (begun_.include_usage)
      add_event(sse_usage(head_, {prompt_ids_.size(), tokens_, cached_tokens_}));
    add_event(kSseDone);
  }

  void render_failed(std::string_view event) {
    over_ = true;
    failed_ = true;
    add_event(event);
  }

  // ---- the journal ----

  // What is written down now holds every event that there is now.
  void keep(RecordType type, const Result<std::string>& payload) {
    const std::size_t events = ends_.size();
    if (!payload.ok()) {
      spdlog::error("request id={} can't be journalled: {}", begun_.id, payload.error().message());
      return made_durable(events);
    }
    owner_.disk_->append(key_, type, *payload, [weak = weak_from_this(), events] {
      if (auto self = weak.lock()) self->made_durable(events);
    });
  }

  void made_durable(std::size_t events) {
    announced_ = true;
    durable_ = std::max(durable_, events);
    pump();
  }

  void tell_worker() {
    std::string identity = owner_.router_.identity(request_);
    if (identity == made_by_) return;
    made_by_ = std::move(identity);
    owner_.disk_->append(key_, RecordType::kWorker, made_by_);
  }

  // ---- times and ends ----

  void start_deadline() {
    const std::chrono::seconds timeout = owner_.options_.timeout;
    deadline_.start(timeout, [this, timeout] {
      auto self = shared_from_this();
      fail(to_api_error({FailureKind::kTimeout,
                         fmt::format("The request took more than {} s (server.request_timeout_s).",
                                     timeout.count()),
                         ""}));
    });
  }

  void reader_lost(Exchange::Lost lost) {
    auto self = shared_from_this();
    lost == Exchange::Lost::kTooSlow ? owner_.metrics_.slow_client()
                                     : owner_.metrics_.client_hang_up();
    reader_ = nullptr;
    full_reader_.cancel();
    if (!announced_) return give_up("client hung up");  // it can't come back: it has no id
    if (!over_) wait_for_reader();
  }

  void wait_for_reader() { expire_after(owner_.options_.window); }

  void expired() {
    auto self = shared_from_this();
    if (reader_ != nullptr) return wait_for_reader();  // still reading an answer that is over
    over_ ? drop() : give_up("nobody resumed it");
  }

  // It has no end, so it can't be read again either.
  void give_up(const char* why) {
    cancel_request();
    if (!std::exchange(over_, true)) end(499, why);
    drop();
  }

 public:
  void drop() {
    expiry_.cancel();
    if (owner_.disk_ != nullptr) owner_.disk_->drop(key_);
    owner_.forget(begun_.id);
  }

 private:
  void cancel_request() {
    if (request_ != RequestId{}) owner_.router_.cancel(std::exchange(request_, RequestId{}));
  }

  void fail(const ApiError& error) {
    if (over_) return;
    cancel_request();
    if (!accepted_) {  // nobody knows its id: an ordinary error with its status
      over_ = true;
      if (reader_ != nullptr) {
        reader_->on_lost = nullptr;
        reader_->respond(to_response(error));
        reader_ = nullptr;
      }
      end(error.status, error.code);
      return drop();
    }
    const std::string event = sse_error(error);
    render_failed(event);
    if (owner_.disk_ == nullptr) {
      made_durable(ends_.size());
    } else {
      keep(RecordType::kFailed, event);
    }
    end(error.status, error.code);
  }

  void end(int status, std::string_view how) {
    deadline_.cancel();
    const Clock::time_point now = Clock::now();
    auto ms = [](Clock::duration d) {
      return std::chrono::duration<double, std::milli>(d).count();
    };
    const char* endpoint = begun_.chat ? "/v1/chat/completions" : "/v1/completions";
    owner_.metrics_.request_done(endpoint, status);
    owner_.metrics_.tokens(prompt_ids_.size(), tokens_);
    owner_.metrics_.request_duration(now - began_);
    const bool any_token = first_token_ != Clock::time_point{};
    spdlog::info(
        "request id={} endpoint={} model=\"{}\" stream=true choices=1 status={} end=\"{}\" "
        "prompt_tokens={} cached_tokens={} completion_tokens={} ttft_ms={:.1f} total_ms={:.1f}{}",
        begun_.id, endpoint, begun_.model, status, how, prompt_ids_.size(), cached_tokens_, tokens_,
        any_token ? ms(first_token_ - began_) : -1.0, ms(now - began_),
        recovered_ ? " recovered=true" : "");
    expire_after(owner_.options_.window);
    owner_.finished(begun_.id, bytes());
  }

  ResumableStreams& owner_;
  BegunRequest begun_;
  AnswerHead head_;
  LogprobsJson logprobs_;
  Timer deadline_, expiry_, full_reader_;
  std::uint64_t key_ = 0;  // in the journal on disk
  RequestId request_;      // 0 when no worker has or gets it
  std::string made_by_;    // as the journal has it

  std::string events_;             // all of them
  std::vector<std::size_t> ends_;  // of each event in it
  std::size_t durable_ = 0;        // events that may be sent
  bool accepted_ = false;
  bool announced_ = false;  // durably accepted: a client may know its id
  bool over_ = false;
  bool failed_ = false;
  bool recovered_ = false;
  bool told_prompt_ = false;

  std::shared_ptr<Exchange> reader_;
  bool streaming_ = false;      // the reader has its head
  std::size_t next_event_ = 0;  // of the reader

  std::vector<ipc::TokenId> prompt_ids_;
  std::size_t tokens_ = 0;
  std::size_t cached_tokens_ = 0;
  std::string finish_reason_;
  Clock::time_point began_, first_token_, last_tokens_;
};

ResumableStreams::ResumableStreams(EventLoop& loop, Router& router, Metrics& metrics,
                                   DiskJournal* disk, Options options)
    : loop_(loop), router_(router), metrics_(metrics), disk_(disk), options_(options) {}

ResumableStreams::~ResumableStreams() = default;

std::optional<ApiError> ResumableStreams::start(std::size_t model, GenerationRequest request,
                                                std::shared_ptr<Exchange> exchange) {
  if (disk_ != nullptr && disk_->failed()) {
    return plain_error(503,
                       "The journal can't be written, so no stream can be made resumable; the "
                       "server's log says why.",
                       "journal_unavailable");
  }
  BegunRequest begun;
  begun.id = new_id(request.chat);
  begun.model = router_.models()[model].id;
  begun.file = router_.models()[model].file_name;
  begun.created = std::time(nullptr);
  begun.chat = request.chat;
  begun.include_usage = request.include_usage;
  begun.return_token_ids = request.return_token_ids;
  begun.submit = std::move(request.parameters);
  begun.submit.prompt = std::move(request.prompts.front());
  if (!request.has_seed) begun.submit.sampling.seed = random_u64();
  const std::string id = begun.id;
  auto stream = std::make_shared<ResumableStream>(*this, std::move(begun));
  streams_[id] = stream;
  Status started = stream->start(model, std::move(exchange));
  if (started.ok()) return std::nullopt;
  streams_.erase(id);
  return to_api_error({FailureKind::kContextExceeded, started.error().message(), ""});
}

std::optional<ApiError> ResumableStreams::attach(const std::string& id,
                                                 const std::string& last_event_id,
                                                 std::shared_ptr<Exchange> exchange) {
  auto found = streams_.find(id);
  if (found == streams_.end()) {
    return plain_error(404,
                       fmt::format("There is no resumable request '{}': it was not asked to be "
                                   "resumable, or was over for longer than {} s "
                                   "(isolation.resume_window_s).",
                                   id, options_.window.count()),
                       "request_not_found");
  }
  std::size_t first = 0;
  if (!last_event_id.empty()) {
    const char* end = last_event_id.data() + last_event_id.size();
    auto [stop, error] = std::from_chars(last_event_id.data(), end, first);
    if (error != std::errc() || stop != end || first >= found->second->known_events()) {
      return plain_error(400,
                         fmt::format("Last-Event-ID '{}' is no event of this stream, which has {} "
                                     "so far.",
                                     last_event_id, found->second->known_events()),
                         "invalid_last_event_id");
    }
    ++first;
  }
  auto stream = found->second;
  stream->attach(std::move(exchange), first);
  stream->pump();
  return std::nullopt;
}

void ResumableStreams::recover(std::vector<DiskRequest> requests) {
  const std::time_t now = std::time(nullptr);
  std::size_t unfinished = 0, readable = 0;
  for (DiskRequest& request : requests) {
    const std::chrono::seconds age(std::max<std::int64_t>(now - request.last_seconds, 0));
    if (request.over() && age >= options_.window) {
      disk_->drop(request.key);
      continue;
    }
    const std::string id = request.begun.id;
    BegunRequest begun = request.begun;
    begun.submit.prompt = {};
    auto stream = std::make_shared<ResumableStream>(*this, std::move(begun));
    streams_[id] = stream;
    stream->restore(request);
    if (request.over()) {
      ++readable;
      stream->expire_after(options_.window - age);
      finished(id, stream->bytes());
      continue;
    }
    ++unfinished;
    std::optional<std::size_t> model;
    for (std::size_t i = 0; i < router_.models().size(); ++i) {
      const ModelInfo& each = router_.models()[i];
      if (each.file_name != request.begun.file) continue;
      if (!model || each.id == request.begun.model) model = i;
    }
    stream->go_on(model, request);
  }
  if (unfinished + readable > 0) {
    spdlog::info("journal: {} stream(s) go on, {} can be read again", unfinished, readable);
  }
}

void ResumableStreams::forget(const std::string& id) {
  auto found = streams_.find(id);
  if (found == streams_.end()) return;
  if (found->second->over()) finished_bytes_ -= std::min(finished_bytes_, found->second->bytes());
  streams_.erase(found);
}

void ResumableStreams::finished(const std::string& id, std::size_t bytes) {
  finished_bytes_ += bytes;
  finished_.push_back(id);
  while (!finished_.empty()) {
    auto oldest = streams_.find(finished_.front());
    if (oldest != streams_.end()) {
      if (finished_bytes_ <= kMaxFinishedBytes || oldest->second->being_read()) break;
      auto stream = oldest->second;
      stream->drop();
    }
    finished_.pop_front();
  }
}

}  // namespace bulkhead::orchestrator
