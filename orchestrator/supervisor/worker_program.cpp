#include "orchestrator/supervisor/worker_program.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <tuple>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {
namespace {

struct Pinned {
  UniqueFd file;
  struct stat first {};
  bool told = false;  // that it is not the same any more
};

bool same(const struct stat& a, const struct stat& b) {
  const auto identity = [](const struct stat& of) {
    return std::tuple(of.st_dev, of.st_ino, of.st_size, of.st_mtim.tv_sec, of.st_mtim.tv_nsec);
  };
  return identity(a) == identity(b);
}

}  // namespace

Result<std::string> pinned_program(const std::string& path) {
  static std::map<std::string, Pinned> all;
  Pinned& program = all[path];
  struct stat now {};
  if (!program.file.valid()) {
    UniqueFd file(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!file.valid() || ::fstat(file.get(), &program.first) != 0)
      return errno_error(ErrorCode::kNotFound, "starting the worker program " + path, errno);
    program.file = std::move(file);
  } else if (!program.told && (::stat(path.c_str(), &now) != 0 || !same(now, program.first))) {
    program.told = true;
    spdlog::warn(
        "the worker program {} is not the one any more that this daemon began with (an upgrade?); "
        "workers go on being started from that one, until the daemon is restarted",
        path);
  }
  // By the daemon's own number: a child that starts it has closed the descriptor by then.
  std::string name = fmt::format("/proc/{}/fd/{}", ::getpid(), program.file.get());
  return ::access(name.c_str(), X_OK) == 0 ? name : path;
}

}  // namespace bulkhead::orchestrator
