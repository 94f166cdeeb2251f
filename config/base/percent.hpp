// Progress in percent, from two numbers that another process may have made up.
#pragma once

#include <algorithm>
#include <cstdint>

namespace bulkhead {

// Returns 0 to 100, rounded down; 0 while `total` is unknown (0).
constexpr int percent_of(std::uint64_t done, std::uint64_t total) {
  if (total == 0) return 0;
  using Wide = unsigned __int128;  // so that a hundred times `done` cannot overflow
  return static_cast<int>(std::min<Wide>(Wide{done} * 100 / total, 100));
}

}  // namespace bulkhead
