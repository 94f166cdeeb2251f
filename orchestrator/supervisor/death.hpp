// Why a worker process ended: the kinds that metrics count, and the kernel's word on memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::orchestrator {

enum class DeathCause {
  kSignal,             // killed by somebody else, or by its own crash
  kExit,               // it ended itself while it served
  kDeviceLost,         // it said so: the device failed or stood still
  kOutOfMemory,        // the kernel's OOM killer
  kProtocolViolation,  // it broke a rule, and was killed
  kHang,               // no sign of life, and was killed
  kFailedStart,        // it ended itself before it could serve
  kAsked,              // killed because somebody wanted it gone, or it would not go when asked
};
inline constexpr std::size_t kDeathCauses = static_cast<std::size_t>(DeathCause::kAsked) + 1;
// As metrics and /v1/workers have it: "signal", "out_of_memory".
const char* to_string(DeathCause cause);

// Successors of processes, by the cause for which each predecessor ended. kAsked: somebody wanted a new process.
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

// Tells a process that the OOM killer ended from one that somebody killed by hand. Both look the same
// to the parent, but the kernel counts the former. The memory cgroup's counter sees only this daemon's
// own processes; if it can't be read, the machine's counter (/proc/vmstat) serves instead.
class OomKills {
 public:
  // Lines "oom_kill N" are looked for in each file; the first that has one is used.
  explicit OomKills(std::vector<std::string> files);
  // The files for this process.
  static std::vector<std::string> files();
  // The one object for all workers; it counts from the first call on. Only the event loop's thread
  // may use it.
  static OomKills& of_workers();

  // Whether the counter has grown since the last call (or since the start).
  bool grew();

 private:
  std::uint64_t read() const;

  std::vector<std::string> files_;
  std::uint64_t seen_ = 0;
};

}  // namespace bulkhead::orchestrator
