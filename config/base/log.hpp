// The one logger: spdlog's default logger, configured once per process, always on stderr (stdout belongs to
// program output). Use spdlog::info(...) and friends directly; nothing below `debug` in a decode loop.
#pragma once

#include <string>

#include "config/base/error.hpp"

namespace bulkhead::log {

// level: trace|debug|info|warn|error|off; format: text|json (one object per line);
// program: the name each line carries. Call once, before other threads start.
Status init(const std::string& level, const std::string& format, const std::string& program);

}  // namespace bulkhead::log
