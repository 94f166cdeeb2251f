// A Vulkan driver that tries all kinds of harm once the loader loads it into a worker that is confined as users'
// workers are. It logs what succeeded; otherwise it is not a working driver. Only hostile_driver_test.cpp loads it,
// with VK_DRIVER_FILES. It links none of the product's libraries.
//
//   BULKHEAD_DRIVER_FILE    a file of the user's that no worker may touch
//   BULKHEAD_DRIVER_MODEL   the model file, which the worker may read
//   BULKHEAD_DRIVER_CACHE   the worker's cache folder
//   BULKHEAD_DRIVER_SKIPS   numbers of calls that are in the worker's table, with commas around
//   BULKHEAD_DRIVER_I386    this kernel has the 32-bit system calls
//   BULKHEAD_DRIVER_HIDDEN  the worker may have namespaces, which hide others' files
//   BULKHEAD_DRIVER_LOOKS   it does no harm, and only says what it can learn about files
//   BULKHEAD_DRIVER_WHO     it does no harm, and only says which user it is, and whether that user reads the file
//
// With only BULKHEAD_DRIVER_ASKS, which names a file, it does no harm: it makes a call that is in no table and reads
// that file, each twice, so that the test sees what a sandbox that only logs writes about them.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Writes a line in one call, because other threads log, too.
void say(const std::string& line) {
  const std::string text = "driver: " + line + "\n";
  (void)!::write(2, text.data(), text.size());
}

bool is_refusal(long result) {
  return result < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES);
}

// In namespaces the worker does not find files of others, all but its cache folder is read-only, and nothing can be
// renamed into that folder.
bool is_hidden(long result) {
  static const bool in_namespaces = std::getenv("BULKHEAD_DRIVER_HIDDEN") != nullptr;
  return in_namespaces && result < 0 && (errno == ENOENT || errno == EROFS || errno == EXDEV);
}

// Tries each number that is not in the worker's table, harmless or harmful.
int try_every_number() {
  int through = 0;
  const std::string skips = variable("BULKHEAD_DRIVER_SKIPS");
  static char memory[4096] = {};
  const long here = reinterpret_cast<long>(memory);
  const long patterns[][6] = {{-1, -1, -1, -1, -1, -1},
                              {0, 0, 0, 0, 0, 0},
                              {1, 1, 1, 1, 1, 1},
                              {here, here, 8, 0, 0, 0},
                              {AT_FDCWD, here, 0777, 0, 0, 0},
                              {2, here, here, 8, here, 8}};
  for (long number = 0; number <= 500; ++number) {
    if (skips.find("," + std::to_string(number) + ",") != std::string::npos) continue;
#if defined(__x86_64__)
    // Kernels that have uretprobe and uprobe apply no filter to them, and end the caller with SIGILL unless the call
    // comes from the kernel's own page.
    if (number == 335 || number == 336) continue;
#endif
    for (const auto& with : patterns) {
      errno = 0;
      const long result = ::syscall(number, with[0], with[1], with[2], with[3], with[4], with[5]);
      if (is_refusal(result)) continue;
      ++through;
      say("went through: call " + std::to_string(number) + " with " + std::to_string(with[0]) +
          ": " + std::to_string(result) + ", " + std::strerror(errno));
    }
#if defined(__x86_64__)
    errno = 0;
    if (!is_refusal(::syscall(number | 0x40000000, here, here, here, here, here, here))) {
      ++through;
      say("went through: x32 call " + std::to_string(number));
    }
#endif
  }
  return through;
}

struct Act {
  const char* name;
  std::function<long()> run;  // a negative result, with errno, means that it was refused
};

#if defined(__x86_64__)
// Makes a call as a 32-bit program would, whose numbers differ: 20 is getpid, 11 execve.
long call_i386(long number) {
  long result;
  asm volatile("int $0x80"
               : "=a"(result)
               : "a"(number), "b"(0), "c"(0), "d"(0)
               : "memory", "r8", "r9", "r10", "r11");
  if (result < 0) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}
#endif

// Opens a file and closes it again: the attempt is to open it.
long opened(const std::string& path, int flags, int mode = 0600) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd >= 0) ::close(fd);
  return fd;
}

// What the acts need. It is made within loaded(), which may run before this file's own objects are made: those here are
// constants, or filled by the compiler.
struct Surroundings {
  Surroundings() { CPU_SET(0, &cpus); }

