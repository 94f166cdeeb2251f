#include "orchestrator/supervisor/cache_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr const char* kDroppedPrefix = ".dropped-";
constexpr int kMostNames = 100;  // for what waits to be deleted, of one worker

// The folder of that name in `parent`, also when its owner may not look into it.
UniqueFd open_folder(int parent, const char* name) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  UniqueFd fd(::openat(parent, name, kFlags));
  if (fd.valid() || errno != EACCES) return fd;
  struct stat status {};
  if (::fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(status.st_mode) ||
      ::fchmodat(parent, name, 0700, AT_SYMLINK_NOFOLLOW) != 0)
    return {};
  return UniqueFd(::openat(parent, name, kFlags));
}

std::vector<std::string> names_in(int folder) {
  std::vector<std::string> names;
  // A position of its own, and its own descriptor to close.
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = again < 0 ? nullptr : ::fdopendir(again);
  if (entries == nullptr) {
    if (again >= 0) ::close(again);
    return names;
  }
  constexpr std::size_t kAtOnce = 4096;  // bounds the memory that it takes
  while (const dirent* entry = ::readdir(entries)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    if (names.size() == kAtOnce) break;
  }
  ::closedir(entries);
  return names;
}

// Files go, and empty folders. A folder with something in it comes up to the root, so that none is
// ever deeper than that.
bool remove_from_root(int root, const std::string& name, std::uint64_t& moved) {
  if (::unlinkat(root, name.c_str(), 0) == 0 || errno == ENOENT) return true;
  if (::unlinkat(root, name.c_str(), AT_REMOVEDIR) == 0) return true;
  const UniqueFd folder = open_folder(root, name.c_str());
  if (!folder.valid() || ::fchmod(folder.get(), 0700) != 0) return false;
  for (std::vector<std::string> inner; !(inner = names_in(folder.get())).empty();) {
    for (const std::string& each : inner) {
      if (::unlinkat(folder.get(), each.c_str(), 0) == 0) continue;
      if (::unlinkat(folder.get(), each.c_str(), AT_REMOVEDIR) == 0) continue;
      // To rename a folder to another place its own ".." is written.
      ::fchmodat(folder.get(), each.c_str(), 0700, AT_SYMLINK_NOFOLLOW);
      std::string up;
      do {
        up = "d" + std::to_string(moved++);
      } while (::faccessat(root, up.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0);
      if (::renameat(folder.get(), each.c_str(), root, up.c_str()) != 0) return false;
    }
  }
  return ::unlinkat(root, name.c_str(), AT_REMOVEDIR) == 0;
}

}  // namespace

bool CacheFolder::remove_all(const std::string& folder) {
  {
    const UniqueFd root = open_folder(AT_FDCWD, folder.c_str());
    if (!root.valid()) return errno == ENOENT;
    if (::fchmod(root.get(), 0700) != 0) return false;
    std::uint64_t moved = 0;
    for (std::vector<std::string> names; !(names = names_in(root.get())).empty();) {
      for (const std::string& name : names) {
        if (!remove_from_root(root.get(), name, moved)) return false;
      }
    }
  }
  return ::rmdir(folder.c_str()) == 0;
}

class CacheFolder::Sweeper : public std::enable_shared_from_this<Sweeper> {
 public:
  void add(std::string folder) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(folder));
    if (std::exchange(running_, true)) return;
    // Signals are for the threads that expect them.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([self = shared_from_this()] { self->run(); }).detach();
    } catch (const std::system_error&) {
      running_ = false;  // with the next one, then
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      const std::string folder = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      remove_all(folder);  // what can't be deleted is in nobody's way
      lock.lock();
    }
    running_ = false;
  }

  std::mutex mutex_;
  std::deque<std::string> waiting_;
  bool running_ = false;
};

CacheFolder::CacheFolder(std::string home, std::string name)
    : home_(std::move(home)), name_(std::move(name)), sweeper_(std::make_shared<Sweeper>()) {
  if (home_.empty()) return;
  path_ = home_ + "/" + name_;
  std::error_code none;
  for (std::filesystem::directory_iterator entry(home_, none), end; !none && entry != end;
       entry.increment(none)) {
    if (entry->path().filename().string().starts_with(kDroppedPrefix))
      sweeper_->add(entry->path().string());
  }
}

std::vector<std::string> CacheFolder::arguments() const {
  if (path_.empty()) return {"--no-cache"};
  return {"--cache", path_};
}

void CacheFolder::drop() {
  if (path_.empty()) return;
  for (int i = 0; i < kMostNames; ++i) {
    const std::string aside = fmt::format("{}/{}{}-{}", home_, kDroppedPrefix, name_, i);
    if (std::rename(path_.c_str(), aside.c_str()) == 0) {
      spdlog::warn(
          "worker {}: its cache folder {} is wiped: a process that broke a rule could write to it; "
          "the next one compiles its kernels again",
          name_, path_);
      return sweeper_->add(aside);
    }
    if (errno == ENOENT) return;
    if (errno != EEXIST && errno != ENOTEMPTY) break;
  }
  spdlog::error(
      "worker {}: its cache folder {}, which a process that broke a rule could write to, can't be "
      "taken out of the way: {}. Its processes are given none from now on and compile their "
      "kernels "
      "at each start; delete the folder, then restart the daemon",
      name_, path_, std::strerror(errno));
  path_.clear();
}

}  // namespace bulkhead::orchestrator
