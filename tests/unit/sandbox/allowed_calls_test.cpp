// Reviews the list of calls that a worker may make: this test fails when the table grows or a check of it changes. So
// everybody who adds a call must add it in two places, and think about it. The tests also run the filter that is made
// of the table over calls, number by number; hostile_driver_test.cpp makes these calls in the kernel.
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
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/sandbox/call_filter.hpp"

namespace bulkhead::worker {
namespace {

// Allowed whatever their arguments are. None of these changes anything outside the process, or a file about which
// Landlock does not decide.
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

// The rows of the other calls, in the table's order, as text_of() writes them.
const std::vector<std::string> kReviewedChecked = {
    "mmap, argument 3 & 0x42000 == 0x0",
    "madvise, argument 2 == 0x4",
    "madvise, argument 2 == 0x8",
    "madvise, argument 2 & 0xfffffffc == 0x0",
    "madvise, argument 2 == 0x16",
    "madvise, argument 2 & 0xfffffffe == 0xa",
    "madvise, argument 2 & 0xfffffffe == 0xe",
    "madvise, argument 2 & 0xfffffffe == 0x10",
    "memfd_create, argument 1 & 0x4 == 0x0",
    "clone, argument 0 & 0xfe03ff00 == 0x10f00",
    "sched_setaffinity, argument 0 == process",
    "sched_setaffinity, argument 0 == 0x0",
    "kill, argument 0 == process",
    "tgkill, argument 0 == process",
    "open, argument 2 & 0xc00 == 0x0",
    "openat, argument 3 & 0xc00 == 0x0",
    "mkdir, argument 1 & 0xc00 == 0x0",
    "mkdirat, argument 2 & 0xc00 == 0x0",
    "ftruncate, argument 0 != region",
    "fallocate, argument 0 != region, argument 1 == 0x0",
    "dup, argument 0 != region",
    "dup2, argument 0 != region",
    "dup3, argument 0 != region",
    "fcntl, argument 0 != region, argument 1 == 0x0",
    "fcntl, argument 0 != region, argument 1 == 0x406",
    "fcntl, argument 1 == 0x1",
    "fcntl, argument 1 == 0x2",
    "fcntl, argument 1 == 0x3",
    "fcntl, argument 1 == 0x4, argument 2 & 0x2000 == 0x0",
    "fcntl, argument 1 == 0x409",
    "fcntl, argument 1 == 0x40a",
    "ioctl, argument 1 == 0x5401",
    "ioctl, argument 1 & 0xff00 == 0x4600",
    "ioctl, argument 1 & 0xff00 == 0x6d00",
    "ioctl, argument 1 & 0xffffff00 == 0x0",
    "ioctl, argument 1 & 0xfffffffc == 0x30000000",
    "ioctl, argument 1 & 0xff00 == 0x6400",
    "ioctl, argument 1 & 0xff00 == 0x4b00",
    "ioctl, argument 1 & 0xff00 == 0x3e00",
    "ioctl, argument 1 & 0xff00 == 0x6200",
    "ioctl, argument 1 & 0xff00 == 0x4800",
    "ioctl, argument 1 & 0xff00 == 0x7500",
    "ioctl, argument 1 & 0xff00 == 0x4700",
    "ioctl, argument 1 & 0xff00 == 0x8000",
    "sendto, argument 4 null",
    "getsockopt, argument 1 == 0x1",
    "setsockopt, argument 1 == 0x1, argument 2 == 0x10",
    "prlimit64, argument 0 == 0x0, argument 2 null",
    "prctl, argument 0 == 0xf",
    "prctl, argument 0 == 0x10",
    "prctl, argument 0 == 0x27",
    "prctl, argument 0 == 0x53564d41",
};

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

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", value);
  return text;
}

std::string text_of(const ArgumentCheck& check) {
  const std::string argument = "argument " + std::to_string(check.argument);
  std::string value;
  switch (check.known) {
    case Known::kNumber:
      value = hex(check.value);
      break;
    case Known::kProcess:
      value = "process";
      break;
    case Known::kRegion:
      value = "region";
      break;
  }
  const std::string mask = check.mask == 0xffffffff ? "" : " & " + hex(check.mask);
  switch (check.must) {
    case Must::kNothing:
      return "";
    case Must::kEqual:
      return ", " + argument + mask + " == " + value;
    case Must::kDiffer:
      return ", " + argument + mask + " != " + value;
    case Must::kBeZero:
      return ", " + argument + " null";
  }
  return "";
}

// Returns "name, argument 1 & 0xff00 == 0x4600", with each check.
std::string text_of(const AllowedCall& row) {
  std::string text = row.name;
  for (const ArgumentCheck& check : row.checks)
    text += text_of(check);
  return text;
}

TEST(AllowedCalls, AreTheReviewedOnes) {
  std::set<std::string> whole;
  std::vector<std::string> checked;
  for (const AllowedCall& row : allowed_calls()) {
    EXPECT_STRNE(row.why, "") << row.name;
    const std::string text = text_of(row);
    if (row.checks[0].must == Must::kNothing) {
      whole.insert(text);
    } else {
      checked.push_back(text);
    }
  }
  if (kSanitized) {
    whole.erase("pipe");
    whole.erase("pipe2");
  }
  EXPECT_EQ(whole, kReviewedWhole);
  std::string rows;
  for (const std::string& row : checked)
    rows += row + "\n";
  EXPECT_EQ(checked, kReviewedChecked) << "the table's rows with checks:\n" << rows;
}

// A wider mask, another value or a missing check: each of them changes the text.
TEST(AllowedCalls, ReviewSeesEachPartOfARow) {
  const AllowedCall row{
      16, "ioctl", {{{Must::kEqual, 1, Known::kNumber, 0x4600, 0xff00}}}, "a device"};
  EXPECT_EQ(text_of(row), "ioctl, argument 1 & 0xff00 == 0x4600");
  std::set<std::string> texts = {text_of(row)};
  const auto differs = [&](auto change) {
    AllowedCall changed = row;
    change(changed);
    return texts.insert(text_of(changed)).second;
  };
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0].mask = 0xf000; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0].value = 0x4700; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0].argument = 2; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0].must = Must::kDiffer; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0].must = Must::kBeZero; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0].known = Known::kProcess; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0].known = Known::kRegion; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[1] = {Must::kBeZero, 2}; }));
  EXPECT_TRUE(differs([](AllowedCall& of) { of.checks[0] = {}; }));
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

// The kernel reads 32 bits of an int, whatever the other bits are.
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
