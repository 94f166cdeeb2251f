// The memory that clients can make the daemon hold: their requests' bodies, and answers that they do not read. All
// connections share one budget, so the number of connections times the limit of one does not matter. A part of it is
// reserved for the operator's endpoints, which must answer when nothing else does.
//
// A body counts from its first byte to the end of the answer, because what the daemon makes of the body lives that
// long. One thread.
#pragma once

#include <algorithm>
#include <cstddef>

namespace bulkhead::orchestrator {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t bytes) : total_(bytes) {}
  void resize(std::size_t bytes) { total_ = bytes; }

  // Changes one holder's share from `held` to `wanted`, or returns false and leaves it. Shrinking always works.
  bool change(std::size_t& held, std::size_t wanted, bool for_operator) {
    if (wanted > held && used_ - held + wanted > most_for(for_operator)) return false;
    used_ = used_ - held + wanted;
    held = wanted;
    most_ = std::max(most_, used_);
    return true;
  }
  std::size_t used() const { return used_; }
  std::size_t most() const { return most_; }  // the most so far
  std::size_t total() const { return total_; }
  // Returns what one holder can have if nobody else holds anything.
  std::size_t most_for(bool for_operator) const {
    return total_ - (for_operator ? 0 : std::min(total_ / 8, kMostReserved));
  }

 private:
  static constexpr std::size_t kMostReserved = std::size_t{16} << 20;
  std::size_t total_, used_ = 0, most_ = 0;
};

}  // namespace bulkhead::orchestrator
