// Why a worker process ended: the causes that metrics count, and the kernel's information about memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::orchestrator {

enum class DeathCause {
  kSignal,             // somebody else killed it, or it crashed
  kExit,               // it ended itself while it served
  kDeviceLost,         // it reported that the device failed or hung
  kOutOfMemory,        // the kernel's OOM killer
  kProtocolViolation,  // it broke a rule, and was killed
  kHang,               // no sign of life, so it was killed
  kFailedStart,        // it ended itself before it could serve
  kAsked,              // killed because somebody asked for its end, or because it did not end when asked
};
inline constexpr std::size_t kDeathCauses = static_cast<std::size_t>(DeathCause::kAsked) + 1;
// Returns the name in metrics and /v1/workers: "signal", "out_of_memory".
const char* to_string(DeathCause cause);

// Counts successors of processes, by the cause for which each predecessor ended. kAsked: somebody asked for a
// new process.
class Restarts {
 public:
  void add(DeathCause cause) { ++by_cause_[static_cast<std::size_t>(cause)]; }
  std::uint64_t of(DeathCause cause) const { return by_cause_[static_cast<std::size_t>(cause)]; }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t each : by_cause_)
      sum += each;
    return sum;
  }

 private:
  std::array<std::uint64_t, kDeathCauses> by_cause_{};
};

// Distinguishes a process that the OOM killer ended from one that somebody killed by hand. Both look the same to the
// parent, but the kernel counts the former. The memory cgroup's counter includes only this daemon's own processes; if
// it can't be read, the machine's counter (/proc/vmstat) is used.
class OomKills {
 public:
  // Looks for a line "oom_kill N" in each file; the first file that has one is used.
  explicit OomKills(std::vector<std::string> files);
  // Returns the files for this process.
  static std::vector<std::string> files();
  // The one object for all workers; it counts from the first call on. Only the event loop's thread may use it.
  static OomKills& of_workers();

  // Returns whether the counter has grown since the last call (or since the start).
  bool grew();

 private:
  std::uint64_t read() const;

  std::vector<std::string> files_;
  std::uint64_t seen_ = 0;
};

}  // namespace bulkhead::orchestrator
