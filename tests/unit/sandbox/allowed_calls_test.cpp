// The list of what a worker may call, reviewed: this test fails when the table grows, so that a call is
// added in two places, by somebody who has thought about it. And the filter that is made of the table,
// run over calls here, number by number; hostile_driver_test.cpp makes them in the kernel.
#include "worker/sandbox/allowed_calls.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/sandbox/call_filter.hpp"

namespace bulkhead::worker {
namespace {

// Whatever their arguments are. None of these changes anything outside the process, or a file that
// Landlock does not decide on.
const std::set<std::string> kReviewedWhole = {"access",
                                              "brk",
                                              "clock_getres",
                                              "clock_gettime",
                                              "clock_nanosleep",
                                              "close",
                                              "close_range",
                                              "epoll_create1",
                                              "epoll_ctl",
                                              "epoll_pwait",
                                              "epoll_wait",
                                              "eventfd2",
                                              "exit",
                                              "exit_group",
                                              "faccessat",
                                              "faccessat2",
                                              "fadvise64",
                                              "flock",
                                              "fstat",
                                              "fstatfs",
                                              "futex",
                                              "getcpu",
                                              "getcwd",
                                              "getdents64",
                                              "getegid",
                                              "geteuid",
                                              "getgid",
                                              "getpid",
                                              "getppid",
                                              "getrandom",
                                              "getrlimit",
                                              "getrusage",
                                              "gettid",
                                              "gettimeofday",
                                              "getuid",
                                              "lseek",
                                              "lstat",
                                              "membarrier",
                                              "mincore",
                                              "mprotect",
                                              "mremap",
                                              "munmap",
                                              "nanosleep",
                                              "newfstatat",
                                              "poll",
                                              "ppoll",
                                              "pread64",
                                              "pwrite64",
                                              "read",
                                              "recvmsg",
                                              "sendmsg",
                                              "shutdown",
                                              "readahead",
                                              "readlink",
                                              "readlinkat",
                                              "readv",
                                              "rename",
                                              "renameat",
                                              "renameat2",
                                              "restart_syscall",
                                              "rmdir",
                                              "rseq",
                                              "rt_sigaction",
                                              "rt_sigprocmask",
                                              "rt_sigreturn",
                                              "sched_getaffinity",
                                              "sched_getparam",
                                              "sched_getscheduler",
                                              "sched_get_priority_max",
                                              "sched_get_priority_min",
                                              "sched_yield",
                                              "set_robust_list",
                                              "sigaltstack",
                                              "stat",
                                              "statfs",
                                              "statx",
                                              "sysinfo",
                                              "time",
                                              "umask",
                                              "uname",
                                              "unlink",
                                              "unlinkat",
                                              "write",
                                              "writev"};

// With how many rows of checks.
const std::map<std::string, int> kReviewedChecked = {
    {"clone", 1},     {"dup", 1},        {"dup2", 1},      {"dup3", 1},
    {"fallocate", 1}, {"fcntl", 8},      {"ftruncate", 1}, {"getsockopt", 1},
    {"ioctl", 13},    {"kill", 1},       {"madvise", 7},   {"memfd_create", 1},
    {"mkdir", 1},     {"mkdirat", 1},    {"mmap", 1},      {"open", 1},
    {"openat", 1},    {"prctl", 4},      {"prlimit64", 1}, {"sched_setaffinity", 2},
    {"sendto", 1},    {"setsockopt", 1}, {"tgkill", 1}};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr pid_t kProcess = 4321;
constexpr int kRegion = 4;

std::uint32_t answer(int number, const std::vector<std::uint64_t>& arguments,
                     std::uint32_t architecture = 0) {
  CallContext context;
  context.process = kProcess;
  context.region = kRegion;
  static const auto program = build_call_filter(context, Refusal::kErrno);
  seccomp_data call{};
#if defined(__x86_64__)
  call.arch = architecture != 0 ? architecture : AUDIT_ARCH_X86_64;
#else
  call.arch = architecture != 0 ? architecture : AUDIT_ARCH_AARCH64;
#endif
  call.nr = number;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    call.args[i] = arguments[i];
  return judge(program, call);
}
bool allows(int number, const std::vector<std::uint64_t>& arguments = {}) {
  return answer(number, arguments) == SECCOMP_RET_ALLOW;
}
std::uint64_t with_high_bits(std::uint64_t value) {
  return value | 0xdead000000000000U;
}

TEST(AllowedCalls, AreTheReviewedOnes) {
  std::set<std::string> whole;
  std::map<std::string, int> checked;
  for (const AllowedCall& row : allowed_calls()) {
    EXPECT_STRNE(row.why, "") << row.name;
    if (row.checks[0].must == Must::kNothing) {
      whole.insert(row.name);
    } else {
      ++checked[row.name];
    }
  }
  if (kSanitized) {
    whole.erase("pipe");
    whole.erase("pipe2");
  }
  EXPECT_EQ(whole, kReviewedWhole);
  EXPECT_EQ(checked, kReviewedChecked);
}

TEST(AllowedCalls, EveryOtherNumberIsRefused) {
  std::set<int> listed;
  for (const AllowedCall& row : allowed_calls())
    listed.insert(row.number);
  for (int number = 0; number <= 1000; ++number) {
    const std::uint32_t got = answer(number, {});
    if (listed.contains(number)) continue;
    EXPECT_TRUE(got == (SECCOMP_RET_ERRNO | EPERM) || got == (SECCOMP_RET_ERRNO | ENOSYS))
        << call_name(number) << ": " << std::hex << got;
  }
}

TEST(AllowedCalls, OtherArchitecturesNumbersAreRefused) {
  constexpr std::uint32_t kRefused = SECCOMP_RET_ERRNO | EPERM;
  EXPECT_EQ(answer(SYS_read, {}, AUDIT_ARCH_I386), kRefused);
  EXPECT_EQ(answer(SYS_read | 0x40000000, {}), kRefused) << "x32";
  EXPECT_EQ(answer(-1, {}), kRefused);
}

TEST(AllowedCalls, ArgumentsDecide) {
  constexpr std::uint64_t kThread =
      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  EXPECT_TRUE(allows(SYS_clone, {kThread}));
  EXPECT_FALSE(allows(SYS_clone, {SIGCHLD}));
  for (const std::uint64_t more : {CLONE_NEWUSER, CLONE_NEWNS, CLONE_PTRACE, CLONE_PARENT})
    EXPECT_FALSE(allows(SYS_clone, {kThread | more}));
  EXPECT_EQ(answer(SYS_clone3, {}), SECCOMP_RET_ERRNO | ENOSYS);

  EXPECT_TRUE(allows(SYS_prctl, {PR_SET_NAME}));
  for (const int option :
       {PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_MM, PR_SET_PTRACER})
    EXPECT_FALSE(allows(SYS_prctl, {static_cast<std::uint64_t>(option)})) << option;

  for (const int command : {F_SETOWN, F_SETSIG, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ, F_SETLK})
    EXPECT_FALSE(allows(SYS_fcntl, {9, static_cast<std::uint64_t>(command), 0})) << command;
  EXPECT_TRUE(allows(SYS_fcntl, {9, F_SETFL, O_NONBLOCK}));
  EXPECT_FALSE(allows(SYS_fcntl, {9, F_SETFL, O_ASYNC}));

  EXPECT_TRUE(allows(SYS_ioctl, {9, 0xc020462a})) << "NVIDIA's";
  EXPECT_TRUE(allows(SYS_ioctl, {9, TCGETS}));
  for (const unsigned long request : {TIOCSTI, TIOCLINUX, TCXONC, TCSETS, TIOCSCTTY, FIOASYNC})
    EXPECT_FALSE(allows(SYS_ioctl, {0, request})) << request;

  EXPECT_TRUE(allows(SYS_openat, {0, 0, O_CREAT | O_WRONLY, 0644}));
  EXPECT_FALSE(allows(SYS_openat, {0, 0, O_CREAT | O_WRONLY, 04755}));
  EXPECT_FALSE(allows(SYS_mkdir, {0, 02777}));
  EXPECT_TRUE(allows(SYS_mmap, {0, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE}));
  EXPECT_FALSE(allows(SYS_mmap, {0, 1, PROT_READ, MAP_PRIVATE | MAP_HUGETLB}));
  EXPECT_FALSE(allows(SYS_mmap, {0, 1, PROT_READ, MAP_PRIVATE | MAP_LOCKED}));

  EXPECT_TRUE(allows(SYS_tgkill, {kProcess, 1, SIGABRT}));
  EXPECT_FALSE(allows(SYS_tgkill, {1, 1, SIGABRT}));
  EXPECT_FALSE(allows(SYS_kill, {0, SIGTERM})) << "its process group";
  EXPECT_TRUE(allows(SYS_sched_setaffinity, {0}));
  EXPECT_FALSE(allows(SYS_sched_setaffinity, {1}));
  EXPECT_TRUE(allows(SYS_prlimit64, {0, 7, 0, 1}));
  EXPECT_FALSE(allows(SYS_prlimit64, {0, 7, with_high_bits(0), 1}));

  EXPECT_TRUE(allows(SYS_sendto, {3, 1, 1, 0, 0, 0}));
  EXPECT_FALSE(allows(SYS_sendto, {3, 1, 1, 0, 1ULL << 40, 0})) << "to an address";
}

// The kernel reads 32 bits of an int, whatever is in the others.
TEST(AllowedCalls, UpperHalvesOfArgumentsHideNothing) {
  EXPECT_FALSE(allows(SYS_fcntl, {9, with_high_bits(F_SETOWN)}));
  EXPECT_FALSE(allows(SYS_kill, {with_high_bits(1), SIGKILL}));
  EXPECT_FALSE(allows(SYS_ioctl, {0, with_high_bits(TIOCSTI)}));
  EXPECT_FALSE(allows(SYS_ftruncate, {with_high_bits(kRegion), 0}));
  EXPECT_FALSE(allows(SYS_dup, {with_high_bits(kRegion)}));
  EXPECT_FALSE(allows(SYS_fcntl, {with_high_bits(kRegion), F_DUPFD, 0}));
  EXPECT_TRUE(allows(SYS_ftruncate, {5, 0}));
  EXPECT_TRUE(allows(SYS_ioctl, {9, with_high_bits(0xc020462a)}));
}

TEST(AllowedCalls, MoreAreAddedByName) {
  const auto calls = calls_by_name("inotify_init1, pipe2");
  ASSERT_TRUE(calls.ok());
  CallContext context;
  context.also = *calls;
  const auto program = build_call_filter(context, Refusal::kErrno);
  seccomp_data call{};
#if defined(__x86_64__)
  call.arch = AUDIT_ARCH_X86_64;
#else
  call.arch = AUDIT_ARCH_AARCH64;
#endif
  call.nr = SYS_pipe2;
  EXPECT_EQ(judge(program, call), SECCOMP_RET_ALLOW);
  call.nr = SYS_ptrace;
  EXPECT_EQ(judge(program, call), SECCOMP_RET_ERRNO | EPERM);
  const auto wrong = calls_by_name("pipe2 pipe77");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message().find("pipe77"), std::string::npos);
}

}  // namespace
}  // namespace bulkhead::worker
