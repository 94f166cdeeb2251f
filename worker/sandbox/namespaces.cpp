#include "worker/sandbox/namespaces.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "config/base/unique_fd.hpp"
#include "worker/sandbox/files.hpp"
#include "worker/sandbox/in_child.hpp"
#include "worker/sandbox/mounts.hpp"
#include "worker/sandbox/private_root.hpp"

namespace bulkhead::worker {
namespace {

Error failed(const std::string& step) {
  return errno_error(ErrorCode::kInternal, step, errno);
}

bool has_capability(unsigned capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  return ::syscall(SYS_capget, &header, sets) == 0 &&
         (sets[capability / 32].effective >> capability % 32 & 1) != 0;
}

// ---- user ids ----

Status write_whole(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid() ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return failed(path);
  return {};
}

// Maps the ids, so that the process has the same user and group inside the namespace as outside
// (user_namespaces(7)).
Status map_ids(uid_t user, gid_t group) {
  BULKHEAD_RETURN_IF_ERROR(write_whole("/proc/self/setgroups", "deny"));
  const auto same = [](auto id) { return std::to_string(id) + " " + std::to_string(id) + " 1"; };
  BULKHEAD_RETURN_IF_ERROR(write_whole("/proc/self/uid_map", same(user)));
  return write_whole("/proc/self/gid_map", same(group));
}

// A process that enters a new user namespace gets all capabilities in it. This function drops all but those of the set.
Status keep_capabilities(std::uint32_t set) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct sets[2] = {{set, set, 0}, {}};
  return ::syscall(SYS_capset, &header, sets) == 0 ? Status() : failed("capset");
}

// ---- /proc ----

// A path of /proc that stays visible: a mount that is attached nowhere yet.
struct Kept {
  std::string path;
  bool folder = false;
  UniqueFd mount;
};

Result<std::vector<Kept>> detach(const std::vector<std::string>& paths) {
  std::vector<Kept> all;
  for (const std::string& path : paths) {
    struct stat kind {};
    if (!path.starts_with("/proc/") || ::stat(path.c_str(), &kind) != 0) continue;
    BULKHEAD_TRY(UniqueFd mount, copy_mounts(path));
    all.push_back({path, S_ISDIR(kind.st_mode), std::move(mount)});
  }
  return all;
}

Status attach(const Kept& kept) {
  std::error_code error;
  const std::filesystem::path path = kept.path;
  std::filesystem::create_directories(kept.folder ? path : path.parent_path(), error);
  if (error) return Error(ErrorCode::kInternal, kept.path + ": " + error.message());
  if (!kept.folder) BULKHEAD_RETURN_IF_ERROR(make_empty_file(kept.path));
  return attach_mounts(kept.mount, kept.path);
}

// Mounts an empty file system over /proc, and attaches there the paths that the worker may see.
Status reduce_proc(const std::vector<std::string>& shown) {
  // The mounts below change nothing for other processes. What other processes unmount disappears
  // here, too.
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return failed("mount: MS_SLAVE");
  // The number of this process in /proc, which differs from its own in a namespace of process ids.
  std::error_code error;
  const std::string number = std::filesystem::read_symlink("/proc/self", error).string();
  if (error) return Error(ErrorCode::kInternal, "/proc/self: " + error.message());
  const std::string own = "/proc/" + number;
  std::vector<std::string> paths = {own};
  for (const std::string& path : shown) {
    if (path != "/proc/self") paths.push_back(path);
  }
  BULKHEAD_TRY(const std::vector<Kept> kept, detach(paths));
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (::mount("bulkhead", "/proc", "tmpfs", kFlags, "size=1m,mode=0755") != 0)
    return failed("mount of a tmpfs");
  for (const Kept& each : kept)
    BULKHEAD_RETURN_IF_ERROR(attach(each));
  // The links that the kernel itself has in /proc.
  std::map<std::string, std::string> links = {
      {"self", number}, {"mounts", "self/mounts"}, {"net", "self/net"}};
  if (const std::string inner = std::to_string(::getpid()); inner != number) links[inner] = number;
  for (const auto& [name, target] : links) {
    if (::symlink(target.c_str(), ("/proc/" + name).c_str()) != 0) return failed("/proc/" + name);
  }
  if (::mount(nullptr, "/proc", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | kFlags, nullptr) != 0)
    return failed("mount: MS_RDONLY");
  return {};
}

// ---- all of it ----

// The namespaces that one unshare() gives or refuses together, and that need no further setup.
constexpr int kSimple = CLONE_NEWNET | CLONE_NEWIPC;

struct Plan {
  bool user = false;
  bool mounts = false;
};

// What a process keeps of its files.
struct Files {
  const std::vector<std::string>& shown;  // paths of /proc
  const SandboxPaths* allowed = nullptr;  // what the private root holds; null: no such root
};

// Enters the plan's namespaces and those of the kinds `beside`. Returns why the process has no private root; empty if
// it has one. kUnavailable: nothing has changed. Any other error: some namespaces have been entered.
Result<std::string> carry_out(const Plan& plan, int beside, const Files& files) {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  const int kinds = beside | (plan.user ? CLONE_NEWUSER : 0) | (plan.mounts ? CLONE_NEWNS : 0);
  if (::unshare(kinds) != 0) return errno_error(ErrorCode::kUnavailable, "unshare", errno);
  if (plan.user) {
    BULKHEAD_RETURN_IF_ERROR(map_ids(user, group));
    // Mounting needs one. With the others, the process would find files that it can't find later.
    BULKHEAD_RETURN_IF_ERROR(keep_capabilities(1U << CAP_SYS_ADMIN));
  }
  std::string root_gap;
  if (plan.mounts) {
    BULKHEAD_RETURN_IF_ERROR(reduce_proc(files.shown));
    const Status root = files.allowed == nullptr ? Status() : enter_private_root(*files.allowed);
    if (!root.ok()) root_gap = root.error().message();
    if (!root.ok() && root.error().code() != ErrorCode::kUnavailable)
      return Error(ErrorCode::kInternal, root_gap);
  }
  if (plan.user) BULKHEAD_RETURN_IF_ERROR(keep_capabilities(0));
  return root_gap;
}

struct Choice {
  std::optional<Plan> plan;
  std::string gap;
  std::string root_gap;
  bool refused = false;  // this process should enter none, whatever the kernel allows
};

// Returns the widest plan that a child process can carry out.
Choice choose(int beside, const Files& files, Reaps reaps) {
  Choice choice;
  const bool privileged = has_capability(CAP_SYS_ADMIN);
  if (!privileged && (has_capability(CAP_DAC_OVERRIDE) || has_capability(CAP_DAC_READ_SEARCH))) {
    choice.gap = "a superuser without CAP_SYS_ADMIN would lose its access to files of other users";
    choice.refused = true;
    return choice;
  }
  for (const bool mounts : {true, false}) {
    const Plan plan{.user = !privileged, .mounts = mounts};
    const Result<std::string> tried =
        in_child([&] { return carry_out(plan, beside, files); }, reaps);
    if (tried.ok()) {
      choice.plan = plan;
      choice.root_gap = *tried;
      return choice;
    }
    choice.gap = tried.error().message();  // if both plans fail, the narrower one's reason
  }
  return choice;
}

// Says why no process can be started in a namespace of process ids; empty: one can.
std::string pid_namespace_gap() {
  const bool privileged = has_capability(CAP_SYS_ADMIN);
  const Result<std::string> tried = in_child(
      [privileged]() -> Result<std::string> {
        const uid_t user = ::geteuid();
        const gid_t group = ::getegid();
        if (::unshare(CLONE_NEWPID | (privileged ? 0 : CLONE_NEWUSER)) != 0)
          return failed("unshare");
        if (!privileged) BULKHEAD_RETURN_IF_ERROR(map_ids(user, group));
        const pid_t first = ::fork();
        if (first < 0) return failed("clone");
        if (first == 0) ::_exit(0);
        return std::string();
      },
      Reaps::kCaller);
  return tried.ok() ? "" : tried.error().message();
}

Namespaces outcome(const Choice& choice) {
  const bool any = choice.plan.has_value();
  const bool mounts = any && choice.plan->mounts;
  return {.user = any && choice.plan->user,
          .pids = false,
          .network = any,
          .ipc = any,
          .mounts = mounts,
          .root = mounts && choice.root_gap.empty(),
          .gap = mounts ? "" : choice.gap,
          .root_gap = mounts ? choice.root_gap : choice.gap,
          .pid_gap = ""};
}

}  // namespace

