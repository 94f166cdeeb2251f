#include "orchestrator/http/resumable.hpp"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/random.hpp"
#include "orchestrator/http/errors.hpp"
#include "orchestrator/http/resumable_stream.hpp"

namespace bulkhead::orchestrator {

namespace {

// Makes an id of 128 random bits. A client that has the id (and the API key, where there is one) may read the
// stream.
std::string new_id(bool chat) {
  return fmt::format("{}-{:016x}{:016x}", chat ? "chatcmpl" : "cmpl", random_u64(), random_u64());
}

}  // namespace

std::string generation_endpoint(bool chat) {
  return chat ? "/v1/chat/completions" : "/v1/completions";
}

ResumableStreams::ResumableStreams(EventLoop& loop, Router& router, Metrics& metrics,
                                   DiskJournal* disk, Options options)
    : services_{loop, router, metrics}, disk_(disk), memory_(options.most_bytes) {
  configure(options);
}

ResumableStreams::~ResumableStreams() = default;

// Streams have a budget of their own, half as large as that of requests, so that kept streams refuse no request.
ResumableStreams::Options ResumableStreams::options_of(const config::Settings& settings) {
  return {std::chrono::seconds(settings.isolation.resume_window_s),
          std::chrono::seconds(settings.server.request_timeout_s),
          std::chrono::seconds(settings.server.stream_keep_alive_s),
          (std::size_t{settings.server.max_memory_mb} << 20) / 2};
}

std::optional<ApiError> ResumableStreams::start(std::size_t model, GenerationRequest request,
                                                std::shared_ptr<Exchange> exchange,
                                                std::shared_ptr<KeyTicket> ticket) {
  if (disk_ != nullptr && disk_->failed()) {
    return api_error(kJournalUnavailable,
                     "The journal can't be written, so no stream can be made resumable; "
                     "/health says why.");
  }
  resolve(request, services_.router.models()[model]);
  BegunRequest begun;
  begun.id = new_id(request.chat);
  begun.model = services_.router.models()[model].id;
  begun.file = services_.router.models()[model].file_name;
  begun.created = std::time(nullptr);
  begun.chat = request.chat;
  begun.include_usage = request.include_usage;
  begun.return_token_ids = request.return_token_ids;
  if (ticket != nullptr) begun.key_name = ticket->name();
  begun.trace = exchange->trace.record();
  begun.submit = std::move(request.parameters);
  begun.submit.prompt = std::move(request.prompts.front());
  const std::string id = begun.id;
  auto stream = std::make_shared<ResumableStream>(*this, std::move(begun));
  streams_[id] = stream;
  stream->take_ticket(std::move(ticket));
  Status started;
  try {
    started = stream->start(model, std::move(exchange));
  } catch (...) {  // nothing else would ever end it, and its key would have it in progress for ever
    streams_.erase(id);
    throw;
  }
  if (started.ok()) return std::nullopt;
  streams_.erase(id);
  return to_api_error({ipc::FailureCode::kContextExceeded, started.error().message(), ""});
}

std::optional<ApiError> ResumableStreams::attach(const std::string& id,
                                                 const std::string& last_event_id,
                                                 std::shared_ptr<Exchange> exchange) {
  auto found = streams_.find(id);
  if (found == streams_.end()) {
    return api_error(kRequestNotFound,
                     fmt::format("There is no resumable request '{}': it was not asked to be "
                                 "resumable, or was over for longer than {} s "
                                 "(isolation.resume_window_s).",
                                 id, options_.window.count()));
  }
  std::size_t first = 0;
  if (!last_event_id.empty()) {
    const char* end = last_event_id.data() + last_event_id.size();
    auto [stop, error] = std::from_chars(last_event_id.data(), end, first);
    const bool number = error == std::errc() && stop == end;
    // The client has seen events that this daemon does not have yet: a worker is generating them again.
    if (number && first >= found->second->known_events() && !found->second->over()) {
      return api_error(kStreamCatchingUp,
                       fmt::format("Event {} of this stream is being generated again; there are {} "
                                   "so far.",
                                   first, found->second->known_events()));
    }
    if (!number || first >= found->second->known_events()) {
      return api_error(kInvalidLastEventId,
                       fmt::format("Last-Event-ID '{}' is no event of this stream, which has {} "
                                   "so far.",
                                   last_event_id, found->second->known_events()));
    }
    ++first;
  }
  auto stream = found->second;
  stream->attach(std::move(exchange), first);
  stream->pump();
  return std::nullopt;
}

void ResumableStreams::recover(std::vector<DiskRequest> requests, const KeyLimits& limits) {
  const std::time_t now = std::time(nullptr);
  std::size_t unfinished = 0, readable = 0, ended = 0;
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
    std::optional<std::size_t> model;
    for (std::size_t i = 0; i < services_.router.models().size(); ++i) {
      const ModelInfo& each = services_.router.models()[i];
      if (each.file_name != request.begun.file) continue;
      if (!model || each.id == request.begun.model) model = i;
    }
    ++(model ? unfinished : ended);
    stream->go_on(model, request,
                  request.begun.key_name.empty() ? nullptr : limits.go_on(request.begun.key_name));
  }
  if (unfinished + readable + ended == 0) return;
  const std::string lost =
      ended == 0 ? "" : fmt::format(", {} ended: their models' files are not served", ended);
  spdlog::info("journal: {} stream(s) go on, {} can be read again{}", unfinished, readable, lost);
}

std::vector<std::shared_ptr<const Answer>> ResumableStreams::unfinished() const {
  std::vector<std::shared_ptr<const Answer>> answers;
  for (const auto& [id, stream] : streams_) {
    if (!stream->over()) answers.push_back(stream);
  }
  return answers;
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
  while (!finished_.empty() && !streams_.contains(finished_.front()))
    finished_.pop_front();  // these streams have expired
  while (finished_bytes_ > kMaxFinishedBytes && drop_oldest_finished()) {
  }
}

bool ResumableStreams::drop_oldest_finished() {
  std::erase_if(finished_, [this](const std::string& id) { return !streams_.contains(id); });
  const auto unread = std::ranges::find_if(
      finished_, [this](const std::string& id) { return !streams_.at(id)->being_read(); });
  if (unread == finished_.end()) return false;
  const auto stream = streams_.at(*unread);
  finished_.erase(unread);
  stream->drop();
  return true;
}

}  // namespace bulkhead::orchestrator
