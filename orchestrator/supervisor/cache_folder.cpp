#include "orchestrator/supervisor/cache_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "config/base/fnv1a.hpp"
#include "config/base/log.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr const char* kDroppedPrefix = ".dropped-";
constexpr int kMostNames = 100;   // for what waits to be deleted, of one worker
constexpr int kMostDaemons = 64;  // of one user, with workers of one name
// With what is put before and behind it, a file's name may have 255 bytes.
constexpr std::size_t kMostNameBytes = 180;

// Of a worker's name, in which there is no '%' and no '/'.
std::string folder_name_of(const std::string& worker) {
  std::string name = worker.starts_with('.') ? "%2E" + worker.substr(1) : worker;
  if (name.size() <= kMostNameBytes) return name;
  return fmt::format("{}%{:016x}", name.substr(0, kMostNameBytes), fnv1a(worker));
}

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

// Why nobody but this user can have put something there; empty: so it is.
std::string doubt_about(const struct stat& folder) {
  if (!S_ISDIR(folder.st_mode)) return S_ISLNK(folder.st_mode) ? "it is a link" : "it is no folder";
  if (folder.st_uid != ::geteuid()) return fmt::format("it belongs to user {}", folder.st_uid);
  constexpr mode_t kWriteOfOthers = 022;
  if ((folder.st_mode & kWriteOfOthers) != 0)
    return fmt::format("others may write to it (mode {:04o})", folder.st_mode & 07777);
  return {};
}

// A folder of this user's alone, made where it is not there, whatever the umask. The last name is no
// link. Otherwise why not.
std::string make_own_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return std::strerror(errno);
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status {};
  if (!folder.valid())
    return errno == ELOOP || errno == ENOTDIR ? "it is a link, or no folder" : std::strerror(errno);
  if (made && ::fchmod(folder.get(), 0700) != 0) return std::strerror(errno);
  return ::fstat(folder.get(), &status) != 0 ? std::strerror(errno) : doubt_about(status);
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

