// Takes any settings file and any --set. The result must be an error that names its place, or settings that a worker
// would get unchanged.
//
// The input is the file's text; then, each after a zero byte, assignments.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "config/config.hpp"
#include "config/settings_table.hpp"

using namespace bulkhead::config;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// One file in memory for all inputs, opened by its path as any other.
class SettingsFile {
 public:
  SettingsFile() : fd_(::memfd_create("settings", MFD_CLOEXEC)) {
    require(fd_ >= 0);
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  const std::string& write(std::string_view text) {
    require(::ftruncate(fd_, 0) == 0);
    require(::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    return path_;
  }

 private:
  int fd_;
  std::string path_;
};

void check(const Settings& settings) {
  // A value's text must read back as the same value.
  for (const Setting& setting : settings_table()) {
    const std::string text = text_of(setting, settings);
    Settings copy;
    require(assign(copy, std::string(setting.key) + "=" + text).ok());
    require(text_of(setting, copy) == text);
  }
  Settings worker;
  for (const std::string& assignment : worker_assignments(settings))
    require(assign(worker, assignment).ok());
  require(worker_assignments(worker) == worker_assignments(settings));
  require(worker.server.api_key.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static SettingsFile file;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view text = input.substr(0, input.find('\0'));
  Sources sources;
  sources.file = file.write(text);
  input.remove_prefix(text.size());
  while (!input.empty()) {
    input.remove_prefix(1);
    sources.assignments.emplace_back(input.substr(0, input.find('\0')));
    input.remove_prefix(sources.assignments.back().size());
  }

  const auto loaded = load(sources);
  if (loaded.ok()) {
    check(loaded->settings);
    return 0;
  }
  const std::string& message = loaded.error().message();
  require(message.starts_with(sources.file) || message.starts_with("--set: ") ||
          message.starts_with("default: "));
  return 0;
}
