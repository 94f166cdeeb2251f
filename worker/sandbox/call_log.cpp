#include "worker/sandbox/call_log.hpp"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "config/base/fnv1a.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/unique_fd.hpp"
#include "worker/sandbox/call_filter.hpp"

namespace bulkhead::worker {
namespace {

enum class Use : std::uint8_t { kByFlags, kWrite };

// A call whose path the sandbox judges: which arguments are the path and its folder's descriptor.
struct PathCall {
  int number;
  int folder;  // number of the argument; -1: there is none, so the working folder counts
  int path;    // number of the argument
  int flags;   // argument with open's flags, if `use` depends on them
  Use use;
};
const PathCall kPathCalls[] = {
    {SCMP_SYS(open), -1, 0, 1, Use::kByFlags},    {SCMP_SYS(openat), 0, 1, 2, Use::kByFlags},
    {SCMP_SYS(mkdir), -1, 0, -1, Use::kWrite},    {SCMP_SYS(mkdirat), 0, 1, -1, Use::kWrite},
    {SCMP_SYS(rename), -1, 0, -1, Use::kWrite},   {SCMP_SYS(rename), -1, 1, -1, Use::kWrite},
    {SCMP_SYS(renameat), 0, 1, -1, Use::kWrite},  {SCMP_SYS(renameat), 2, 3, -1, Use::kWrite},
    {SCMP_SYS(renameat2), 0, 1, -1, Use::kWrite}, {SCMP_SYS(renameat2), 2, 3, -1, Use::kWrite},
    {SCMP_SYS(unlink), -1, 0, -1, Use::kWrite},   {SCMP_SYS(unlinkat), 0, 1, -1, Use::kWrite},
    {SCMP_SYS(rmdir), -1, 0, -1, Use::kWrite}};

// The arguments that distinguish the kinds of a refused call. Each kind is logged once.
struct Kind {
  int number;
  std::uint8_t arguments;  // bits
};
const Kind kKinds[] = {
    {SCMP_SYS(ioctl), 1 << 1},      {SCMP_SYS(fcntl), 1 << 1 | 1 << 2},
    {SCMP_SYS(prctl), 1 << 0},      {SCMP_SYS(madvise), 1 << 2},
    {SCMP_SYS(mmap), 3 << 2},       {SCMP_SYS(clone), 1 << 0},
    {SCMP_SYS(socket), 7 << 0},     {SCMP_SYS(memfd_create), 1 << 1},
    {SCMP_SYS(prlimit64), 1 << 1},  {SCMP_SYS(arch_prctl), 1 << 0},
    {SCMP_SYS(fallocate), 1 << 1},  {SCMP_SYS(setsockopt), 3 << 1},
    {SCMP_SYS(getsockopt), 3 << 1},
};

// A line of fixed length, which is filled without allocating.
class Line {
 public:
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    std::va_list values;
    va_start(values, format);
    const int more = std::vsnprintf(text_.data() + size_, text_.size() - size_, format, values);
    va_end(values);
    if (more > 0) size_ = std::min(size_ + static_cast<std::size_t>(more), text_.size() - 1);
  }
  void write_out() {
    text_[size_++] = '\n';
    (void)!::write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 2048> text_{};
  std::size_t size_ = 0;
};

class Listener {
 public:
  Listener(UniqueFd memory, std::vector<sock_filter> enforced, const SandboxPaths& paths)
      : memory_(std::move(memory)),
        enforced_(std::move(enforced)),
        readable_(real(paths.readable)),
        writable_(real(paths.writable)),
        devices_(real(device_nodes())),
        names_(kNewestKnownCall + 1) {
    for (std::size_t i = 0; i < names_.size(); ++i)
      names_[i] = call_name(static_cast<int>(i));
  }

