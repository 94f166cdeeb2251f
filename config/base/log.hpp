// The one logger: spdlog's default logger, configured once per process, always on stderr (stdout
// belongs to program output). Include this instead of spdlog's header and use spdlog::info(...) and
// friends directly; nothing below `debug` in a decode loop.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <spdlog/spdlog.h>

#include "config/base/error.hpp"
#include "config/base/line_writer.hpp"

// Every spdlog::info() would compile all of fmt's formatting anew, 2 to 7 s a file; fmt's library
// has it.
#if defined(SPDLOG_FMT_EXTERNAL) && FMT_VERSION >= 90000 && FMT_VERSION < 100000
extern template void fmt::detail::vformat_to<char>(
    fmt::detail::buffer<char>&, fmt::string_view, fmt::basic_format_args<fmt::buffer_context<char>>,
    fmt::detail::locale_ref);
#endif

namespace bulkhead::log {

// level: trace|debug|info|warn|error|off; format: text|json (one object per line);
// program: the name each line carries. Call once, before other threads start.
Status init(const std::string& level, const std::string& format, const std::string& program);

// The level from now on, of those init() takes; any other leaves it as it is. Any thread.
void set_level(const std::string& level);

// From now on a thread writes the lines (line_writer.hpp), and nobody who logs waits for whoever reads
// them. Call once, after init(), before other threads log.
void write_in_background();
// Waits until what was logged is written; false when that took too long.
bool finish(std::chrono::milliseconds patience);
LineWriter::Figures figures();  // zero without write_in_background()

// Whole lines that are formatted already (a terminal's progress, a worker's lines). Any thread.
void write_raw(std::string_view lines);
bool is_json();  // the format of init()

}  // namespace bulkhead::log
