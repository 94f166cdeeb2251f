#include "orchestrator/supervisor/worker_program.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {
namespace {

struct Pinned {
  UniqueFd file;
  struct stat first {};
  bool told = false;  // the log has said that the program at the path has changed
};

bool same(const struct stat& a, const struct stat& b) {
  const auto identity = [](const struct stat& of) {
    return std::tuple(of.st_dev, of.st_ino, of.st_size, of.st_mtim.tv_sec, of.st_mtim.tv_nsec);
  };
  return identity(a) == identity(b);
}

struct AllPinned {
  std::mutex mutex;
  std::map<std::string, Pinned> programs;
};
AllPinned& all_pinned() {
  static AllPinned all;
  return all;
}

}  // namespace

Result<int> pinned_descriptor(const std::string& path) {
  AllPinned& all = all_pinned();
  const std::lock_guard lock(all.mutex);
  Pinned& program = all.programs[path];
  if (!program.file.valid()) {
    UniqueFd file(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!file.valid() || ::fstat(file.get(), &program.first) != 0)
      return errno_error(ErrorCode::kNotFound, "starting the worker program " + path, errno);
    program.file = std::move(file);
  }
  return program.file.get();
}

Result<std::string> pinned_program(const std::string& path) {
  BULKHEAD_TRY(const int file, pinned_descriptor(path));
  // The path uses the daemon's own process number, because a child that starts the program has closed the descriptor
  // by then.
  std::string name = fmt::format("/proc/{}/fd/{}", ::getpid(), file);
  return ::access(name.c_str(), X_OK) == 0 ? name : path;
}

void look_at_program(const std::string& path) {
  AllPinned& all = all_pinned();
  struct stat first {
  }, now{};
  {
    const std::lock_guard lock(all.mutex);
    const auto pinned = all.programs.find(path);
    if (pinned == all.programs.end() || !pinned->second.file.valid() || pinned->second.told) return;
    first = pinned->second.first;
  }
  // The lock is free during this call, so nobody waits for it.
  if (::stat(path.c_str(), &now) == 0 && same(now, first)) return;
  const std::lock_guard lock(all.mutex);
  if (std::exchange(all.programs[path].told, true)) return;
  spdlog::warn(
      "the worker program {} has been replaced or changed since this daemon began (an upgrade?); "
      "until it is restarted, the daemon starts workers from the earlier program",
      path);
}

}  // namespace bulkhead::orchestrator
