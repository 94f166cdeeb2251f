// The one logger: spdlog's default logger, configured once per process. It always writes to stderr, because stdout is
// for the program's output. Include this header instead of spdlog's and call spdlog::info(...) and the like directly.
// A decode loop must log nothing above `debug`.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <spdlog/spdlog.h>

#include "config/base/error.hpp"
#include "config/base/line_writer.hpp"

// Without these declarations, each file that calls spdlog::info() would compile all of fmt's formatting again, which
// takes 2 to 7 s a file. The library of fmt contains it already.
#if defined(SPDLOG_FMT_EXTERNAL) && FMT_VERSION >= 90000 && FMT_VERSION < 100000
extern template void fmt::detail::vformat_to<char>(
    fmt::detail::buffer<char>&, fmt::string_view, fmt::basic_format_args<fmt::buffer_context<char>>,
    fmt::detail::locale_ref);
#endif

namespace bulkhead::log {

// level: trace|debug|info|warn|error|off; format: text|json (one object per line);
// program: the name each line carries. Call once, before other threads start.
Status init(const std::string& level, const std::string& format, const std::string& program);

// Changes the level. Any text that init() does not accept as a level changes nothing. Any thread.
void set_level(const std::string& level);

// From now on a separate thread writes the lines (line_writer.hpp), so logging never waits for the log's reader. Call
// once, after init(), before other threads log.
void write_in_background();
// Waits until everything logged so far is written. Returns false if `patience` ran out first.
bool finish(std::chrono::milliseconds patience);
LineWriter::Figures figures();  // all zero without write_in_background()

// Writes whole lines that are already formatted (a terminal's progress, a worker's lines). Any thread.
void write_raw(std::string_view lines);
bool is_json();  // whether init() chose the format json

}  // namespace bulkhead::log
