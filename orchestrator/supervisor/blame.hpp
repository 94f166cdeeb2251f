// Counts deaths in a row: how far they incriminate a request that got no token of its own in between, or a worker
// (restart_policy.hpp). This class has no access to requests and processes.
//
// A poisonous request ends each worker in the same way. An innocent request that happens to meet a bad hour sees
// deaths of many kinds. So only the most frequent kind counts, and the first death of that kind is nobody's fault. A
// SIGKILL that does not come from the OOM killer, and a SIGSTOP, come from outside and say almost nothing about the
// request. But the request must not be tried for ever, because a person or program may kill the workers on account
// of the request: four such deaths count as one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "orchestrator/supervisor/worker_process.hpp"

namespace bulkhead::orchestrator {

class Blame {
 public:
  static constexpr std::uint32_t kFromOutsideThatCountAsOne = 4;

  void died(const Death& death) {
    death.from_outside ? ++from_outside_ : ++by_kind_[{death.cause, death.signal}];
  }
  void progressed() { *this = Blame(); }

  std::uint32_t deaths() const {
    return std::accumulate(by_kind_.begin(), by_kind_.end(), from_outside_,
                           [](std::uint32_t sum, const auto& kind) { return sum + kind.second; });
  }
  // Returns whether the request must be tried alone, so that no other request gets the blame.
  bool suspect() const { return !by_kind_.empty(); }
  std::uint32_t most_of_a_kind() const {
    std::uint32_t most = from_outside_ / kFromOutsideThatCountAsOne;
    for (const auto& [kind, count] : by_kind_)
      most = std::max(most, count);
    return most;
  }
  // Returns the number of deaths of all kinds; four from outside count as one.
  std::uint32_t of_all_kinds() const {
    return deaths() - from_outside_ + from_outside_ / kFromOutsideThatCountAsOne;
  }
  std::uint32_t strikes() const { return std::max(most_of_a_kind(), 1U) - 1; }

 private:
  std::map<std::pair<DeathCause, int>, std::uint32_t> by_kind_;
  std::uint32_t from_outside_ = 0;
};

}  // namespace bulkhead::orchestrator
