#include "worker/sandbox/sandbox.hpp"

#include <asm/sockios.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>

#include "config/base/unique_fd.hpp"

namespace bulkhead::worker {
namespace {

// Debian 12's headers know Landlock's first two versions; these are the kernel's later names.
constexpr std::uint64_t kRefer = 1ULL << 13;         // version 2
constexpr std::uint64_t kTruncate = 1ULL << 14;      // version 3
constexpr std::uint64_t kBindTcp = 1ULL << 0;        // version 4, of handled_access_net
constexpr std::uint64_t kConnectTcp = 1ULL << 1;     // version 4
constexpr std::uint64_t kScopeAbstract = 1ULL << 0;  // version 6, of scoped
constexpr std::uint64_t kScopeSignal = 1ULL << 1;    // version 6

struct RulesetAttributes {
  std::uint64_t files;
  std::uint64_t net;
  std::uint64_t scoped;
};

constexpr std::uint64_t kReadFolder = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
// No device node, socket or link is to be made in the cache folder, nor anything run from it.
constexpr std::uint64_t kWriteFolder =
    kReadFolder | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
    LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
    kRefer | kTruncate;
// What a rule for something that is no folder may name.
constexpr std::uint64_t kOfFiles =
    LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate;

int landlock_version() {
  const long version =
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return version > 0 ? static_cast<int>(version) : 0;
}

std::uint64_t handled_files(int version) {
  std::uint64_t all = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
  if (version >= 2) all |= kRefer;
  if (version >= 3) all |= kTruncate;
  return all;
}

Status allow(int ruleset, const std::string& path, std::uint64_t access, std::uint64_t handled) {
  const UniqueFd target(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!target.valid()) return {};
  struct stat kind {};
  if (::fstat(target.get(), &kind) != 0) return {};
  if (!S_ISDIR(kind.st_mode)) access &= kOfFiles;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = access & handled;
  rule.parent_fd = target.get();
  if (::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
    return errno_error(ErrorCode::kInternal, "the sandbox's rule for " + path, errno);
  return {};
}

// The nodes of GPUs, and what any program expects of /dev. Not /dev/shm: shared memory there is
// other programs'.
std::vector<std::string> device_nodes() {
  std::vector<std::string> nodes = {"/dev/null",    "/dev/zero",    "/dev/full", "/dev/random",
                                    "/dev/urandom", "/dev/dri",     "/dev/kfd",  "/dev/dxg",
                                    "/dev/udmabuf", "/dev/dma_heap"};
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    for (const std::string_view prefix : {"nvidia", "mali"}) {
      if (name.starts_with(prefix)) nodes.push_back(entry.path().string());
    }
  }
  return nodes;
}

Status confine_files(const SandboxPaths& paths, int version) {
  const std::uint64_t handled = handled_files(version);
  RulesetAttributes attributes{handled, version >= 4 ? kBindTcp | kConnectTcp : 0,
                               version >= 6 ? kScopeAbstract | kScopeSignal : 0};
  const std::size_t known = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  const UniqueFd ruleset(
      static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes, known, 0)));
  if (!ruleset.valid()) return errno_error(ErrorCode::kInternal, "landlock_create_ruleset", errno);
  for (const std::string& path : paths.readable)
    BULKHEAD_RETURN_IF_ERROR(allow(ruleset.get(), path, kReadFolder, handled));
  for (const std::string& path : paths.writable)
    BULKHEAD_RETURN_IF_ERROR(allow(ruleset.get(), path, kWriteFolder, handled));
  for (const std::string& node : device_nodes()) {
    BULKHEAD_RETURN_IF_ERROR(
        allow(ruleset.get(), node, kReadFolder | LANDLOCK_ACCESS_FS_WRITE_FILE, handled));
  }
  if (::syscall(SYS_landlock_restrict_self, ruleset.get(), 0) != 0)
    return errno_error(ErrorCode::kInternal, "landlock_restrict_self", errno);
  return {};
}