  const std::string file = variable("BULKHEAD_DRIVER_FILE"),
                    model = variable("BULKHEAD_DRIVER_MODEL"), cache = cache_folder(),
                    own = cache + "/own", daemon = "/proc/" + std::to_string(other());
  const int mine = ::open(own.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int readable = ::open(model.c_str(), O_RDONLY | O_CLOEXEC);
  const pid_t parent = other();
  cpu_set_t cpus{};

  // A worker that is a user of its own may not find the way to its cache folder by the usual path.
  static std::string cache_folder() {
    const std::string usual = variable("BULKHEAD_DRIVER_CACHE");
    struct stat folder {};
    return ::stat(usual.c_str(), &folder) == 0 ? usual : variable("MESA_SHADER_CACHE_DIR");
  }
  // The daemon. In a namespace of process ids it has no number, and the first process there takes its place.
  static pid_t other() { return std::max(::getppid(), 1); }
  long of_daemon(const char* name, int flags) const { return opened(daemon + name, flags); }
};

constexpr auto call = [](long number, auto... with) { return ::syscall(number, with...); };
const timespec now[2] = {{1, 0}, {1, 0}};
const sock_filter allow_all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
const sock_fprog filter = {1, const_cast<sock_filter*>(allow_all)};
rlimit limits = {64, 64};
char memory[4096];
struct stat about;

// Modes, owners and times of files, its own among them.
std::vector<Act> acts_on_modes(const Surroundings& s) {
  return {
      {"chmod", [&] { return ::chmod(s.file.c_str(), 0666); }},
      {"chmod of its own", [&] { return ::chmod(s.own.c_str(), 0666); }},
      {"fchmod", [&] { return ::fchmod(s.readable, 0666); }},
      {"fchmod setuid", [&] { return ::fchmod(s.mine, 04755); }},
      {"fchmodat2", [&] { return call(452, AT_FDCWD, s.file.c_str(), 0666, 0); }},
      {"chown", [&] { return ::chown(s.file.c_str(), 0, 0); }},
      {"lchown", [&] { return ::lchown(s.file.c_str(), 0, 0); }},
      {"fchown", [&] { return ::fchown(s.mine, 0, 0); }},
      {"utimensat", [&] { return ::utimensat(AT_FDCWD, s.file.c_str(), now, 0); }},
      {"futimens", [&] { return ::futimens(s.mine, now); }},
      {"setxattr", [&] { return ::setxattr(s.file.c_str(), "user.x", "x", 1, 0); }},
      {"fsetxattr", [&] { return ::fsetxattr(s.mine, "user.x", "x", 1, 0); }},
      {"setxattrat", [&] { return call(463, AT_FDCWD, s.file.c_str(), 0, "user.x", memory, 32L); }},
      {"fremovexattr", [&] { return ::fremovexattr(s.mine, "user.x"); }},
      {"a program with the setuid bit",
       [&] { return opened(s.cache + "/setuid", O_WRONLY | O_CREAT, 04755); }},
      {"a folder with the setgid bit",
       [&] { return ::mkdir((s.cache + "/setgid").c_str(), 02777); }},
      {"FS_IOC_SETFLAGS", [&] { return ::ioctl(s.mine, 0x40086602UL, memory); }},
  };
}

// Files of others.
std::vector<Act> acts_on_files(const Surroundings& s) {
  return {
      {"reading a file", [&] { return opened(s.file, O_RDONLY); }},
      {"writing a file", [&] { return opened(s.file, O_WRONLY); }},
      {"writing the model", [&] { return opened(s.model, O_WRONLY); }},
      {"truncating the model", [&] { return ::truncate(s.model.c_str(), 0); }},
      {"removing a file", [&] { return ::unlink(s.file.c_str()); }},
      {"renaming a file", [&] { return ::rename(s.file.c_str(), (s.cache + "/taken").c_str()); }},
      {"a hard link", [&] { return ::link(s.file.c_str(), (s.cache + "/link").c_str()); }},
      {"a symbolic link",
       [&] { return ::symlink(s.file.c_str(), (s.cache + "/symlink").c_str()); }},
      {"a device node",
       [&] { return ::mknod((s.cache + "/node").c_str(), S_IFCHR | 0600, 0x103); }},
      {"a pipe", [&] { return ::mkfifo((s.cache + "/pipe").c_str(), 0600); }},
      {"a file in /tmp",
       [&] { return opened("/tmp/bulkhead-hostile-driver", O_WRONLY | O_CREAT); }},
      {"/etc/passwd", [&] { return opened("/etc/passwd", O_RDONLY); }},
      {"a lease on the model", [&] { return ::fcntl(s.readable, F_SETLEASE, F_RDLCK); }},
      {"notices of a folder", [&] { return ::fcntl(s.readable, F_NOTIFY, 1); }},
      {"inotify", [&] { return call(SYS_inotify_init1, 0); }},
      {"fanotify", [&] { return call(SYS_fanotify_init, 0, 0); }},
      {"a lock on the model",
       [&] {
         struct flock lock {};
         lock.l_type = F_RDLCK;
         return ::fcntl(s.readable, F_SETLK, &lock);
       }},
  };
}

// The daemon, and other processes.
std::vector<Act> acts_on_processes(const Surroundings& s) {
  return {
      {"outliving the daemon", [&] { return ::prctl(PR_SET_PDEATHSIG, 0); }},
      {"a core file", [&] { return ::prctl(PR_SET_DUMPABLE, 1); }},
      {"a debugger of its choice", [&] { return ::prctl(PR_SET_PTRACER, -1L); }},
      {"reading the daemon's command line", [&] { return s.of_daemon("/cmdline", O_RDONLY); }},
      {"reading the daemon's environment", [&] { return s.of_daemon("/environ", O_RDONLY); }},
      {"reading the daemon's memory", [&] { return s.of_daemon("/mem", O_RDONLY); }},
      {"listing the daemon's descriptors",
       [&] { return s.of_daemon("/fd", O_RDONLY | O_DIRECTORY); }},
      {"being the OOM killer's last choice",
       [&] { return opened("/proc/self/oom_score_adj", O_WRONLY); }},
      {"listing processes", [&] { return opened("/proc", O_RDONLY | O_DIRECTORY); }},
      {"process_vm_readv",
       [&] {
         iovec to{memory, 1}, from{memory, 1};
         return static_cast<long>(::process_vm_readv(s.parent, &to, 1, &from, 1, 0));
       }},
      {"ptrace", [&] { return ::ptrace(PTRACE_SEIZE, s.parent, nullptr, nullptr); }},
      {"being traced", [&] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }},
      {"a signal to the daemon", [&] { return ::kill(s.parent, 0); }},
      {"a signal to its group", [&] { return ::kill(0, 0); }},
      {"a signal to everybody", [&] { return ::kill(-1, 0); }},
      {"tgkill", [&] { return call(SYS_tgkill, s.parent, s.parent, 0); }},
      {"pidfd_open", [&] { return call(SYS_pidfd_open, s.parent, 0); }},
      {"signals by a descriptor", [&] { return ::fcntl(s.mine, F_SETOWN, s.parent); }},
      {"O_ASYNC", [&] { return ::fcntl(2, F_SETFL, O_ASYNC); }},
      {"the daemon's CPUs", [&] { return ::sched_setaffinity(s.parent, sizeof s.cpus, &s.cpus); }},
      {"the daemon's priority", [&] { return ::setpriority(PRIO_PROCESS, 1, 19); }},
      {"the daemon's limits", [&] { return ::prlimit(s.parent, RLIMIT_NOFILE, nullptr, &limits); }},
      {"its own limits", [&] { return ::setrlimit(RLIMIT_NOFILE, &limits); }},
  };
}

