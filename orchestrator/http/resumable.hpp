// Resumable streams: answers that outlive their client's connection and, with a journal on disk,
// the daemon. A client asks for one with "resumable": true (with "stream": true, one choice). Each
// server-sent event has its number as `id:`, and GET /v1/requests/ID/events goes on after
// `Last-Event-ID`, or from the beginning.
//
// The events are kept here, in one string; a connection is a reader with a place in it, and what it
// may read ends where the journal on disk does: an event is sent when its tokens are durable. One
// reader at a time: a later one takes the stream over. Without a reader a request goes on for
// `window`, then it is cancelled; its answer can be read again for the same time after its end.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "orchestrator/http/answer.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/key_limits.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/journal/disk_journal.hpp"
#include "orchestrator/metrics/metrics.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// What is kept of finished streams; the oldest go first.
inline constexpr std::size_t kMaxFinishedBytes = std::size_t{64} << 20;

class ResumableStream;

// Of completions or chats, as metrics and log name it.
std::string generation_endpoint(bool chat);

class ResumableStreams {
 public:
  struct Options {
    std::chrono::seconds window{300};
    std::chrono::seconds timeout{600};   // of a request
    std::chrono::seconds keep_alive{0};  // as in AnswerServices
  };
  // `disk` may be null: streams then survive connections only.
  ResumableStreams(EventLoop& loop, Router& router, Metrics& metrics, DiskJournal* disk,
                   Options options);
  ~ResumableStreams();

  // For ends and beginnings from now on.
  void configure(Options options) {
    options_ = options;
    services_.keep_alive = options.keep_alive;
  }

  // Goes on with the streams that an earlier daemon left, each for the key that began it. Call it
  // before the first start().
  void recover(std::vector<DiskRequest> requests, const KeyLimits& limits);

  // Admitted to `model` already; one prompt, n = 1, streamed. An error when nothing was begun.
  std::optional<ApiError> start(std::size_t model, GenerationRequest request,
                                std::shared_ptr<Exchange> exchange);
  // Makes `exchange` the reader of stream `id`, after event `last_event_id` (empty: from the
  // first). An error when there is no such stream or event.
  std::optional<ApiError> attach(const std::string& id, const std::string& last_event_id,
                                 std::shared_ptr<Exchange> exchange);

  std::size_t size() const { return streams_.size(); }
  std::vector<std::shared_ptr<const Answer>> unfinished() const;
  const DiskJournal* disk() const { return disk_; }

 private:
  friend class ResumableStream;
  void forget(const std::string& id);
  void finished(const std::string& id, std::size_t bytes);

  AnswerServices services_;
  DiskJournal* disk_;
  Options options_;
  std::unordered_map<std::string, std::shared_ptr<ResumableStream>> streams_;
  std::deque<std::string> finished_;  // in the order in which they did; some may be gone
  std::size_t finished_bytes_ = 0;
};

}  // namespace bulkhead::orchestrator
