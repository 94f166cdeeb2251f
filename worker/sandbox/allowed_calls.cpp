#include "worker/sandbox/allowed_calls.hpp"

#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

namespace bulkhead::worker {
namespace {

using Check = ArgumentCheck;

// Some calls are missing here although drivers try them, because the drivers continue without them. Mesa asks for a
// lower priority of the thread that writes its cache (sched_setscheduler, setpriority) and lets it run on all CPUs
// (sched_setaffinity names a thread by a number, and the filter can't tell whose thread it is). NVIDIA's driver makes
// missing device nodes (mknod, chmod, chown) and looks for its daemon (socket).

// ---- what a row can require of an argument ----

constexpr Check is(std::uint8_t argument, std::uint64_t value) {
  return {Must::kEqual, argument, Known::kNumber, static_cast<std::uint32_t>(value)};
}
constexpr Check is(std::uint8_t argument, Known known) {
  return {Must::kEqual, argument, known};
}
constexpr Check is_not(std::uint8_t argument, Known known) {
  return {Must::kDiffer, argument, known};
}
constexpr Check without(std::uint8_t argument, std::uint64_t bits) {
  return {Must::kEqual, argument, Known::kNumber, 0, static_cast<std::uint32_t>(bits)};
}
constexpr Check masked(std::uint8_t argument, std::uint64_t mask, std::uint64_t value) {
  return {Must::kEqual, argument, Known::kNumber, static_cast<std::uint32_t>(value),
          static_cast<std::uint32_t>(mask)};
}
constexpr Check null(std::uint8_t argument) {
  return {Must::kBeZero, argument};
}
// An ioctl's second byte identifies its driver (Documentation/userspace-api/ioctl/ioctl-number.rst).
constexpr Check ioctl_of(char device) {
  return masked(1, 0xff00, static_cast<std::uint64_t>(static_cast<unsigned char>(device)) << 8);
}

// A thread of this process: it shares everything with the process, and enters no namespace.
constexpr std::uint64_t kOfThread =
    CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
constexpr std::uint64_t kOfNoThread = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                      CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_IO |
                                      CLONE_PTRACE | CLONE_VFORK | CLONE_PARENT | CLONE_PIDFD;
// Memory that the machine can't reclaim while the process lives.
constexpr std::uint64_t kPinned = MAP_LOCKED | MAP_HUGETLB;
constexpr std::uint64_t kHugePagesFile = 0x4;  // MFD_HUGETLB
// Bits that let others run a program with the rights of its owner.
constexpr std::uint64_t kSetIdBits = 06000;
constexpr std::uint64_t kTerminalAttributes = 0x5401;  // TCGETS: isatty()
constexpr std::uint64_t kNameMemory = 0x53564d41;      // PR_SET_VMA

#define ANY(name, why) \
  { SCMP_SYS(name), #name, {}, why }
#define ONLY(name, why, ...) \
  { SCMP_SYS(name), #name, {{__VA_ARGS__}}, why }

// clang-format off
const AllowedCall kAllowed[] = {
  // -- its own memory
  ANY(brk, "malloc"),
  ONLY(mmap, "malloc, stacks, libraries, a driver's buffers and compiled code", without(3, kPinned)),
  ANY(munmap, "the same"),
  ANY(mprotect, "the same; a driver's compiler writes code, then makes it run"),
  ONLY(mremap, "realloc"),
  ONLY(madvise, "free", is(2, MADV_DONTNEED)),
  ONLY(madvise, "free", is(2, 8 /* MADV_FREE */)),
  ONLY(madvise, "files", masked(2, ~3ULL, 0) /* NORMAL, RANDOM, SEQUENTIAL, WILLNEED */),
  ONLY(madvise, "a model's weights are read ahead", is(2, 22 /* MADV_POPULATE_READ */)),
  ONLY(madvise, "drivers keep device memory out of children", masked(2, ~1ULL, 10) /* DONTFORK, DOFORK */),
  ONLY(madvise, "large pages for what is large", masked(2, ~1ULL, 14) /* HUGEPAGE, NOHUGEPAGE */),
  ONLY(madvise, "nothing of a driver's in a core file", masked(2, ~1ULL, 16) /* DONTDUMP, DODUMP */),
  ANY(mincore, "NVIDIA's driver looks whether an address is mapped"),
  ANY(membarrier, "NVIDIA's driver"),
  ONLY(memfd_create, "the vault's directory; lavapipe's device memory", without(1, kHugePagesFile)),

  // -- its own threads
  ONLY(clone, "threads", masked(0, kOfThread | kOfNoThread, kOfThread)),
  ANY(set_robust_list, "each thread's start"),
  ANY(rseq, "each thread's start"),
  ANY(exit, "each thread's end"),
  ANY(exit_group, "the process's end"),
  ANY(futex, "locks"),
  ANY(sched_yield, "locks"),
  ANY(gettid, "locks; logs"),
  ANY(getpid, "logs"),
  ANY(getcpu, "malloc; drivers"),
  ANY(sched_getaffinity, "how many CPUs there are"),
  ONLY(sched_setaffinity, "Mesa looks at each CPU", is(0, Known::kProcess)),
  ONLY(sched_setaffinity, "a thread's own", is(0, 0)),
  ANY(sched_get_priority_max, "pthread_attr_*"),
  ANY(sched_get_priority_min, "pthread_attr_*"),
  ONLY(sched_getscheduler, "pthread_getschedparam"),
  ONLY(sched_getparam, "pthread_getschedparam"),

  // -- signals to itself
  ANY(rt_sigaction, "handlers"),
  ANY(rt_sigprocmask, "each thread's start and end"),
  ANY(rt_sigreturn, "a handler's end"),
  ANY(restart_syscall, "the kernel's own, after a stop and SIGCONT"),
  ANY(sigaltstack, "handlers on a stack of their own"),
  ONLY(kill, "its own end", is(0, Known::kProcess)),
  ONLY(tgkill, "abort(), raise()", is(0, Known::kProcess)),

  // -- time
  ANY(clock_gettime, "where the kernel has no faster way"),
  ANY(clock_getres, "the same"),
  ANY(gettimeofday, "the same"),
  ANY(time, "the same"),
  ANY(nanosleep, "waits"),
  ANY(clock_nanosleep, "waits"),

  // -- files; Landlock decides which ones
  ONLY(open, "the model, libraries, drivers, device nodes, the cache folder", without(2, kSetIdBits)),
  ONLY(openat, "the same", without(3, kSetIdBits)),
  ANY(close, "the same"),
  ANY(close_range, "drivers"),
  ANY(read, "files; pipes of the stdio transport"),
  ANY(pread64, "files"),
  ANY(readv, "files"),
  ANY(write, "the cache folder, the log; pipes of the stdio transport"),
  ANY(pwrite64, "the cache folder"),
  ANY(writev, "the same"),
  ANY(lseek, "files"),
  ANY(fadvise64, "files"),
  ANY(readahead, "files"),
  ANY(fstat, "reading about files, which Landlock does not hold back"),
  ANY(stat, "the same"),
  ANY(lstat, "the same"),
  ANY(newfstatat, "the same"),
  ANY(statx, "the same"),
  ANY(access, "the same"),
  ANY(faccessat, "the same"),
  ANY(faccessat2, "the same"),
  ANY(readlink, "the same"),
  ANY(readlinkat, "the same"),
  ANY(statfs, "the same"),
  ANY(fstatfs, "the same"),
  ANY(getcwd, "the same"),
  ANY(getdents64, "folders with drivers; the cache folder"),
  ONLY(mkdir, "the cache folder", without(1, kSetIdBits)),
  ONLY(mkdirat, "the cache folder", without(2, kSetIdBits)),
  ANY(rename, "the cache folder"),
  ANY(renameat, "the cache folder"),
  ANY(renameat2, "the cache folder"),
  ANY(unlink, "the cache folder"),
  ANY(unlinkat, "the cache folder"),
  ANY(rmdir, "the cache folder"),
  ANY(umask, "drivers"),
  ANY(flock, "Mesa locks files of its cache"),
  ONLY(ftruncate, "Mesa's cache; a memfd", is_not(0, Known::kRegion)),
  ONLY(fallocate, "the same; makes no holes", is_not(0, Known::kRegion), is(1, 0)),
  ONLY(dup, "exported memory", is_not(0, Known::kRegion)),
  ONLY(dup2, "the region's number is kept", is_not(0, Known::kRegion)),
  ONLY(dup3, "the same", is_not(0, Known::kRegion)),
  ONLY(fcntl, "exported memory", is_not(0, Known::kRegion), is(1, F_DUPFD)),
  ONLY(fcntl, "exported memory", is_not(0, Known::kRegion), is(1, F_DUPFD_CLOEXEC)),
  ONLY(fcntl, "descriptors that no child gets", is(1, F_GETFD)),
  ONLY(fcntl, "descriptors that no child gets", is(1, F_SETFD)),
  ONLY(fcntl, "how a descriptor is open", is(1, F_GETFL)),
  ONLY(fcntl, "waits or not; no signals for it", is(1, F_SETFL), without(2, O_ASYNC)),
  ONLY(fcntl, "the vault's directory, lavapipe's memory", is(1, F_ADD_SEALS)),
  ONLY(fcntl, "the vault's directory", is(1, F_GET_SEALS)),
  ONLY(ioctl, "isatty()", is(1, kTerminalAttributes)),
  ONLY(ioctl, "NVIDIA's device nodes", ioctl_of('F')),
  ONLY(ioctl, "/dev/nvidia-modeset", ioctl_of('m')),
  ONLY(ioctl, "/dev/nvidia-uvm, whose numbers have no device in them", masked(1, 0xffffff00, 0)),
  ONLY(ioctl, "/dev/nvidia-uvm, its first and last", masked(1, 0xfffffffc, 0x30000000)),
  ONLY(ioctl, "/dev/dri", ioctl_of('d')),
  ONLY(ioctl, "/dev/kfd", ioctl_of('K')),
  ONLY(ioctl, "fences of /dev/dri", ioctl_of('>')),
  ONLY(ioctl, "shared buffers of /dev/dri", ioctl_of('b')),
  ONLY(ioctl, "/dev/dma_heap", ioctl_of('H')),
  ONLY(ioctl, "/dev/udmabuf", ioctl_of('u')),
  ONLY(ioctl, "/dev/dxg", ioctl_of('G')),
  ONLY(ioctl, "/dev/mali*", ioctl_of('\x80')),

  // -- waiting
  ANY(poll, "the channel; a driver's events"),
  ANY(ppoll, "the same"),
  ANY(eventfd2, "waking the thread that waits"),
  ANY(epoll_create1, "the stdio transport waits for two descriptors by one"),
  ANY(epoll_ctl, "the same"),
  ANY(epoll_wait, "the same"),
  ANY(epoll_pwait, "the same"),

  // -- the daemon, over the sockets that the process inherited: it can make and connect no other socket
  ONLY(sendto, "the doorbell; records of the stdio transport", null(4)),
  ANY(sendmsg, "the vault's descriptors"),
  ANY(recvmsg, "the doorbell; records of the stdio transport; the vault's descriptors"),
  ONLY(getsockopt, "what a socket is", is(1, SOL_SOCKET)),
  ONLY(setsockopt, "emptying one before it is closed", is(1, SOL_SOCKET), is(2, SO_PASSCRED)),
  ANY(shutdown, "the same"),

  // -- about the machine and the process
  ANY(uname, "drivers"),
  ANY(sysinfo, "how much memory there is"),
  ANY(getrandom, "seeds of hash tables"),
  ANY(getuid, "drivers"),
  ANY(geteuid, "drivers"),
  ANY(getgid, "drivers"),
  ANY(getegid, "drivers"),
  ANY(getppid, "drivers"),
  ANY(getrlimit, "stack sizes"),
  ANY(getrusage, "its own figures"),
  ONLY(prlimit64, "its own limits, to read", is(0, 0), null(2)),
  ONLY(prctl, "threads' names", is(0, PR_SET_NAME)),
  ONLY(prctl, "threads' names", is(0, PR_GET_NAME)),
  ONLY(prctl, "what it may not do", is(0, PR_GET_NO_NEW_PRIVS)),
  ONLY(prctl, "names of memory", is(0, kNameMemory)),
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // -- what GCC's sanitizers need besides, in builds that have them
  ANY(pipe2, "whether an address can be read"),
  ANY(pipe, "whether an address can be read"),
#endif
};
// clang-format on
#undef ANY
#undef ONLY

const int kAbsent[] = {
    // Its flags are in memory, where a filter can't look. If it is refused, the C library uses clone.
    SCMP_SYS(clone3),
    // The C library tries the newer call and, if it is refused, uses the older one.
    SCMP_SYS(openat2), SCMP_SYS(epoll_pwait2), SCMP_SYS(memfd_secret)};

}  // namespace

std::span<const AllowedCall> allowed_calls() {
  return kAllowed;
}

std::span<const int> absent_calls() {
  return kAbsent;
}

}  // namespace bulkhead::worker
