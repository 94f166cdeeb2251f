#include "orchestrator/supervisor/cache_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "config/base/fnv1a.hpp"
#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"
#include "config/base/worker_users.hpp"
#include "orchestrator/supervisor/cache_seal.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr const char* kDroppedPrefix = ".dropped-";
constexpr int kMostNames = 100;   // names for one worker's folders that wait to be deleted
constexpr int kMostDaemons = 64;  // daemons of one user that have workers of the same name
// With what is put before and after it, a file's name may have 255 bytes.
constexpr std::size_t kMostNameBytes = 180;

// Returns the folder's name for a worker's name, in which there is no '%' and no '/'.
std::string folder_name_of(const std::string& worker) {
  std::string name = worker.starts_with('.') ? "%2E" + worker.substr(1) : worker;
  if (name.size() <= kMostNameBytes) return name;
  return fmt::format("{}%{:016x}", name.substr(0, kMostNameBytes), fnv1a(worker));
}

// Opens the folder of that name in `parent`, even if its owner may not read it.
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

// Returns why somebody other than this user and `other` can have put something there; empty if nobody else can.
std::string doubt_about(const struct stat& folder, std::optional<std::uint32_t> other = {}) {
  if (!S_ISDIR(folder.st_mode)) return S_ISLNK(folder.st_mode) ? "it is a link" : "it is no folder";
  if (folder.st_uid != ::geteuid() && other != folder.st_uid)
    return fmt::format("it belongs to user {}", folder.st_uid);
  constexpr mode_t kWriteOfOthers = 022;
  if ((folder.st_mode & kWriteOfOthers) != 0)
    return fmt::format("others may write to it (mode {:04o})", folder.st_mode & 07777);
  return {};
}

// Returns the same for a path; empty if nothing is at the path.
std::string doubt_about_path(const std::string& path, std::optional<std::uint32_t> other) {
  struct stat folder {};
  return ::lstat(path.c_str(), &folder) != 0 ? std::string() : doubt_about(folder, other);
}

// Makes a folder that belongs to this user alone, whatever the umask is, unless it exists. The path's last name must
// not be a link. Returns why it failed; empty: it did not.
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
  // This descriptor has its own position, and closedir() closes it.
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = again < 0 ? nullptr : ::fdopendir(again);
  if (entries == nullptr) {
    if (again >= 0) ::close(again);
    return names;
  }
  constexpr std::size_t kAtOnce = 4096;  // bounds the memory that reading a folder takes
  while (const dirent* entry = ::readdir(entries)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    if (names.size() == kAtOnce) break;
  }
  ::closedir(entries);
  return names;
}

// Says whether nothing of that name is there any more. If somebody else has removed it meanwhile, that is as good.
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
  // Removes files and empty folders. Moves a folder that is not empty up to the root, so that no folder is ever
  // deeper than one level.
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
    // A rename to another parent changes the folder's own "..", so the folder must be writable.
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
    // If this is a link, the link is removed, and not what it leads to.
    if (!root.valid()) return ::unlink(folder.c_str()) == 0 || errno == ENOENT;
    if (::fchmod(root.get(), 0700) != 0 || !Removal(root.get(), most).run()) return false;
  }
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

namespace {

// One thread deletes the dropped folders of all workers. Deleting may take long, and no start waits for it.
TaskThread& sweeper() {
  static const auto thread = std::make_shared<TaskThread>();
  return *thread;
}

void delete_later(std::string folder) {
  sweeper().add([folder = std::move(folder)] { CacheFolder::remove_all(folder); });
}

}  // namespace

// The state of a cache folder, as a thread has read it.
struct CacheLook {
  CacheSeal::Check check;
  CacheSeal::Size size;
  std::string doubt;  // about the folder itself; nothing in it was read then
  std::string failure;
  std::atomic<bool> done = false;  // once true, the event loop may read the other members
};

// `run` and the task hold copies of what they need: the CacheFolder may be destroyed before the task ends.
template <typename Run>
std::shared_ptr<CacheLook> CacheFolder::look(Run run) const {
  auto look = std::make_shared<Look>();
  reader_->add([look, run, seal = CacheSeal(home_, folder_name_)] {
    constexpr const char* kFailed = "no memory";  // short: a string of it allocates nothing
    try {
      run(seal, *look);
    } catch (const std::exception&) {
      look->failure = kFailed;
      look->check.ran_short = true;
    }
    look->done = true;
  });
  return look;
}

namespace {

// Clients may take all descriptors for a while. So a thread tries this many times before it gives up.
constexpr int kMostTries = 40;
constexpr std::chrono::milliseconds kBetweenTries{50};

// Calls `look`, which returns whether it ran short of descriptors or memory. Calls it again while it did.
template <typename LookOnce>
void try_for_a_while(LookOnce look) {
  for (int tries = 1; look() && tries < kMostTries; ++tries)
    std::this_thread::sleep_for(kBetweenTries);
}

}  // namespace

