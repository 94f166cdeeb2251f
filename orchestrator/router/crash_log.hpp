// The last deaths of workers, for whoever looks for their cause: when, of what, and what the process was
// doing. No prompt and no text of an answer is in it. One thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/supervisor/death.hpp"

namespace bulkhead::orchestrator {

struct Crash {
  std::chrono::system_clock::time_point time{};
  std::string worker, model;
  pid_t pid = -1;
  DeathCause cause = DeathCause::kExit;
  // How it ended, and what it said last: of a device that failed, the step, its columns and sequences, and the
  // kernel where one could be named.
  std::string words;
  std::optional<std::uint64_t> step;  // the last that it counted; none: its channel has no counter
  std::vector<std::string> requests;  // ids, as clients know them, of those that it can have seen
};

class CrashLog {
 public:
  static constexpr std::size_t kKept = 50;

  // The same process may be told of twice: when its requests are taken from it, and at its exit.
  void add(Crash crash) {
    if (!crashes_.empty() && crash.pid > 0 && crashes_.back().pid == crash.pid &&
        crashes_.back().worker == crash.worker) {
      Crash& known = crashes_.back();
      known.cause = crash.cause;
      known.words = std::move(crash.words);
      known.requests.insert(known.requests.end(), crash.requests.begin(), crash.requests.end());
      return;
    }
    crashes_.push_back(std::move(crash));
    if (crashes_.size() > kKept) crashes_.pop_front();
  }

  const std::deque<Crash>& all() const { return crashes_; }  // the oldest first

 private:
  std::deque<Crash> crashes_;
};

}  // namespace bulkhead::orchestrator
