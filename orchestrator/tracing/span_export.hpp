// Sends spans of finished generations to a collector of traces, by OTLP over HTTP with JSON
// (https://opentelemetry.io/docs/specs/otlp/). Off unless server.otlp_endpoint is set.
//
// The event loop only puts a span into a bounded queue. A thread of its own connects, sends and waits, each with a
// bound. If the collector hangs, refuses or is gone, spans are dropped and counted, and nothing else happens.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/base/quiet_thread.hpp"
#include "config/http_address.hpp"
#include "orchestrator/metrics/metrics.hpp"

namespace bulkhead::orchestrator {

// One request that generated text. Times are those of the wall clock.
struct GenerationSpan {
  using Time = std::chrono::system_clock::time_point;
  std::string trace_id, span_id, parent_id;  // hex; parent_id is empty if the client sent none
  std::string name;                          // method and endpoint
  Time began, ended;
  // When a worker began to read the prompt, and when the first token came. Zero: neither is known.
  Time reading_began{}, first_token{};
  int status = 0;
  std::string end;  // the finish reason, or an error's code
  std::string request_id, model;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

// Returns the body of a request to the collector. The children `queue`, `prompt` and `generation` of a span get ids of
// their own.
std::string otlp_body(const std::vector<GenerationSpan>& spans, const std::string& version);

class SpanExport {
 public:
  struct Options {
    config::HttpAddress collector;
    std::string version;
    std::size_t most_waiting = 2048;
    std::size_t most_at_once = 256;
    std::chrono::milliseconds patience =
        std::chrono::seconds(5);  // for one request to the collector
    // The pause after a request that failed; twice as long after each further one, up to `longest_pause`.
    std::chrono::milliseconds pause = std::chrono::seconds(1);
    std::chrono::milliseconds longest_pause = std::chrono::seconds(30);
  };
  explicit SpanExport(Options options);
  // Lets the thread send what waits, for half a second at most.
  ~SpanExport();
  SpanExport(const SpanExport&) = delete;
  SpanExport& operator=(const SpanExport&) = delete;

  // Never waits.
  void add(GenerationSpan span);
  std::vector<DaemonFigure> figures() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  DetachedThread thread_;
};

}  // namespace bulkhead::orchestrator
