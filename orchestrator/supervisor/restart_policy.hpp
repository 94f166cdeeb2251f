// When a process that died gets its successor, and when no more are tried. Only counts: no timers.
//
// The first death costs no wait. Further ones without an accepted token in between wait from 250 ms,
// doubling up to 30 s. A death with no request to blame for it (while it loaded, or idle) counts
// against the crash budget, too, each kind of death by itself (blame.hpp): what can't be started dies
// of the same each time. What a request can be blamed for counts against that request (the router's
// strikes). Any accepted token shows that the worker works, and resets both; so does having been
// ready for a minute.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "orchestrator/supervisor/blame.hpp"

namespace bulkhead::orchestrator {

class RestartPolicy {
 public:
  static constexpr std::chrono::seconds kSettled{60};

  // `ready_for`: how long it had been ready.
  void died(const Death& death, bool request_to_blame,
            std::chrono::steady_clock::duration ready_for) {
    if (ready_for >= kSettled) reset();
    ++deaths_;
    if (!request_to_blame) blameless_.died(death);
  }
  void reset() {
    deaths_ = 0;
    blameless_ = Blame();
  }

  std::uint32_t deaths() const { return deaths_; }
  // Deaths in a row of one kind that nobody's request explains.
  bool spent(std::uint32_t budget) const { return blameless_.most_of_a_kind() >= budget; }
  std::chrono::milliseconds delay() const {
    constexpr std::chrono::milliseconds kFirst{250}, kLongest{30000};
    if (deaths_ <= 1) return std::chrono::milliseconds(0);
    const std::uint32_t doublings = std::min(deaths_ - 2, 10U);
    return std::min(kFirst * (1 << doublings), kLongest);
  }

 private:
  std::uint32_t deaths_ = 0;  // without a token in between
  Blame blameless_;           // of these, those with no request at hand
};

}  // namespace bulkhead::orchestrator
