// What clients can make the daemon hold: their requests' bodies, and answers that they do not read.
// One budget for all connections, so that their number times the limit of one is no matter. A part of
// it is kept for the operator's endpoints, which must answer when nothing else does.
//
// Bodies count from their first byte to the end of the answer, since what was made of them lives so
// long. One thread.
#pragma once

#include <algorithm>
#include <cstddef>

namespace bulkhead::orchestrator {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t bytes) : total_(bytes) {}
  void resize(std::size_t bytes) { total_ = bytes; }

  // Changes what one holder has from `held` to `wanted`, or leaves it. Shrinking always works.
  bool change(std::size_t& held, std::size_t wanted, bool for_operator) {
    const std::size_t reserved = for_operator ? 0 : std::min(total_ / 8, kMostReserved);
    if (wanted > held && used_ - held + wanted > total_ - reserved) return false;
    used_ = used_ - held + wanted;
    held = wanted;
    most_ = std::max(most_, used_);
    return true;
  }
  std::size_t used() const { return used_; }
  std::size_t most() const { return most_; }  // so far
  std::size_t total() const { return total_; }

 private:
  static constexpr std::size_t kMostReserved = std::size_t{16} << 20;
  std::size_t total_, used_ = 0, most_ = 0;
};

}  // namespace bulkhead::orchestrator
