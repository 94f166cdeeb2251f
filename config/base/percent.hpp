// How far along something is, from two numbers that another process may have made up.
#pragma once

#include <algorithm>
#include <cstdint>

namespace bulkhead {

// 0 to 100, rounded down; 0 while `total` is not known (0).
constexpr int percent_of(std::uint64_t done, std::uint64_t total) {
  if (total == 0) return 0;
  using Wide = unsigned __int128;  // a hundred times `done` has room
  return static_cast<int>(std::min<Wide>(Wide{done} * 100 / total, 100));
}

}  // namespace bulkhead