Namespaces namespace_support(const SandboxPaths& allowed) {
  const std::vector<std::string> shown = proc_paths();
  const Choice choice = choose(kSimple, {shown, &allowed}, Reaps::kCaller);
  Namespaces possible = outcome(choice);
  possible.pid_gap = choice.refused ? choice.gap : pid_namespace_gap();
  possible.pids = possible.pid_gap.empty();
  return possible;
}

Result<Namespaces> enter_namespaces(const std::vector<std::string>& shown,
                                    const SandboxPaths& allowed, const BornIn& born) {
  // The kernel reaps the child by itself if its parent ignores SIGCHLD, so no start waits for the child's exit. A
  // confined process starts no other child.
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  const bool ignores = ::sigaction(SIGCHLD, &ignored, nullptr) == 0;
  // The child tries only the steps that may fail half way. A network namespace fails as a whole, and making one
  // takes half a millisecond. A private root is undone if it fails.
  Choice choice = choose(0, {shown}, ignores ? Reaps::kKernel : Reaps::kCaller);
  if (choice.plan.has_value()) {
    const Result<std::string> done = carry_out(*choice.plan, kSimple, {shown, &allowed});
    if (!done.ok() && done.error().code() != ErrorCode::kUnavailable) return done.error();
    if (done.ok())
      choice.root_gap = *done;
    else
      choice = {std::nullopt, done.error().message(), ""};
  }
  Namespaces entered = outcome(choice);
  entered.user |= born.user;
  entered.pids = born.pids;
  if (!born.pids) entered.pid_gap = born.pid_gap;
  return entered;
}

}  // namespace bulkhead::worker
