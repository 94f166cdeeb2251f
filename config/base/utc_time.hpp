// Times in the format of the logs and the API: 2026-01-15T12:00:00.123Z.
#pragma once

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

namespace bulkhead {

inline std::string utc_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[40], fraction[16];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(fraction, sizeof fraction, ".%03dZ", static_cast<int>(since.count() % 1000));
  return std::string(text) + fraction;
}

}  // namespace bulkhead
