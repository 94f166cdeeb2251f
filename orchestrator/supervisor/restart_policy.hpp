// Decides when a process that died gets its successor, and when the daemon gives up. It only counts; it has no
// timers.
//
// The first death causes no wait. Further deaths of one kind (blame.hpp) without an accepted token in between cause a
// wait of 250 ms that doubles up to 30 s, because a worker with a fault of its own dies of the same each time. If
// somebody kills the worker from outside, its clients should not have to wait: four such deaths count as one here,
// too.
//
// A hostile worker can die in another way each time. The parent can't distinguish that from a bad hour, in which others
// kill the worker in many ways soon after it began to serve. If each of these deaths caused a wait of 30 s, the worker
// would serve nobody during a bad hour. So deaths of all kinds also cause a wait if they came early (before the process
// was ready, or within ten seconds of that): from the fourth in a row on, and at most two seconds. So a loop of them
// does not keep the machine busy, and a bad hour costs little. They do not make the daemon give up.
//
// A death for which no request can be blamed (while the worker loaded, or was idle) also counts against the crash
// budget, by the same rule. A death for which a request can be blamed counts against that request (the router's
// strikes). Any accepted token shows that the worker works and resets both; so does having been ready for a minute.
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

  // `ready_for` is how long it had been ready.
  void died(const Death& death, bool request_to_blame,
            std::chrono::steady_clock::duration ready_for) {
    if (ready_for >= kSettled) reset();
    since_token_.died(death);
    // A process that was ready for a while is not in a loop.
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
  // Returns whether deaths in a row of one kind, for which no request can be blamed, have used up the budget.
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

  Blame since_token_;  // all deaths since the last token
  Blame soon_;         // those of them in a row that came early
  Blame blameless_;    // those of them without a request to blame
};

}  // namespace bulkhead::orchestrator
