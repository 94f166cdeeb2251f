#include "config/base/log.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "config/base/clean_text.hpp"
#include "config/base/log_event.hpp"

namespace bulkhead::log {
namespace {

std::string time_text(std::chrono::system_clock::time_point time) {
  const auto since_epoch = time.time_since_epoch();
  const std::time_t seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[96];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                static_cast<int>(milliseconds));
  return text;
}

// Returns a field in the form that follows the message.
std::string text_of(const Field& field, bool json) {
  const bool number = field.kind == Field::Kind::kNumber;
  if (json) {
    const std::string value =
        number ? field.value : "\"" + cleaned(field.value, Escapes::kJson) + "\"";
    return ",\"" + std::string(field.name) + "\":" + value;
  }
  const std::string value = number ? field.value : cleaned(field.value);
  const char* const quote = field.kind == Field::Kind::kQuoted ? "\"" : "";
  return " " + std::string(field.name) + "=" + quote + value + quote;
}

// Returns this process's id as other processes see it: in a namespace of process ids getpid() returns another one.
std::string process_number() {
  char number[32];
  const ssize_t length = ::readlink("/proc/self", number, sizeof number);
  return length > 0 ? std::string(number, static_cast<std::size_t>(length))
                    : std::to_string(::getpid());
}

// Makes one line in either format. A message and fields may contain text of a client or a worker, so they are
// cleaned.
std::string line_of(bool json, std::chrono::system_clock::time_point time, std::string_view level,
                    std::string_view program, std::string_view message,
                    std::span<const Field> fields = {}) {
  std::string more;
  for (const Field& field : fields)
    more += text_of(field, json);
  if (level == "warning") level = "warn";
  const std::string pid = process_number();
  if (!json) {
    return time_text(time) + " " + cleaned(program) + "[" + pid + "] " + std::string(level) + ": " +
           cleaned(message) + more + "\n";
  }
  return "{\"time\":\"" + time_text(time) + "\",\"level\":\"" + std::string(level) +
         "\",\"program\":\"" + cleaned(program, Escapes::kJson) + "\",\"pid\":" + pid +
         ",\"message\":\"" + cleaned(message, Escapes::kJson) + "\"" + more + "}\n";
}

class LineFormatter final : public spdlog::formatter {
 public:
  LineFormatter(bool json, std::string program) : json_(json), program_(std::move(program)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    const std::string line = line_of(json_, message.time, {level.data(), level.size()}, program_,
                                     {message.payload.data(), message.payload.size()});
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(json_, program_);
  }

 private:
  bool json_;
  std::string program_;
};

// Passes lines to the writer's thread. The base class's lock keeps them whole and in order.
class QueuedSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueuedSink(LineWriter& writer) : writer_(writer) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_.put({line.data(), line.size()});
  }
  void flush_() override {}

 private:
  LineWriter& writer_;
};

// How this process logs. Written once, by init() and write_in_background().
struct Logging {
  bool json = false;
  std::string program;
  LineWriter* writer = nullptr;  // null: the thread that logs a line also writes it
};
Logging logging;

constexpr std::pair<const char*, spdlog::level::level_enum> kLevels[] = {
    {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug}, {"info", spdlog::level::info},
    {"warn", spdlog::level::warn},   {"error", spdlog::level::err},   {"off", spdlog::level::off},
};

}  // namespace

void set_level(const std::string& level) {
  for (const auto& [name, value] : kLevels) {
    if (level == name) spdlog::default_logger()->set_level(value);
  }
}

Status init(const std::string& level, const std::string& format, const std::string& program) {
  const std::pair<const char*, spdlog::level::level_enum>* chosen = nullptr;
  for (const auto& candidate : kLevels) {
    if (level == candidate.first) chosen = &candidate;
  }
  if (chosen == nullptr) {
    return Error(ErrorCode::kInvalidArgument,
                 "log level '" + level + "' is not trace, debug, info, warn, error or off");
  }
  if (format != "text" && format != "json") {
    return Error(ErrorCode::kInvalidArgument, "log format '" + format + "' is not text or json");
  }
  try {
    auto logger = std::make_shared<spdlog::logger>(
        program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_formatter(std::make_unique<LineFormatter>(format == "json", program));
    logger->set_level(chosen->second);
    logger->flush_on(spdlog::level::trace);
    // If a line can't be made (no memory), it is lost. Without this handler the library would write to stderr itself.
    logger->set_error_handler([](const std::string&) {});
    spdlog::set_default_logger(std::move(logger));
    logging.json = format == "json";
    logging.program = program;
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kInternal, std::string("starting the log: ") + failure.what());
  }
  return {};
}

void write_in_background() {
  if (logging.writer != nullptr) return;
  // Never destroyed: its thread may be waiting for the reader when the process ends.
  logging.writer = new LineWriter(STDERR_FILENO, [](std::uint64_t dropped) {
    return line_of(logging.json, std::chrono::system_clock::now(), "warn", logging.program,
                   std::to_string(dropped) +
                       " line(s) of this log were dropped: its reader was too slow, or gone");
  });
  auto sink = std::make_shared<QueuedSink>(*logging.writer);
  sink->set_formatter(std::make_unique<LineFormatter>(logging.json, logging.program));
  spdlog::default_logger()->sinks() = {std::move(sink)};
}

bool finish(std::chrono::milliseconds patience) {
  return logging.writer == nullptr || logging.writer->flush(patience);
}

LineWriter::Figures figures() {
  return logging.writer == nullptr ? LineWriter::Figures{} : logging.writer->figures();
}

void write_raw(std::string_view lines) {
  if (logging.writer != nullptr) return logging.writer->put(lines);
  // If no log was set up (in a test of a part), nobody relies on the log.
  (void)!::write(STDERR_FILENO, lines.data(), lines.size());
}

Field Field::milliseconds(std::string_view name, double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return {name, text, Kind::kNumber};
}

void event(std::string_view what, std::span<const Field> fields) {
  if (!spdlog::should_log(spdlog::level::info)) return;
  write_raw(line_of(logging.json, std::chrono::system_clock::now(), "info", logging.program, what,
                    fields));
}

bool is_json() {
  return logging.json;
}

}  // namespace bulkhead::log