// Calls that a worker never needs, whatever their arguments.
constexpr int kRefused[] = {
    // Reaching out.
    SCMP_SYS(socket), SCMP_SYS(socketpair), SCMP_SYS(connect), SCMP_SYS(bind), SCMP_SYS(listen),
    SCMP_SYS(accept), SCMP_SYS(accept4),
    // Other programs and processes.
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(process_madvise),
    SCMP_SYS(pidfd_getfd), SCMP_SYS(pidfd_send_signal), SCMP_SYS(kcmp), SCMP_SYS(tkill),
    SCMP_SYS(shmget), SCMP_SYS(shmat), SCMP_SYS(msgget), SCMP_SYS(semget), SCMP_SYS(mq_open),
    SCMP_SYS(sched_setscheduler), SCMP_SYS(sched_setattr), SCMP_SYS(sched_setparam),
    SCMP_SYS(setpriority), SCMP_SYS(ioprio_set), SCMP_SYS(migrate_pages), SCMP_SYS(move_pages),
    // Ways around a filter of system calls, and much of the kernel that nobody here needs.
    SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register), SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(add_key), SCMP_SYS(request_key),
    SCMP_SYS(keyctl), SCMP_SYS(unshare), SCMP_SYS(setns), SCMP_SYS(mount), SCMP_SYS(umount2),
    SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(open_tree), SCMP_SYS(move_mount),
    SCMP_SYS(fsopen), SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick),
    SCMP_SYS(mount_setattr), SCMP_SYS(open_by_handle_at), SCMP_SYS(init_module),
    SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(swapon), SCMP_SYS(swapoff),
    SCMP_SYS(acct), SCMP_SYS(quotactl), SCMP_SYS(settimeofday), SCMP_SYS(clock_settime),
    SCMP_SYS(sethostname), SCMP_SYS(setdomainname), SCMP_SYS(iopl), SCMP_SYS(ioperm),
    // Landlock doesn't govern whose a file is and who may read it.
    SCMP_SYS(chmod), SCMP_SYS(fchmodat), SCMP_SYS(chown), SCMP_SYS(lchown), SCMP_SYS(fchownat),
    SCMP_SYS(setxattr), SCMP_SYS(lsetxattr), SCMP_SYS(removexattr), SCMP_SYS(lremovexattr)};

class Filter {
 public:
  Filter() : context_(seccomp_init(SCMP_ACT_ALLOW)) {}
  ~Filter() {
    if (context_ != nullptr) seccomp_release(context_);
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;

  void refuse(int call) { note(seccomp_rule_add(context_, refusal(), call, 0), call); }
  void refuse(int call, scmp_arg_cmp when) {
    note(seccomp_rule_add_array(context_, refusal(), call, 1, &when), call);
  }
  void refuse(int call, scmp_arg_cmp when, scmp_arg_cmp also) {
    const scmp_arg_cmp both[] = {when, also};
    note(seccomp_rule_add_array(context_, refusal(), call, 2, both), call);
  }
  void pretend_missing(int call) {
    note(seccomp_rule_add(context_, SCMP_ACT_ERRNO(ENOSYS), call, 0), call);
  }
  Status load() {
    if (context_ == nullptr)
      return Error(ErrorCode::kResourceExhausted, "the system call filter: out of memory");
    if (failed_ != 0)
      return errno_error(ErrorCode::kInternal,
                         "the system call filter's rule for call " + std::to_string(failed_call_),
                         failed_);
    if (const int error = seccomp_load(context_); error != 0)
      return errno_error(ErrorCode::kInternal, "loading the system call filter", -error);
    return {};
  }

 private:
  static std::uint32_t refusal() { return SCMP_ACT_ERRNO(EPERM); }
  void note(int result, int call) {
    // A call that this architecture doesn't have needs no rule.
    if (result == 0 || result == -EDOM || failed_ != 0) return;
    failed_ = -result;
    failed_call_ = call;
  }

  scmp_filter_ctx context_;
  int failed_ = 0;
  int failed_call_ = 0;
};

bool can_change_size(int region) {
  const int seals = ::fcntl(region, F_GET_SEALS);  // of anything but a memfd: an error
  constexpr int kFixed = F_SEAL_SHRINK | F_SEAL_GROW;
  return seals < 0 || (seals & kFixed) != kFixed;
}

Status confine_calls(int region) {
  Filter filter;
  for (const int call : kRefused)
    filter.refuse(call);

  // Threads yes, processes no. clone3's flags lie in memory, where a filter can't look: without it
  // the C library takes clone.
  filter.pretend_missing(SCMP_SYS(clone3));
  filter.refuse(SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));

  // Its own end (abort, a test's kill) yes, another's no.
  const auto self = static_cast<scmp_datum_t>(::getpid());
  for (const int call :
       {SCMP_SYS(kill), SCMP_SYS(tgkill), SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(rt_tgsigqueueinfo)}) {
    filter.refuse(call, SCMP_A0_32(SCMP_CMP_NE, self));
  }
  // Its own limits and cores are found under number 0.
  filter.refuse(SCMP_SYS(prlimit64), SCMP_A0_32(SCMP_CMP_NE, 0));
  // Having the kernel signal others, when a descriptor is ready (Landlock sees to it from version 6
  // on).
  for (const int command : {F_SETOWN, F_SETOWN_EX, F_SETSIG})
    filter.refuse(SCMP_SYS(fcntl), SCMP_A1_32(SCMP_CMP_EQ, static_cast<scmp_datum_t>(command)));
  for (const unsigned long command : {FIOSETOWN, SIOCSPGRP})
    filter.refuse(SCMP_SYS(ioctl), SCMP_A1_32(SCMP_CMP_EQ, command));
  // Typing into the terminal that the log goes to.
  filter.refuse(SCMP_SYS(ioctl), SCMP_A1_32(SCMP_CMP_EQ, TIOCSTI));
  filter.refuse(SCMP_SYS(ioctl), SCMP_A1_32(SCMP_CMP_EQ, TIOCLINUX));

