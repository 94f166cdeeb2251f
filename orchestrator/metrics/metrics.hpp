// What /metrics tells, in Prometheus's text format. Counters of requests are kept here; figures of
// workers and channels are read from the router when somebody asks. One thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "orchestrator/journal/disk_journal.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// A figure of a part that the router knows nothing of: the event loop, the log, the server.
struct DaemonFigure {
  const char* name;
  const char* help;
  double value = 0;
  bool counts = true;                        // a counter; else a gauge
  std::string label = {}, label_value = {};  // empty: none
};

class Metrics {
 public:
  // `disk` may be null: there is no journal on disk.
  Metrics(const Router& router, const DiskJournal* disk);
  ~Metrics();

  void request_done(const std::string& endpoint, int status);
  void tokens(std::uint64_t prompt, std::uint64_t completion);
  void first_token(std::chrono::duration<double> since_request);
  // A record with `count` tokens, `since_last` after the one before.
  void next_tokens(std::chrono::duration<double> since_last, std::size_t count);
  void request_duration(std::chrono::duration<double> total);
  // `cause` as to_string(DeathCause) has it.
  void worker_death(const std::string& worker, const std::string& cause);
  void slow_client();
  void client_hang_up();

  // Asked for whenever somebody asks for the text.
  void add_figures(std::function<std::vector<DaemonFigure>()> figures);
  std::string text(std::size_t connections) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::orchestrator