// Whether nothing of that name is there any more. What somebody else has removed meanwhile is as good.
bool unlink_at(int folder, const std::string& name) {
  return ::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT ||
         ::unlinkat(folder, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

class Removal {
 public:
  Removal(int root, std::uint64_t most) : root_(root), left_(most) {}

  bool run() {
    for (std::vector<std::string> names; !(names = names_in(root_)).empty();) {
      for (const std::string& name : names) {
        if (!remove(name)) return false;
      }
    }
    return true;
  }

 private:
  // Files go, and empty folders. A folder with something in it comes up to the root, so that none is
  // ever deeper than that.
  bool remove(const std::string& name) {
    if (!count()) return false;
    if (unlink_at(root_, name)) return true;
    const UniqueFd folder = open_folder(root_, name.c_str());
    if (!folder.valid() || ::fchmod(folder.get(), 0700) != 0) return false;
    for (std::vector<std::string> inner; !(inner = names_in(folder.get())).empty();) {
      for (const std::string& each : inner) {
        if (!count()) return false;
        if (!unlink_at(folder.get(), each) && !bring_up(folder.get(), each)) return false;
      }
    }
    return unlink_at(root_, name);
  }

  bool bring_up(int folder, const std::string& name) {
    // To rename a folder to another place its own ".." is written.
    ::fchmodat(folder, name.c_str(), 0700, AT_SYMLINK_NOFOLLOW);
    std::string up;
    do {
      if (!count()) return false;
      up = "d" + std::to_string(moved_++);
    } while (::faccessat(root_, up.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0);
    return ::renameat(folder, name.c_str(), root_, up.c_str()) == 0 || errno == ENOENT;
  }

  bool count() { return left_ != 0 && left_-- != 0; }

  int root_;
  std::uint64_t left_, moved_ = 0;
};

}  // namespace

bool CacheFolder::remove_all(const std::string& folder, std::uint64_t most) {
  {
    const UniqueFd root = open_folder(AT_FDCWD, folder.c_str());
    // A link, perhaps: that goes, and not what it leads to.
    if (!root.valid()) return ::unlink(folder.c_str()) == 0 || errno == ENOENT;
    if (::fchmod(root.get(), 0700) != 0 || !Removal(root.get(), most).run()) return false;
  }
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

class CacheFolder::Sweeper : public std::enable_shared_from_this<Sweeper> {
 public:
  // One for all workers: each finds what was left of any.
  static std::shared_ptr<Sweeper> get() {
    static const auto sweeper = std::make_shared<Sweeper>();
    return sweeper;
  }

  void add(std::string folder) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(waiting_, folder) != waiting_.end()) return;
    waiting_.push_back(std::move(folder));
    if (std::exchange(running_, true)) return;
    try {
      quiet_thread([self = shared_from_this()] { self->run(); }).detach();
    } catch (const std::system_error&) {
      running_ = false;  // with the next one, then
    }
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
    : home_(std::move(home)), name_(std::move(name)), sweeper_(Sweeper::get()) {
  if (home_.empty()) return;
  if (const std::string doubt = make_own_folder(home_); !doubt.empty()) {
    spdlog::warn(
        "worker {}: {} is no place for its cache folder: {}. Its processes are given none, and "
        "compile "
        "their kernels at each start; it must be a folder of this user's that nobody else may "
        "write to",
        name_, home_, doubt);
    home_.clear();
    return;
  }
  std::error_code none;
  const std::string own_name = folder_name_of(name_);
  for (int i = 0; path_.empty() && i < kMostDaemons; ++i) {
    if (!claim(i == 0 ? own_name : fmt::format("{}%{}", own_name, i))) continue;
    path_ = home_ + "/" + folder_name_;
    if (i > 0)
      spdlog::info("worker {}: its cache folder is {}: another daemon has {}/{}", name_, path_,
                   home_, own_name);
  }
  if (path_.empty()) {
    spdlog::warn(
        "worker {}: {} daemons have cache folders of that name in {}; it has none, and its "
        "processes compile their kernels at each start",
        name_, kMostDaemons, home_);
  }
  for (std::filesystem::directory_iterator entry(home_, none), end; !none && entry != end;
       entry.increment(none)) {
    if (entry->path().filename().string().starts_with(kDroppedPrefix))
      sweeper_->add(entry->path().string());
  }
}

// Locked until this daemon ends, however it ends. False: another one has it.
bool CacheFolder::claim(const std::string& folder_name) {
  const std::string file = fmt::format("{}/{}%lock", home_, folder_name);
  UniqueFd lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  const bool locked = lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  if (lock.valid() && !locked && errno == EWOULDBLOCK) return false;
  if (locked) lock_ = std::move(lock);
  folder_name_ = folder_name;
  return true;
}

std::vector<std::string> CacheFolder::arguments() {
  struct stat folder {};
  if (!path_.empty() && ::lstat(path_.c_str(), &folder) == 0) {
    if (const std::string doubt = doubt_about(folder); !doubt.empty()) {
      spdlog::warn("worker {}: its cache folder {} is not used and deleted: {}", name_, path_,
                   doubt);
      take_away();
    }
  }
  if (path_.empty()) return {"--no-cache"};
  return {"--cache", path_};
}

void CacheFolder::drop() {
  if (path_.empty() || !take_away()) return;
  spdlog::warn(
      "worker {}: its cache folder {} is wiped: a process that broke a rule could write to it; "
      "the next one compiles its kernels again",
      name_, path_);
}

bool CacheFolder::take_away() {
  for (int i = 0; i < kMostNames; ++i) {
    const std::string aside = fmt::format("{}/{}{}-{}", home_, kDroppedPrefix, folder_name_, i);
    if (std::rename(path_.c_str(), aside.c_str()) == 0) {
      sweeper_->add(aside);
      return true;
    }
    if (errno == ENOENT) return false;
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR && errno != EISDIR) break;
  }
  spdlog::error(
      "worker {}: its cache folder {}, which nobody should trust, can't be taken out of the way: "
      "{}. "
      "Its processes are given none from now on and compile their kernels at each start; delete "
      "the "
      "folder, then restart the daemon",
      name_, path_, std::strerror(errno));
  path_.clear();
  return false;
}

}  // namespace bulkhead::orchestrator