  void run(int fd) {
    for (;;) {
      seccomp_notif call{};
      if (::ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) {
        if (errno == EINTR || errno == ENOENT) continue;  // the process that asked has ended
        return;
      }
      look_at(call.data);
      seccomp_notif_resp answer{};
      answer.id = call.id;
      answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      (void)::ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
  }

 private:
  static std::vector<std::string> real(const std::vector<std::string>& paths) {
    std::vector<std::string> found;
    std::array<char, PATH_MAX> full;
    for (const std::string& path : paths) {
      found.push_back(path);
      if (::realpath(path.c_str(), full.data()) != nullptr) found.emplace_back(full.data());
    }
    return found;
  }

  void look_at(const seccomp_data& call) {
    if (judge(enforced_, call) != SECCOMP_RET_ALLOW) {
      std::uint64_t kind = mixed(kFnv1aStart, static_cast<std::uint64_t>(call.nr));
      for (const Kind& each : kKinds) {
        if (each.number != call.nr) continue;
        for (int i = 0; i < 6; ++i) {
          if ((each.arguments >> i & 1) != 0) kind = mixed(kind, call.args[i]);
        }
      }
      if (told_before(kind)) return;
      Line line;
      begin(line, call);
      line.add(")");
      add_file(line, call);
      line.write_out();
      return;
    }
    for (const PathCall& each : kPathCalls) {
      if (each.number == call.nr) look_at_path(call, each);
    }
  }

  void look_at_path(const seccomp_data& call, const PathCall& where) {
    if (!read_path(call, where)) return;
    const std::uint64_t flags =
        where.flags < 0 ? 0 : call.args[static_cast<std::size_t>(where.flags)];
    if ((flags & O_PATH) != 0) return;
    const bool writes = where.use == Use::kWrite || (flags & O_ACCMODE) != O_RDONLY ||
                        (flags & (O_CREAT | O_TRUNC)) != 0;
    const std::string_view path = full_.data();
    const bool allowed =
        below(path, writable_) || below(path, devices_) || (!writes && below(path, readable_));
    const std::uint64_t use =
        mixed(mixed(kFnv1aStart, static_cast<std::uint64_t>(call.nr)), writes ? 1 : 0);
    const std::uint64_t kind = fnv1a(std::as_bytes(std::span(path)), use);
    if (allowed || told_before(kind)) return;
    Line line;
    begin(line, call);
    line.add(") to %s %s", writes ? "write" : "read", full_.data());
    line.write_out();
  }

  // Sets full_ to an absolute path without links, as far as the path exists. Returns false if it can't be read or
  // does not exist (for a path that does not exist, nothing was refused).
  bool read_path(const seccomp_data& call, const PathCall& where) {
    std::array<char, PATH_MAX> given{};
    const auto address = static_cast<off_t>(call.args[static_cast<std::size_t>(where.path)]);
    // A path may end where the mapped memory ends.
    std::size_t size = 0;
    while (size < given.size() - 1 &&
           ::pread(memory_.get(), &given[size], 1, address + static_cast<off_t>(size)) == 1 &&
           given[size] != '\0')
      ++size;
    given[size] = '\0';
    if (size == 0) return false;
    std::array<char, 2 * PATH_MAX + 1> path{};
    std::size_t begins = 0;
    if (given[0] != '/' && where.folder >= 0) {
      const int folder = static_cast<int>(call.args[static_cast<std::size_t>(where.folder)]);
      std::array<char, 64> link{};
      std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", folder);
      const ssize_t got = folder == AT_FDCWD ? -1 : ::readlink(link.data(), path.data(), PATH_MAX);
      if (got > 0) {
        begins = static_cast<std::size_t>(got);
        path[begins++] = '/';
      }
    }
    std::memcpy(&path[begins], given.data(), size);
    if (::realpath(path.data(), full_.data()) != nullptr) return true;
    const std::uint64_t flags =
        where.flags < 0 ? O_CREAT : call.args[static_cast<std::size_t>(where.flags)];
    if ((flags & O_CREAT) == 0) return false;
    char* const slash = std::strrchr(path.data(), '/');  // the call would make the file, so its folder counts
    if (slash == nullptr) return false;
    *slash = '\0';
    return ::realpath(path.data(), full_.data()) != nullptr;
  }

  static bool below(std::string_view path, const std::vector<std::string>& folders) {
    return std::ranges::any_of(folders, [path](const std::string& folder) {
      return path.starts_with(folder) &&
             (path.size() == folder.size() || folder.ends_with('/') || path[folder.size()] == '/');
    });
  }

  void begin(Line& line, const seccomp_data& call) {
    const auto number = static_cast<std::size_t>(call.nr);
    if (number < names_.size()) {
      line.add("sandbox of process %d: would refuse %s(", process_, names_[number].c_str());
    } else {
      line.add("sandbox of process %d: would refuse call %d(", process_, call.nr);
    }
    for (int i = 0; i < 6; ++i)
      line.add("%s%#llx", i == 0 ? "" : ", ", static_cast<unsigned long long>(call.args[i]));
  }

  // Adds what file an ioctl or fcntl is for.
  void add_file(Line& line, const seccomp_data& call) {
    if (call.nr != SCMP_SYS(ioctl) && call.nr != SCMP_SYS(fcntl)) return;
    std::array<char, 64> link{};
    std::array<char, PATH_MAX> path{};
    std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", static_cast<int>(call.args[0]));
    if (::readlink(link.data(), path.data(), path.size() - 1) > 0) line.add(" of %s", path.data());
  }

  bool told_before(std::uint64_t kind) {
    if (kind == 0) kind = 1;
    for (std::size_t i = 0; i < kMostKinds; ++i) {
      std::uint64_t& slot = told_[(kind + i) % kMostKinds];
      if (slot == kind) return true;
      if (slot != 0) continue;
      slot = kind;
      return false;
    }
    return true;  // these are more kinds than anybody reads
  }
  static std::uint64_t mixed(std::uint64_t kind, std::uint64_t with) {
    return fnv1a(std::as_bytes(std::span(&with, 1)), kind);
  }

  static constexpr std::size_t kMostKinds = 4096;

  const int process_ = ::getpid();
  UniqueFd memory_;
  std::vector<sock_filter> enforced_;
  std::vector<std::string> readable_, writable_, devices_;
  std::vector<std::string> names_;  // by the call's number
  std::array<std::uint64_t, kMostKinds> told_{};
  std::array<char, PATH_MAX> full_{};
};

}  // namespace

std::vector<int> calls_with_paths() {
  std::vector<int> calls;
  for (const PathCall& each : kPathCalls) {
    if (each.number >= 0) calls.push_back(each.number);
  }
  return calls;
}

Status log_refusals(std::span<const sock_filter> telling, std::vector<sock_filter> enforced,
                    const SandboxPaths& paths) {
  UniqueFd memory(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  if (!memory.valid()) return errno_error(ErrorCode::kInternal, "/proc/self/mem", errno);
  // This thread starts before the filter is set, so the filter does not apply to it.
  auto given = std::make_shared<std::promise<UniqueFd>>();
  auto listener = std::make_shared<Listener>(std::move(memory), std::move(enforced), paths);
  try {
    quiet_thread([given, listener] {
      UniqueFd fd = given->get_future().get();
      if (fd.valid()) listener->run(fd.get());
    }).detach();
  } catch (const std::system_error&) {
    return Error(ErrorCode::kResourceExhausted, "no thread for the sandbox's log");
  }
  Result<UniqueFd> fd = load_call_filter(telling, Refusal::kNotify);
  const Status loaded = fd.ok() ? Status() : Status(fd.error());
  given->set_value(fd.ok() ? std::move(*fd) : UniqueFd());
  return loaded;
}

}  // namespace bulkhead::worker
