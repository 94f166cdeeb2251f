#include "config/base/log.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <utility>

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace bulkhead::log {
namespace {

// Both formats escape control characters: a message may hold text of a client or a worker, which
// must not be able to start a line of its own or speak to the terminal.
void append_escaped(std::string_view text, bool json, spdlog::memory_buf_t& out) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto put = [&out](std::string_view s) { out.append(s.data(), s.data() + s.size()); };
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (json && (c == '"' || c == '\\')) {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      if (c == '\n') {
        put("\\n");
      } else if (c == '\t' && !json) {
        out.push_back(c);
      } else {
        put(json ? "\\u00" : "\\x");
        out.push_back(kHex[byte >> 4]);
        out.push_back(kHex[byte & 15]);
      }
    } else {
      out.push_back(c);
    }
  }
}

class LineFormatter final : public spdlog::formatter {
 public:
  LineFormatter(bool json, std::string program) : json_(json), program_(std::move(program)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto put = [&out](std::string_view s) { out.append(s.data(), s.data() + s.size()); };
    const auto since_epoch = message.time.time_since_epoch();
    const std::time_t seconds =
        std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count();
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
    std::tm utc{};
    ::gmtime_r(&seconds, &utc);
    char time[96];
    std::snprintf(time, sizeof time, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
                  utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                  static_cast<int>(milliseconds));
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    const std::string_view level_text(level.data(), level.size());
    const std::string_view payload(message.payload.data(), message.payload.size());
    if (json_) {
      put("{\"time\":\"");
      put(time);
      put("\",\"level\":\"");
      put(level_text == "warning" ? "warn" : level_text);
      put("\",\"program\":\"");
      append_escaped(program_, true, out);
      put("\",\"pid\":");
      put(std::to_string(::getpid()));
      put(",\"message\":\"");
      append_escaped(payload, true, out);
      put("\"}\n");
    } else {
      put(time);
      put(" ");
      append_escaped(program_, false, out);
      put("[" + std::to_string(::getpid()) + "] ");
      put(level_text == "warning" ? "warn" : level_text);
      put(": ");
      append_escaped(payload, false, out);
      put("\n");
    }
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(json_, program_);
  }

 private:
  bool json_;
  std::string program_;
};

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
    spdlog::set_default_logger(std::move(logger));
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kInternal, std::string("starting the log: ") + failure.what());
  }
  return {};
}

}  // namespace bulkhead::log
