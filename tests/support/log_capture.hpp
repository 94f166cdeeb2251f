// Keeps what a test's process logs.
#pragma once

#include <memory>
#include <sstream>
#include <string>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

namespace bulkhead::test {

// Captures the log's lines, of every level, for as long as it lives.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines_));
    logger->set_level(spdlog::level::trace);
    spdlog::set_default_logger(std::move(logger));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::string text() const { return lines_.str(); }
  // Returns how often `part` was logged.
  int count(const std::string& part) const {
    const std::string text = lines_.str();
    int found = 0;
    for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size()))
      ++found;
    return found;
  }

 private:
  std::ostringstream lines_;
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace bulkhead::test
