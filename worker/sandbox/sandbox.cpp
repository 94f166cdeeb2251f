#include "worker/sandbox/sandbox.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

#include "config/base/unique_fd.hpp"
#include "worker/sandbox/call_filter.hpp"
#include "worker/sandbox/call_log.hpp"
#include "worker/sandbox/in_child.hpp"

namespace bulkhead::worker {
namespace {

bool can_change_size(int region) {
  const int seals = ::fcntl(region, F_GET_SEALS);  // this fails for anything but a memfd
  constexpr int kFixed = F_SEAL_SHRINK | F_SEAL_GROW;
  return seals < 0 || (seals & kFixed) != kFixed;
}

Status confine_calls(const SandboxRequest& request) {
  CallContext context;
  context.process = ::getpid();
  // If the region shrank under the daemon, SIGBUS would end the daemon. A memfd has a seal against that, but a POSIX
  // object can't be sealed, and there must be no second descriptor of it that the filter does not cover. The filter
  // goes by the number, so it gets none for a sealed region: otherwise the next file with that number could not
  // change its size. (A driver's cache was such a file, and each start then compiled every kernel.)
  if (request.region >= 0 && can_change_size(request.region)) context.region = request.region;
  BULKHEAD_TRY(context.also, calls_by_name(request.more_calls));
  std::vector<sock_filter> filter = build_call_filter(context, Refusal::kErrno);
  if (request.level == SandboxLevel::kLog) {
    context.always_told = calls_with_paths();
    const std::vector<sock_filter> telling = build_call_filter(context, Refusal::kNotify);
    return log_refusals(telling, std::move(filter), request.paths);
  }
  const Result<UniqueFd> loaded = load_call_filter(filter, Refusal::kErrno);
  return loaded.ok() ? Status() : Status(loaded.error());
}

// Drops capabilities of a process that keeps its user. The superuser's process keeps those that open files, because
// Landlock decides which files it opens. It drops the others, some of which would show it other processes past Landlock
// (CAP_PERFMON reads any process's environment). In a user namespace the process drops all capabilities, because they
// would be over the namespace itself.
Status drop_capabilities(const Namespaces& namespaces) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::syscall(SYS_capget, &header, sets) != 0)
    return errno_error(ErrorCode::kInternal, "capget", errno);
  constexpr std::uint32_t kFiles = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH;
  const std::uint32_t wanted = namespaces.user ? 0 : kFiles;
  bool gives_up = false, changes = false;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::uint32_t kept = sets[i].permitted & (i == 0 ? wanted : 0);
    gives_up |= sets[i].permitted != kept;
    changes |= sets[i].effective != kept || sets[i].inheritable != 0;
    sets[i] = {kept, kept, 0};
  }
  if (!gives_up && !changes) return {};
  // A service manager's filter may refuse the call. That matters only if the process has a capability to
  // give up.
  if (::syscall(SYS_capset, &header, sets) != 0 && gives_up)
    return errno_error(ErrorCode::kInternal, "capset", errno);
  return {};
}

// Returns 0 if the number can't be read.
rlim_t number_in(const char* file) {
  std::ifstream stream(file);
  rlim_t number = 0;
  return stream >> number ? number : 0;
}

Status limit_resources(const BornIn& born) {
  // A core file would contain the model and every prompt.
  const rlimit no_core{0, 0};
  if (::setrlimit(RLIMIT_CORE, &no_core) != 0)
    return errno_error(ErrorCode::kInternal, "RLIMIT_CORE", errno);
  constexpr rlim_t kDescriptors = 1024;
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_max > kDescriptors) {
    descriptors = {std::min(descriptors.rlim_cur, kDescriptors), kDescriptors};
    if (::setrlimit(RLIMIT_NOFILE, &descriptors) != 0)
      return errno_error(ErrorCode::kInternal, "RLIMIT_NOFILE", errno);
  }
  // The kernel gives all of a user's processes a common number of threads. While half of it is used, a worker starts
  // no further thread, so that the daemon, and an operator who wants to end all this, still can. (The kernel does not
  // limit the superuser's threads, but the daemon counts the threads of each worker.)
  // If the process was born in a user namespace, the daemon set this limit when it made the namespace.
  if (born.user) return {};
  rlimit threads{};
  const rlim_t most =
      std::min(number_in("/proc/sys/kernel/threads-max"), number_in("/proc/sys/kernel/pid_max"));
  if (::getrlimit(RLIMIT_NPROC, &threads) == 0) {
    const rlim_t half = std::min(threads.rlim_max, most == 0 ? threads.rlim_max : most) / 2;
    threads = {std::min(threads.rlim_cur, half), half};
    if (::setrlimit(RLIMIT_NPROC, &threads) != 0)
      return errno_error(ErrorCode::kInternal, "RLIMIT_NPROC", errno);
  }
  return {};
}

bool seccomp_available() {
  // A kernel that has it answers a null filter with EFAULT.
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0) != 0 && errno == EFAULT;
}

// Finds out everything except namespaces, for which a child process is needed.
SandboxReport filter_support() {
  SandboxReport report;
  report.landlock_version = landlock_version();
  report.files = report.landlock_version > 0;
  report.system_calls = seccomp_available();
  if (!report.files) {
    report.gaps.push_back(
        "Landlock is missing (Linux 5.13 with CONFIG_SECURITY_LANDLOCK): files, and other "
        "processes' memory, are held back by user ids alone");
  } else {
    if (report.landlock_version < 3)
      report.gaps.push_back("Landlock before Linux 6.2 can't hold back shortening a file");
    if (report.landlock_version < 6)
      report.gaps.push_back(
          "Landlock before Linux 6.12 does not cover signals; the system call filter refuses them");
  }
  if (!report.system_calls)
    report.gaps.push_back(
        "seccomp filters are missing (CONFIG_SECCOMP_FILTER): sockets, programs "
        "and signals are not held back");
  return report;
}

