// The times of a worker's last recovery: when its unrequested death was noticed, and when its successor reached each
// stage. /v1/workers shows them as last_recovery, and bench-recovery splits its figures by them. Each time is the
// first of its kind since the death, by CLOCK_MONOTONIC, so that other processes of this machine can compare their
// own times with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace bulkhead::orchestrator {

class Recovery {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = std::optional<Clock::time_point>;
  // How the successor got the weights.
  enum class Way { kLoaded, kImported, kStandby };

  // The end of the socket or of the process, or the decision to end it, whichever comes first. forget_end() takes it
  // back if nothing has to recover from this end: the process was asked to end, or it gets no successor that serves.
  void noticed() { set(pending_); }
  void forget_end() { pending_.reset(); }
  // The process is reaped, or is known to have stopped, so its successor may begin. `carried` is the number of
  // requests that it leaves unfinished.
  void ended(std::size_t carried) {
    noticed();
    // A second death during the recovery: requests that have waited since the first are still carried.
    const std::size_t waiting = resumed_.has_value() ? 0 : carried_;
    const Time noticed_at = pending_;
    *this = Recovery();
    noticed_ = noticed_at;
    carried_ = carried + waiting;
    set(ended_);
  }
  // The process is reaped.
  void gone() { set_after_end(gone_); }
  // For the successor: it has sent its hello, and it serves.
  void greeted() { set_after_end(greeted_); }
  void ready(Way way) {
    if (ended_.has_value() && !ready_.has_value()) way_ = way;
    set_after_end(ready_);
  }
  // This worker sent the first news of a carried request.
  void resumed() {
    if (ready_.has_value() && carried_ > 0) set(resumed_);
  }

  bool any() const { return noticed_.has_value(); }
  const Time& noticed_at() const { return noticed_; }
  const Time& ended_at() const { return ended_; }
  const Time& gone_at() const { return gone_; }
  const Time& greeted_at() const { return greeted_; }
  const Time& ready_at() const { return ready_; }
  const Time& resumed_at() const { return resumed_; }
  std::size_t carried() const { return carried_; }
  Way way() const { return way_; }

 private:
  static void set(Time& time) {
    if (!time.has_value()) time = Clock::now();
  }
  void set_after_end(Time& time) const {
    if (ended_.has_value()) set(time);
  }

  Time pending_;  // for a process that has not been reaped yet
  Time noticed_, ended_, gone_, greeted_, ready_, resumed_;
  std::size_t carried_ = 0;
  Way way_ = Way::kLoaded;
};

inline const char* to_string(Recovery::Way way) {
  switch (way) {
    case Recovery::Way::kLoaded:
      return "loaded";
    case Recovery::Way::kImported:
      return "imported";
    case Recovery::Way::kStandby:
      return "standby";
  }
  return "unknown";
}

}  // namespace bulkhead::orchestrator
