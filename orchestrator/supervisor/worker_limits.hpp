// Limits on what a worker may say. They bound what the daemon keeps, logs and shows of it; the size of a record does
// not. They are checked before a message counts.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"

namespace bulkhead::orchestrator {

// A worker has as many threads as a driver makes for each CPU, a few for compiling, and some of its own. The kernel's
// limit counts threads of all processes of a user together, and does not apply to the superuser.
inline constexpr std::size_t kMostThreads = 1024;
inline constexpr std::chrono::milliseconds kBetweenThreadCounts{500};

// kCorrupt if a text or list is longer than it can be, or if a number of an embedding or a score is not finite.
Status check_limits(const ipc::FromWorker& message);

// Makes texts fit for one line of a log or terminal: control characters become spaces, and a last message, whose
// length is free, is cut.
void tidy(ipc::FromWorker& message);

// Counts messages that bring no request forward (statistics, pongs, tokens of cancelled requests, empty batches). An
// honest worker sends a few each second; more are meant to keep the daemon busy. The window is
// long, because a daemon on a busy machine reads a flood slowly and must find it all the same.
class ChatterLimit {
 public:
  static constexpr std::uint32_t kMost = 10000;
  static constexpr std::chrono::seconds kWindow{10};
  // Counts one. Returns false if there were too many within the window.
  bool allow(std::chrono::steady_clock::time_point now) {
    if (now - begun_ >= kWindow) {
      begun_ = now;
      count_ = 0;
    }
    return ++count_ <= kMost;
  }

 private:
  std::chrono::steady_clock::time_point begun_{};
  std::uint32_t count_ = 0;
};

}  // namespace bulkhead::orchestrator
