// The text of /metrics, in Prometheus's format. Rows here declare the events that the daemon counts and times; the
// router provides the figures of workers and channels when a client asks for the text. One thread.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orchestrator/journal/disk_journal.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// A kind of event that the daemon counts. To add one, add a row here, and call Metrics::count() where it happens.
struct EventCounter {
  const char* name;
  const char* help;
  std::array<const char*, 2> labels = {};  // null: the row has fewer labels
  // Values of the first label that the text shows from the start, with a count of 0.
  std::array<const char*, 2> shown = {};
};

// A kind of time that the daemon measures. To add one, add a row here, and call Metrics::time() after the
// measurement.
struct EventTimes {
  const char* name;
  const char* help;
  std::span<const double> bounds;  // upper bounds of the buckets, in seconds
};

namespace events {

inline constexpr EventCounter kRequestsDone{"bulkhead_requests_total",
                                            "HTTP requests answered, by endpoint and status",
                                            {"endpoint", "status"}};
inline constexpr EventCounter kTokens{"bulkhead_tokens_total",
                                      "Tokens of finished requests, by kind",
                                      {"kind"},
                                      {"prompt", "completion"}};
// `cause` is a name that to_string(DeathCause) returns.
inline constexpr EventCounter kWorkerDeaths{
    "bulkhead_worker_deaths_total",
    "Worker processes that died without a request to end, by cause",
    {"worker", "cause"}};
inline constexpr EventCounter kClientsLost{
    "bulkhead_clients_lost_total",
    "Answers that ended because the client was too slow or gone",
    {"reason"},
    {"slow", "hung_up"}};
inline constexpr const EventCounter* kCounters[] = {&kRequestsDone, &kTokens, &kWorkerDeaths,
                                                    &kClientsLost};

inline constexpr double kFirstTokenSeconds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                1,     2.5,  5,     10,   30,  60};
inline constexpr double kInterTokenSeconds[] = {0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032,
                                                0.064,  0.125, 0.25,  0.5,   1,     5};
inline constexpr double kRequestSeconds[] = {0.01, 0.05, 0.1, 0.5, 1,   2.5, 5,
                                             10,   30,   60,  120, 300, 600};
inline constexpr EventTimes kFirstToken{"bulkhead_time_to_first_token_seconds",
                                        "Time from a request's arrival to its first token",
                                        kFirstTokenSeconds};
inline constexpr double kQueueSeconds[] = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1,
                                           2.5,   5,     10,   30,   60,  120, 300};
inline constexpr EventTimes kQueue{
    "bulkhead_queue_time_seconds",
    "Time from a request's arrival until a worker began to read its prompt, for complete answers",
    kQueueSeconds};
inline constexpr EventTimes kPrefill{
    "bulkhead_prefill_time_seconds",
    "From a worker's first look at a prompt until its first token, of answers that ended well",
    kFirstTokenSeconds};
inline constexpr EventTimes kInterToken{"bulkhead_inter_token_seconds",
                                        "Between the tokens of one sequence", kInterTokenSeconds};
inline constexpr EventTimes kRequest{"bulkhead_request_seconds",
                                     "From a generation's arrival to its end", kRequestSeconds};
inline constexpr const EventTimes* kTimes[] = {&kFirstToken, &kQueue, &kPrefill, &kInterToken,
                                               &kRequest};

}  // namespace events

// A figure of a part that is not the router's: the event loop, the log, the server.
struct DaemonFigure {
  const char* name;
  const char* help;
  double value = 0;
  bool counts = true;                        // a counter; otherwise a gauge
  std::string label = {}, label_value = {};  // empty: none
  std::string more_label = {}, more_label_value = {};
};

class Metrics {
 public:
  // `disk` is null if there is no journal on disk.
  Metrics(const Router& router, const DiskJournal* disk);
  ~Metrics();

  // Counts `by` events. `labels` are the values of the row's labels, in order.
  void count(const EventCounter& what, std::initializer_list<std::string> labels,
             std::uint64_t by = 1);
  // Counts a measured time `times` times.
  void time(const EventTimes& what, std::chrono::duration<double> took, std::size_t times = 1);

  // text() calls `figures` each time.
  void add_figures(std::function<std::vector<DaemonFigure>()> figures);
  std::string text(std::size_t connections) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::orchestrator
