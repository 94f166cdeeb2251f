// What workers write to their stderr (and to stdout, which is the same pipe). Each worker has a pipe; a thread of the
// daemon reads it and passes it on to the log, line by line.
//
// A worker is not trusted with the log. Each line begins with the worker's name, contains no control characters, and
// ends after kMaxLineBytes in any case. A worker that writes more than kLinesPerSecond or kBytesPerSecond for longer
// than a moment loses lines, which are counted and reported; one that writes much more waits at its own pipe. The
// event loop does none of this work.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

class WorkerLogs {
 public:
  static constexpr std::size_t kMaxLineBytes = 4096;
  static constexpr std::uint64_t kLinesPerSecond = 100, kLinesAtOnce = 5000;
  static constexpr std::uint64_t kBytesPerSecond = 32 << 10, kBytesAtOnce = 1 << 20;

  // The one object of this process. Its thread starts with the first pipe, and lasts as long as the process.
  static WorkerLogs& instance();

  // Makes a new pipe and returns the end for the worker with this name. The thread reads it until all processes that
  // have that end are gone.
  Result<UniqueFd> open(std::string name);

  // Waits until the thread has passed on what all workers had written before this call. Returns false if that takes
  // longer than `most`, as it may if a worker goes on writing. Call it before the daemon ends.
  bool catch_up(std::chrono::milliseconds most);

  // Returns the last lines of workers with this name and the daemon's log lines about them, at most kKeptBytesPerName
  // of text. Any thread.
  static constexpr std::size_t kKeptBytesPerName = 64 << 10, kKeptNames = 256;
  struct Line {
    std::uint64_t number = 0;  // counts upwards, over all names
    std::string time;          // 2026-01-15T12:00:00.123Z
    std::string text;          // without control characters
  };
  std::vector<Line> lines(const std::string& name) const;
  void keep(const std::string& name, std::string_view text);

  struct Figures {
    std::uint64_t lines = 0;    // passed on
    std::uint64_t dropped = 0;  // not passed on
  };
  Figures figures() const;

 private:
  WorkerLogs();
  struct Shared;
  Shared* shared_;  // never freed, because the thread uses it
};

// Makes WorkerLogs keep the daemon's log lines about a worker: those that begin with "worker NAME: ". Call it after
// log::write_in_background() and before other threads log.
void keep_lines_about_workers();

// Returns a worker's line in the form of the log: "NAME| LINE", or a JSON object in the log's shape with the worker's
// name. If the worker's line is JSON, the object gets its level and message.
std::string worker_log_line(const std::string& worker, std::string_view line, bool json);

}  // namespace bulkhead::orchestrator
