// Time spans in whole nanoseconds, for counters, from the clock that never jumps.
#pragma once

#include <chrono>
#include <cstdint>

namespace bulkhead {

// `to` must not be before `from`.
inline std::uint64_t nanoseconds_between(std::chrono::steady_clock::time_point from,
                                         std::chrono::steady_clock::time_point to) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

inline std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  return nanoseconds_between(start, std::chrono::steady_clock::now());
}

}  // namespace bulkhead
