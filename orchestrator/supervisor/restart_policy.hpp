// When a process that died gets its successor, and when no more are tried. Only counts: no timers.
//
// The first death costs no wait. Further ones of a kind (blame.hpp) without an accepted token in
// between wait from 250 ms, doubling up to 30 s: a worker that dies of its own doing dies of the same
// each time. (One that means to can send itself another signal each time; counting all kinds
// together would make it wait, and with it the clients of a worker that has a bad hour.) Somebody who
// kills it from outside is no reason to keep its clients waiting: four such deaths count as one here,
// too.
//
// A death with no request to blame for it (while it loaded, or idle) counts against the crash budget,
// as well, by the same rule. What a request can be blamed for counts against that request (the
// router's strikes). Any accepted token shows that the worker works, and resets both; so does having
// been ready for a minute.
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
    since_token_.died(death);
    if (!request_to_blame) blameless_.died(death);
  }
  void reset() {
    since_token_.progressed();
    blameless_.progressed();
  }

  std::uint32_t deaths() const { return since_token_.deaths(); }
  // Deaths in a row of one kind that nobody's request explains.
  bool spent(std::uint32_t budget) const { return blameless_.most_of_a_kind() >= budget; }
  std::chrono::milliseconds delay() const {
    constexpr std::chrono::milliseconds kFirst{250}, kLongest{30000};
    const std::uint32_t alike = since_token_.most_of_a_kind();
    if (alike <= 1) return std::chrono::milliseconds(0);
    const std::uint32_t doublings = std::min(alike - 2, 10U);
    return std::min(kFirst * (1 << doublings), kLongest);
  }

 private:
  Blame since_token_;  // all deaths without a token in between
  Blame blameless_;    // of these, those with no request at hand
};

}  // namespace bulkhead::orchestrator