std::string and_groups(const OwnUser& user) {
  std::string words;
  for (const gid_t group : user.groups)
    words += (words.empty() ? ", and the groups of GPUs' nodes: " : ", ") + std::to_string(group);
  return words;
}

std::vector<UniqueFd> folders(const std::vector<std::string>& paths) {
  std::vector<UniqueFd> open;
  for (const std::string& path : paths)
    open.emplace_back(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  return open;
}

bool all_reachable(const std::vector<std::string>& folders) {
  return std::ranges::all_of(folders, [](const std::string& path) {
    return ::faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  });
}

// Where the directories of /proc and of the private root are made, their modes must not depend on the daemon's umask:
// another user than their maker must find a way through them.
class OpenUmask {
 public:
  OpenUmask() : before_(::umask(022)) {}
  OpenUmask(const OpenUmask&) = delete;
  OpenUmask& operator=(const OpenUmask&) = delete;
  ~OpenUmask() { ::umask(before_); }

 private:
  mode_t before_;
};

// Returns which of the needed files the request's user could not read, or why it could not be found out; empty: none. A
// child process becomes that user and tries.
std::string unreadable_for_user(const SandboxRequest& request) {
  if (request.needed.empty()) return {};
  const Result<std::string> tried = in_child(
      [&]() -> Result<std::string> {
        BULKHEAD_TRY(const OwnUser entered, enter_own_user(*request.user.id));
        if (!entered.active) return entered.gap;
        for (const std::string& path : request.needed) {
          if (::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0 && errno == EACCES)
            return path + " is for the daemon's user alone";
        }
        return std::string();
      },
      Reaps::kCaller);
  return tried.ok() ? *tried : tried.error().message();
}

}  // namespace

SandboxReport sandbox_support() {
  SandboxReport report = filter_support();
  report.user = own_user_support();
  report.namespaces = namespace_support({driver_paths(), {}});
  return report;
}

std::vector<Protection> protections(const SandboxReport& report) {
  const Namespaces& own = report.namespaces;
  const auto told = [&own](bool active, const char* what) {
    return active ? std::string(what) : own.gap;
  };
  return {
      {"landlock", report.files,
       report.files ? "version " + std::to_string(report.landlock_version) : "the kernel has none"},
      {"seccomp", report.system_calls,
       report.system_calls ? "the system calls of one table" : "the kernel has no filters"},
      {"user_id", report.user.active,
       report.user.active ? "a user and a group that nobody else has" + and_groups(report.user)
                          : report.user.gap},
      {"limits", true,
       std::string("no core file, bounded descriptors and threads, no capability") +
           (report.user.active ? "" : " but for files")},
      {"network_namespace", own.network, told(own.network, "no interface")},
      {"ipc_namespace", own.ipc, told(own.ipc, "no object of others")},
      {"mount_namespace", own.mounts, told(own.mounts, "/proc shows no other process")},
      {"pid_namespace", own.pids,
       own.pids ? "no process id but its own, and that of bulkhead-first, which only waits"
                : own.pid_gap},
      {"private_root", own.root,
       own.root ? "no file exists but those that it may read or write" : own.root_gap},
      {"user_namespace", own.user,
       own.user      ? "the same user id"
       : own.network ? "not needed: the daemon has the privilege to make the others"
                     : own.gap},
  };
}

std::vector<Protection> no_protections(const std::string& why) {
  std::vector<Protection> all = protections({});
  for (Protection& each : all)
    each = {each.name, false, why};
  return all;
}

Result<SandboxReport> enter_sandbox(const SandboxRequest& request) {
  SandboxReport report = filter_support();
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return errno_error(ErrorCode::kInternal, "PR_SET_NO_NEW_PRIVS", errno);
  // The limit on threads must be set before the process enters a user namespace, which has a count of its own. The
  // kernel then compares the count of all of the user's processes with this limit, too (ucounts, Linux 5.14).
  BULKHEAD_RETURN_IF_ERROR(limit_resources(request.born));
  if (request.namespaces && request.level == SandboxLevel::kHold) {
    const OpenUmask passable;
    BULKHEAD_TRY(report.namespaces, enter_namespaces(proc_paths(), request.paths, request.born));
  } else {
    report.namespaces.gap = report.namespaces.root_gap = report.namespaces.pid_gap =
        "isolation.namespaces is off";
  }
  if (request.level == SandboxLevel::kLog) {
    BULKHEAD_RETURN_IF_ERROR(drop_capabilities(report.namespaces));
    if (!report.system_calls)
      return Error(ErrorCode::kUnsupported,
                   "the kernel has no seccomp filters, which its log needs");
    BULKHEAD_RETURN_IF_ERROR(confine_calls(request));
    return report;
  }
  // Landlock's rules come first, because the worker's own user may not be able to reach each file that they name.
  if (report.files) BULKHEAD_RETURN_IF_ERROR(confine_files(request.paths, report.landlock_version));
  report.user.gap = request.user.gap;
  if (request.user.id.has_value()) report.user.gap = unreadable_for_user(request);
  if (request.user.id.has_value() && report.user.gap.empty()) {
    report.unreachable = folders(request.paths.writable);
    BULKHEAD_TRY(report.user, enter_own_user(*request.user.id));
    if (all_reachable(request.paths.writable)) report.unreachable.clear();
  }
  if (!report.user.active) BULKHEAD_RETURN_IF_ERROR(drop_capabilities(report.namespaces));
  if (report.system_calls) BULKHEAD_RETURN_IF_ERROR(confine_calls(request));
  return report;
}

}  // namespace bulkhead::worker