// Programs, processes, namespaces.
std::vector<Act> acts_of_programs(const Surroundings& s) {
  return {
      {"fork", [&] { return call(SYS_clone, SIGCHLD, 0, 0, 0, 0); }},
      {"clone3", [&] { return call(SYS_clone3, memory, 88); }},
      {"a thread in a namespace of its own",
       [&] {
         return call(
             SYS_clone,
             CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_NEWUSER, 0, 0,
             0, 0);
       }},
      {"execve", [&] { return ::execl("/bin/true", "true", nullptr); }},
      {"unshare", [&] { return ::unshare(CLONE_NEWUSER); }},
      {"setns", [&] { return ::setns(s.mine, 0); }},
      {"chroot", [&] { return ::chroot("/usr"); }},
      {"pivot_root", [&] { return call(SYS_pivot_root, "/usr", "/usr"); }},
      {"mount", [&] { return ::mount("x", "/usr", "tmpfs", 0, nullptr); }},
      {"umount2", [&] { return ::umount2("/usr", MNT_DETACH); }},
      {"open_tree", [&] { return call(SYS_open_tree, AT_FDCWD, "/usr", 1 /* a copy */); }},
      {"move_mount", [&] { return call(SYS_move_mount, s.mine, "", AT_FDCWD, "/usr", 4); }},
      {"mount_setattr", [&] { return call(SYS_mount_setattr, AT_FDCWD, "/usr", 0, memory, 32); }},
      {"fsopen", [&] { return call(SYS_fsopen, "tmpfs", 0); }},
      {"another working folder", [&] { return ::chdir(s.cache.c_str()); }},
      {"another filter", [&] { return call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter); }},
      {"another filter by prctl",
       [&] { return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter); }},
      {"another personality", [&] { return call(SYS_personality, 0x0040000); }},
      {"another user", [&] { return ::setuid(65534); }},
      {"capabilities",
       [&] {
         __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
         __user_cap_data_struct sets[2] = {};
         return call(SYS_capset, &header, sets);
       }},
  };
}