  // A region that shrinks under the daemon would end it by SIGBUS. A memfd is sealed against it, a
  // POSIX object can't be; no second descriptor that the rule would not know must come of it. The
  // rule knows a number, so a sealed region has none: the next file of that number would have its
  // size refused (a driver's cache did, and each start compiled every kernel).
  if (region >= 0 && can_change_size(region)) {
    const auto number = static_cast<scmp_datum_t>(region);
    for (const int call : {SCMP_SYS(ftruncate), SCMP_SYS(fallocate), SCMP_SYS(dup), SCMP_SYS(dup2),
                           SCMP_SYS(dup3)}) {
      filter.refuse(call, SCMP_A0_32(SCMP_CMP_EQ, number));
    }
    for (const int command : {F_DUPFD, F_DUPFD_CLOEXEC}) {
      filter.refuse(SCMP_SYS(fcntl), SCMP_A0_32(SCMP_CMP_EQ, number),
                    SCMP_A1_32(SCMP_CMP_EQ, static_cast<scmp_datum_t>(command)));
    }
  }
  return filter.load();
}

// Of a superuser's powers those stay that open files, which Landlock decides on; others would see into
// processes past Landlock (CAP_PERFMON reads any environment).
Status drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::syscall(SYS_capget, &header, sets) != 0)
    return errno_error(ErrorCode::kInternal, "capget", errno);
  constexpr std::uint32_t kKept = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::uint32_t kept = sets[i].permitted & (i == 0 ? kKept : 0);
    sets[i] = {kept, kept, 0};
  }
  if (::syscall(SYS_capset, &header, sets) != 0)
    return errno_error(ErrorCode::kInternal, "capset", errno);
  return {};
}

bool seccomp_available() {
  // With a null filter the kernel that has it answers EFAULT.
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0) != 0 && errno == EFAULT;
}

}  // namespace

SandboxReport sandbox_support() {
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
          "Landlock before Linux 6.12 knows no signals; the system call filter refuses them");
  }
  if (!report.system_calls)
    report.gaps.push_back(
        "seccomp filters are missing (CONFIG_SECCOMP_FILTER): sockets, programs "
        "and signals are not held back");
  return report;
}

Result<SandboxReport> enter_sandbox(const SandboxPaths& paths, int region) {
  SandboxReport report = sandbox_support();
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return errno_error(ErrorCode::kInternal, "PR_SET_NO_NEW_PRIVS", errno);
  // A core file would hold the model and every prompt.
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
  BULKHEAD_RETURN_IF_ERROR(drop_capabilities());
  if (report.files) BULKHEAD_RETURN_IF_ERROR(confine_files(paths, report.landlock_version));
  if (report.system_calls) BULKHEAD_RETURN_IF_ERROR(confine_calls(region));
  return report;
}

std::vector<std::string> driver_paths() {
  std::vector<std::string> paths = {
      "/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/run/opengl-driver", "/proc",
      "/sys", "/run/udev",
      // Of /etc what loaders and drivers read; not the rest, where secrets lie.
      "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
      "/etc/vulkan", "/etc/glvnd", "/etc/drirc", "/etc/nvidia", "/etc/alternatives",
      "/etc/localtime"};
  const auto add_list = [&paths](const char* variable) {
    const char* list = std::getenv(variable);
    std::string_view rest = list == nullptr ? "" : list;
    while (!rest.empty()) {
      const std::size_t colon = rest.find(':');
      if (colon != 0) paths.emplace_back(rest.substr(0, colon));
      rest = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
    }
  };
  for (const char* variable : {"LD_LIBRARY_PATH", "VK_DRIVER_FILES", "VK_ICD_FILENAMES",
                               "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH", "VK_ADD_LAYER_PATH"}) {
    add_list(variable);
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    for (const char* folder : {"/.local/share/vulkan", "/.config/vulkan", "/.drirc"})
      paths.push_back(std::string(home) + folder);
  }
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) paths.push_back(program.parent_path().string());
  return paths;
}

}  // namespace bulkhead::worker
