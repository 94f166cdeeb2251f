// When a process that died gets its successor, and when no more are tried. Only counts: no timers.
//
// The first death costs no wait. Further ones of a kind (blame.hpp) without an accepted token in
// between wait from 250 ms, doubling up to 30 s: a worker that dies of its own doing dies of the same
// each time. Somebody who kills it from outside is no reason to keep its clients waiting: four such
// deaths count as one here, too.
//
// One that means to can die of something else each time. To its parent that looks like a worker
// that others kill in many ways while it has hardly come to serve, a bad hour, and to wait 30 s for
// that one would be to serve nobody. So deaths of all kinds in a row that came soon, before the
// process was ready or within ten seconds of that, wait as well, from the fourth on, but two
// seconds at the most: a loop of them keeps no machine busy, and a bad hour costs little. They are
// no reason to give it up.
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
  static constexpr std::chrono::seconds kSoon{10};

  // `ready_for`: how long it had been ready.
  void died(const Death& death, bool request_to_blame,
            std::chrono::steady_clock::duration ready_for) {
    if (ready_for >= kSettled) reset();
    since_token_.died(death);
    // One that held out for a while is not in a loop.
    if (ready_for >= kSoon) soon_.progressed();
    soon_.died(death);
    if (!request_to_blame) blameless_.died(death);
  }
  void reset() {
    since_token_.progressed();
    soon_.progressed();
    blameless_.progressed();
  }

  std::uint32_t deaths() const { return since_token_.deaths(); }
  // Deaths in a row of one kind that nobody's request explains.
  bool spent(std::uint32_t budget) const { return blameless_.most_of_a_kind() >= budget; }
  std::chrono::milliseconds delay() const {
    constexpr std::uint32_t kAlikeAtNoCost = 1, kMixedAtNoCost = 3;
    return std::max(grown(since_token_.most_of_a_kind(), kAlikeAtNoCost, std::chrono::seconds(30)),
                    grown(soon_.of_all_kinds(), kMixedAtNoCost, std::chrono::seconds(2)));
  }

 private:
  static std::chrono::milliseconds grown(std::uint32_t deaths, std::uint32_t at_no_cost,
                                         std::chrono::milliseconds longest) {
    constexpr std::chrono::milliseconds kFirst{250};
    if (deaths <= at_no_cost) return std::chrono::milliseconds(0);
    const std::uint32_t doublings = std::min(deaths - at_no_cost - 1, 10U);
    return std::min(kFirst * (1 << doublings), longest);
  }

  Blame since_token_;  // all deaths without a token in between
  Blame soon_;         // of these, those in a row that came soon
  Blame blameless_;    // of these, those with no request at hand
};

}  // namespace bulkhead::orchestrator
