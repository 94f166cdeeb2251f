// Keeps the last deaths of workers for an operator who looks for their causes: the time, the cause, and what the
// process was doing. It contains no prompts and no text of answers. One thread.
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
  // How the process ended, and its last message. If its device failed, the words name the step, its columns and
  // sequences, and the recordings of which it consists. No driver says which kernel of a recording ran at the failure,
  // so the words name one only with gpu_optimizations.command_buffer_ring.mark_kernels, or if it could not be made.
  std::string words;
  std::optional<std::uint64_t> step;  // the process's last step; empty: its channel does not count steps
  std::vector<std::string> requests;  // clients' names of the requests that it may have seen
};

class CrashLog {
 public:
  static constexpr std::size_t kKept = 50;

  // Adds a death. The router may add a process twice: when it takes the requests back, and at the process's exit.
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
