// Resumable streams: answers that outlive their client's connection and, with a journal on disk, the daemon. A client
// asks for one with "resumable": true (with "stream": true and one choice). Each server-sent event has its number as
// `id:`, and GET /v1/requests/ID/events continues after `Last-Event-ID`, or from the beginning.
//
// The events are stored here in one string. A connection is a reader with a position in the string. It may read only
// as far as the journal on disk has come: an event is sent once its tokens are durable. There is one reader at a
// time; a later reader takes the stream over. Without a reader a request continues for `window` and is then
// cancelled. Its answer can be read again for the same time after its end.
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
#include "orchestrator/http/memory_budget.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/journal/disk_journal.hpp"
#include "orchestrator/metrics/metrics.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// The most bytes of finished streams to keep; the oldest streams are dropped first.
inline constexpr std::size_t kMaxFinishedBytes = std::size_t{64} << 20;

class ResumableStream;

// Returns the name of completions' or chats' endpoint in metrics and log.
std::string generation_endpoint(bool chat);

class ResumableStreams {
 public:
  struct Options {
    std::chrono::seconds window{300};
    std::chrono::seconds timeout{600};   // per request
    std::chrono::seconds keep_alive{0};  // as in AnswerServices
    // Most bytes of all streams' events. Finished streams make room for others, the oldest first.
    std::size_t most_bytes = std::size_t{256} << 20;
  };
  // Returns the options that the settings say.
  static Options options_of(const config::Settings& settings);
  // `disk` may be null: streams then survive only broken connections.
  ResumableStreams(EventLoop& loop, Router& router, Metrics& metrics, DiskJournal* disk,
                   Options options);
  ~ResumableStreams();

  // Applies to ends and beginnings from now on.
  void configure(Options options) {
    options_ = options;
    memory_.resize(options.most_bytes);
    services_.keep_alive = options.keep_alive;
  }

  // Sends spans of streams that end from now on. `spans` must outlive this object.
  void export_spans(SpanExport* spans) { services_.spans = spans; }

  // Continues the streams that an earlier daemon left, each with the key that began it. Call it before the first
  // start().
  void recover(std::vector<DiskRequest> requests, const KeyLimits& limits);

  // Begins a stream. The request must be admitted to `model`, be streamed, and have one prompt and n = 1. If it
  // returns an error, nothing was begun. Without `ticket`, no client's key began it.
  std::optional<ApiError> start(std::size_t model, GenerationRequest request,
                                std::shared_ptr<Exchange> exchange,
                                std::shared_ptr<KeyTicket> ticket);
  // Makes `exchange` the reader of stream `id`, after event `last_event_id` (empty: from the first event). Returns an
  // error if there is no such stream or event.
  std::optional<ApiError> attach(const std::string& id, const std::string& last_event_id,
                                 std::shared_ptr<Exchange> exchange);

  std::size_t size() const { return streams_.size(); }
  std::vector<std::shared_ptr<const Answer>> unfinished() const;
  const DiskJournal* disk() const { return disk_; }

 private:
  friend class ResumableStream;
  void forget(const std::string& id);
  void finished(const std::string& id, std::size_t bytes);
  // Drops the oldest finished stream that nobody reads. Returns false if somebody reads each of them.
  bool drop_oldest_finished();

  AnswerServices services_;
  DiskJournal* disk_;
  Options options_;
  MemoryBudget memory_;  // outlives the streams, which give back what they hold
  std::unordered_map<std::string, std::shared_ptr<ResumableStream>> streams_;
  std::deque<std::string> finished_;  // in the order in which they finished; some may already be gone
  std::size_t finished_bytes_ = 0;
};

}  // namespace bulkhead::orchestrator