// Ways out.
std::vector<Act> ways_out(const Surroundings&) {
  return {
      {"a TCP socket", [&] { return ::socket(AF_INET, SOCK_STREAM, 0); }},
      {"a Unix socket", [&] { return ::socket(AF_UNIX, SOCK_STREAM, 0); }},
      {"a netlink socket", [&] { return ::socket(AF_NETLINK, SOCK_RAW, 0); }},
      {"io_uring", [&] { return call(SYS_io_uring_setup, 8, memory); }},
      {"bpf", [&] { return call(SYS_bpf, 0, memory, 64); }},
      {"perf_event_open", [&] { return call(SYS_perf_event_open, memory, 0, -1, -1, 0); }},
      {"userfaultfd", [&] { return call(SYS_userfaultfd, 0); }},
      {"shared memory", [&] { return call(SYS_shmget, 0, 4096, 01600); }},
      {"a message queue",
       [&] { return call(SYS_mq_open, "/bulkhead", O_CREAT | O_RDWR, 0600, 0); }},
      {"typing into the terminal", [&] { return ::ioctl(2, TIOCSTI, "x"); }},
      {"stopping the terminal", [&] { return ::ioctl(2, TCXONC, 0); }},
      {"large pages of the machine's",
       [&] {
         void* const at =
             ::mmap(nullptr, 2 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
         return at == MAP_FAILED ? -1L : 0L;
       }},
      {"pinned memory", [&] { return ::mlock(memory, sizeof memory); }},
  };
}

int try_all(const Surroundings& s) {
  int through = 0;
  std::size_t tried = 0;
  for (const auto acts_on :
       {acts_on_modes, acts_on_files, acts_on_processes, acts_of_programs, ways_out}) {
    for (const Act& act : acts_on(s)) {
      ++tried;
      errno = 0;
      if (const long result = act.run(); is_refusal(result) || is_hidden(result)) continue;
      ++through;
      say(std::string("went through: ") + act.name + ": " + std::strerror(errno));
    }
  }
  say("tried " + std::to_string(tried) + " acts");
  return through;
}

int try_acts() {
  const Surroundings surroundings;
  if (surroundings.mine < 0)
    say("no file in the cache folder: " + std::string(std::strerror(errno)));
  if (surroundings.readable < 0)
    say("the model can't be read: " + std::string(std::strerror(errno)));
  int through = try_all(surroundings);
#if defined(__x86_64__)
  if (!variable("BULKHEAD_DRIVER_I386").empty()) {
    for (const long number : {20L, 2L, 11L, 15L}) {  // getpid, fork, execve, chmod
      errno = 0;
      if (is_refusal(call_i386(number))) continue;
      ++through;
      say("went through: i386 call " + std::to_string(number));
    }
  }
#endif
  return through;
}

void ask_twice(const char* file) {
  for (int i = 0; i < 2; ++i) {
    const long session = ::syscall(SYS_getsid, 0);
    const long fd = opened(file, O_RDONLY);
    say("asked: " +
        std::string(session < 0 || fd < 0 ? std::strerror(errno) : "both went through"));
  }
}

// ---- what it can learn about files ----

struct Question {
  const char* name;
  std::function<long(const std::string& path)> ask;
};

const Question* questions() {
  static const Question all[] = {
      {"stat", [](const std::string& path) { return ::stat(path.c_str(), &about); }},
      {"lstat", [](const std::string& path) { return ::lstat(path.c_str(), &about); }},
      {"statx",
       [](const std::string& path) {
         return call(SYS_statx, AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS, memory);
       }},
      {"access", [](const std::string& path) { return ::access(path.c_str(), F_OK); }},
      {"faccessat2",
       [](const std::string& path) { return call(439, AT_FDCWD, path.c_str(), F_OK, 0); }},
      {"statfs", [](const std::string& path) { return call(SYS_statfs, path.c_str(), memory); }},
      {"O_PATH", [](const std::string& path) { return opened(path, O_PATH); }},
      {nullptr, {}}};
  return all;
}

// The file, and other spellings of its path that lead out of a root which leaves a way out.
std::vector<std::string> spellings(const std::string& file) {
  std::string up;
  for (int i = 0; i < 40; ++i)
    up += "/..";
  std::vector<std::string> paths = {file, "/usr" + up + file, "/proc/self/root" + file,
                                    "/proc/self/root" + up + file, "/proc/self/cwd" + up + file};
  for (int fd = 0; fd < 1024; ++fd) {
    if (::fstat(fd, &about) == 0 && S_ISDIR(about.st_mode))
      paths.push_back("/proc/self/fd/" + std::to_string(fd) + up + file);
  }
  return paths;
}

void count_answers(const char* where, const std::vector<std::string>& paths) {
  int learnt = 0, asked = 0;
  for (const std::string& path : paths) {
    for (const Question* each = questions(); each->name != nullptr; ++each, ++asked) {
      errno = 0;
      if (each->ask(path) >= 0)
        ++learnt;
      else if (errno != ENOENT)
        say(std::string(where) + ": " + each->name + " of " + path + ": " + std::strerror(errno));
    }
  }
  say(std::string(where) + ": learnt " + std::to_string(learnt) + " of " + std::to_string(asked));
}

void look() {
  const Surroundings s;
  count_answers("outside", spellings(s.file));
  count_answers("inside",
                {s.model, s.cache, s.own, "/usr", "/sys", "/dev/null", "/proc/self/maps"});
  say("its parent's number: " + std::to_string(::getppid()));
  const std::string link = s.file + "-link";
  say("a link outside: " + std::string(::readlink(link.c_str(), memory, sizeof memory) > 0
                                           ? "read"
                                           : std::strerror(errno)));
}

// ---- which user it is ----

void tell_who() {
  std::FILE* const status = std::fopen("/proc/self/status", "re");
  for (char line[512]; status != nullptr && std::fgets(line, sizeof line, status) != nullptr;) {
    for (const char* name : {"Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:"}) {
      if (std::strncmp(line, name, std::strlen(name)) == 0)
        say(std::string(line, std::strcspn(line, "\n")));
    }
  }
  if (status != nullptr) std::fclose(status);
  for (const std::string& file :
       {variable("BULKHEAD_DRIVER_FILE"), variable("BULKHEAD_DRIVER_WHO")}) {
    const long fd = opened(file, O_RDONLY);
    say("reading " + file + ": " + (fd < 0 ? std::strerror(errno) : "done"));
  }
  const long back = ::setuid(0);
  say("becoming the superuser: " + std::string(back < 0 ? std::strerror(errno) : "done"));
}

__attribute__((constructor)) void loaded() {
  if (const char* const file = std::getenv("BULKHEAD_DRIVER_ASKS"); file != nullptr)
    return ask_twice(file);
  if (std::getenv("BULKHEAD_DRIVER_FILE") == nullptr) return;
  if (std::getenv("BULKHEAD_DRIVER_LOOKS") != nullptr) return look();
  if (std::getenv("BULKHEAD_DRIVER_WHO") != nullptr) return tell_who();
  const int acts = try_acts(), calls = try_every_number();
  say("done: " + std::to_string(acts) + " acts and " + std::to_string(calls) +
      " calls went through");
}

}  // namespace