void CacheFolder::begin(Check& check) {
  if (path_.empty() || check.begun()) return;
  const auto owner = owner_ == Owner::kWorker ? worker_user_ : std::nullopt;
  check.look_ = look([path = path_, user = worker_user_, owner](const CacheSeal& seal, Look& look) {
    look.doubt = doubt_about_path(path, user);
    if (!look.doubt.empty()) return;
    std::uint64_t deleted = 0;  // by earlier tries
    try_for_a_while([&] {
      look.check = seal.check(owner);
      deleted = look.check.deleted += deleted;
      return look.check.ran_short;
    });
  });
}

bool CacheFolder::passed(Check& check) {
  begin(check);
  if (!check.begun()) return true;
  reader_->go_on();
  if (!check.look_->done) return false;
  const CacheSeal::Check found = std::move(check.look_->check);
  const std::string doubt = std::move(check.look_->doubt);
  check.forget();
  if (!doubt.empty()) take_away_doubtful(doubt);
  if (sealing_ != nullptr && sealing_->done && !sealing_->failure.empty())
    spdlog::warn("worker {}: its cache folder is not kept: {}", name_, sealing_->failure);
  sealing_.reset();
  withheld_ = found.ran_short;
  if (withheld_) {
    spdlog::warn(
        "worker {}: its cache folder could not be checked, because descriptors (`ulimit -n`) or "
        "memory are short; "
        "the next process is given none and compiles its kernels, and the folder stays as it is",
        name_);
    return true;
  }
  if (!found.doubt.empty()) {
    drop(found.doubt);
  } else if (found.deleted > 0) {
    spdlog::info(
        "worker {}: deleted {} files of its cache folder, which a process wrote after its first "
        "request, or while it was loading before it died; kept {}",
        name_, found.deleted, found.kept);
  }
  return true;
}

void CacheFolder::seal() {
  // A folder that was not checked may contain anything, so no seal may vouch for it.
  if (path_.empty() || withheld_) return;
  timespec now{};
  // The kernel takes files' times from this clock.
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  sealing_ = look([now](const CacheSeal& seal, Look& look) {
    try_for_a_while([&] {
      const Result<std::uint64_t> made = seal.make(now);
      look.failure = made.ok() ? "" : made.error().message();
      return !made.ok() && made.error().code() == ErrorCode::kResourceExhausted;
    });
  });
}

std::string CacheFolder::excess(std::uint64_t most_bytes) {
  if (path_.empty() || (measuring_ != nullptr && !measuring_->done)) return {};
  const std::shared_ptr<Look> last = std::move(measuring_);
  measuring_ = look([](const CacheSeal& seal, Look& look) { look.size = seal.size(); });
  if (last == nullptr) return {};
  if (!last->size.doubt.empty()) return last->size.doubt;
  if (last->size.bytes <= most_bytes) return {};
  return fmt::format("more than {} MiB (isolation.cache_mb)", most_bytes >> 20);
}

CacheFolder::CacheFolder(std::string home, std::string name)
    : home_(std::move(home)), name_(std::move(name)) {
  if (!home_.empty()) find_place();
  // Without a folder the name is unique among this daemon's workers only.
  worker_user_ = bulkhead::worker_user(
      path_.empty() ? fmt::format("{} of process {}", name_, ::getpid()) : path_);
}

void CacheFolder::find_place() {
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
      delete_later(entry->path().string());
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

void CacheFolder::take_away_doubtful(const std::string& doubt) {
  spdlog::warn("worker {}: its cache folder {} is not used, and is deleted: {}", name_, path_,
               doubt);
  take_away();
}

std::vector<std::string> CacheFolder::arguments() {
  if (path_.empty() || withheld_) return {"--no-cache"};
  return {"--cache", path_};
}

void CacheFolder::drop(const std::string& why) {
  measuring_.reset();  // this measurement is of the folder that is taken away
  if (path_.empty() || !take_away()) return;
  spdlog::warn(
      "worker {}: its cache folder {} is wiped: {}; the next process compiles its kernels again",
      name_, path_, why);
}

bool CacheFolder::take_away() {
  for (int i = 0; i < kMostNames; ++i) {
    const std::string aside = fmt::format("{}/{}{}-{}", home_, kDroppedPrefix, folder_name_, i);
    if (std::rename(path_.c_str(), aside.c_str()) == 0) {
      delete_later(aside);
      return true;
    }
    if (errno == ENOENT) return false;
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR && errno != EISDIR) break;
  }
  spdlog::error(
      "worker {}: its cache folder {}, which must not be trusted, can't be taken out of the way: "
      "{}. "
      "Its processes are given none from now on and compile their kernels at each start; delete "
      "the "
      "folder, then restart the daemon",
      name_, path_, std::strerror(errno));
  path_.clear();
  return false;
}

}  // namespace bulkhead::orchestrator
