// Attempts of a worker that an attacker has taken over. Each attempt runs twice in a child process: without the
// sandbox, where it must succeed (otherwise the test would prove nothing), and with it, where it must be refused.
#include "worker/sandbox/sandbox.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::worker {
namespace {

namespace fs = std::filesystem;

// An attempt returns 0, or the errno of its failure.
using Attempt = std::function<int()>;
int failed(bool yes) {
  return yes ? errno : 0;
}

constexpr int kNoSandbox = 120, kKilled = 121;

int code_of_child(const std::function<int()>& run) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run());
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return kKilled;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kKilled;
}

class Sandbox : public testing::Test {
 protected:
  Sandbox() {
    std::string pattern = (fs::temp_directory_path() / "bulkhead-sandbox-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    fs::create_directory(cache());
    std::ofstream(model()) << "weights";
    std::ofstream(secret()) << "secret";
  }
  ~Sandbox() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  fs::path cache() const { return fs::path(folder_) / "cache"; }
  fs::path model() const { return fs::path(folder_) / "model.gguf"; }
  fs::path secret() const { return fs::path(folder_) / "secret"; }

  // If `namespaces` is false, the process has only Landlock and seccomp, as on a kernel that refuses namespaces.
  int confined(const Attempt& attempt, int region = -1, bool namespaces = false) const {
    return code_of_child([&] {
      SandboxRequest request;
      request.paths.readable = driver_paths();
      request.paths.readable.push_back(model().string());
      request.paths.writable.push_back(cache().string());
      request.region = region;
      request.namespaces = namespaces;
      return enter_sandbox(request).ok() ? attempt() : kNoSandbox;
    });
  }
  // The confined attempt comes first, because the free one leaves traces.
  void expect_refused(const char* what, const Attempt& attempt, int region = -1) const {
    const int error = confined(attempt, region);
    EXPECT_TRUE(error == EPERM || error == EACCES)
        << what << ": " << error << " (" << std::strerror(error) << ")";
    EXPECT_EQ(code_of_child(attempt), 0) << what << " fails without a sandbox, too";
  }
  // Makes the attempt twice, without namespaces and with namespaces and a private root. Both must succeed.
  void expect_allowed(const Attempt& attempt) const {
    EXPECT_EQ(confined(attempt), 0);
    EXPECT_EQ(confined(attempt, -1, true), 0) << "in namespaces";
  }

  std::string folder_;
};

Attempt open_file(const fs::path& path, int flags) {
  return [path, flags] { return failed(UniqueFd(::open(path.c_str(), flags, 0600)).get() < 0); };
}

// A process that only waits, like the daemon or another worker.
class Bystander {
 public:
  Bystander() : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;)
        ::pause();
    }
  }
  ~Bystander() {
    bulkhead::test::send_signal(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

#define NEEDS_LANDLOCK() \
  if (!sandbox_support().files) GTEST_SKIP() << "this kernel has no Landlock"
#define NEEDS_SECCOMP() \
  if (!sandbox_support().system_calls) GTEST_SKIP() << "this kernel has no seccomp filters"

TEST_F(Sandbox, FilesOfOthersStayShut) {
  NEEDS_LANDLOCK();
  expect_refused("reading a file", open_file(secret(), O_RDONLY));
  if (::geteuid() == 0) expect_refused("reading /etc/shadow", open_file("/etc/shadow", O_RDONLY));
  expect_refused("reading /etc/passwd", open_file("/etc/passwd", O_RDONLY));
  expect_refused("listing a folder", [this] {
    return failed(UniqueFd(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY)).get() < 0);
  });
}

TEST_F(Sandbox, WhatAWorkerNeedsIsThere) {
  expect_allowed(open_file(model(), O_RDONLY));
  expect_allowed(open_file("/proc/self/maps", O_RDONLY));
  expect_allowed(open_file("/dev/null", O_RDWR));
  expect_allowed(open_file(cache() / "pipelines", O_RDWR | O_CREAT));
  expect_allowed([this] {
    const fs::path from = cache() / "new", to = cache() / "sub" / "kept";
    if (failed(::mkdir((cache() / "sub").c_str(), 0700) != 0 && errno != EEXIST)) return errno;
    if (failed(UniqueFd(::open(from.c_str(), O_WRONLY | O_CREAT, 0600)).get() < 0)) return errno;
    return failed(::rename(from.c_str(), to.c_str()) != 0);
  });
  // The process may start threads and use executable memory, because a driver compiles.
  expect_allowed([] {
    bool ran = false;
    std::thread([&ran] { ran = true; }).join();
    return ran ? 0 : EPERM;
  });
  expect_allowed([] {
    return failed(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
  });
  expect_allowed([] { return failed(::memfd_create("x", MFD_CLOEXEC) < 0); });
}

TEST_F(Sandbox, WritesOnlyToItsCacheFolder) {
  NEEDS_LANDLOCK();
  expect_refused("writing the model", open_file(model(), O_WRONLY));
  expect_refused("making a file", open_file(fs::path(folder_) / "new", O_WRONLY | O_CREAT));
  expect_refused("making a folder",
                 [this] { return failed(::mkdir((fs::path(folder_) / "d").c_str(), 0700) != 0); });
  expect_refused("a link",
                 [this] { return failed(::symlink("/etc/passwd", (cache() / "l").c_str()) != 0); });
  expect_refused("a pipe", [this] { return failed(::mkfifo((cache() / "f").c_str(), 0600) != 0); });
  NEEDS_SECCOMP();
  expect_refused("chmod", [this] { return failed(::chmod(secret().c_str(), 0666) != 0); });
  if (sandbox_support().landlock_version >= 3)
    expect_refused("truncating", [this] { return failed(::truncate(secret().c_str(), 0) != 0); });
}

TEST_F(Sandbox, NothingReachesTheNetwork) {
  NEEDS_SECCOMP();
  for (const int domain : {AF_INET, AF_UNIX})
    expect_refused("socket", [domain] { return failed(::socket(domain, SOCK_STREAM, 0) < 0); });
  expect_refused("socketpair", [] {
    int pair[2];
    return failed(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0);
  });
  // A socket that the process got in some other way.
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0)),
      client(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const Attempt connect = [&] {
    return failed(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) != 0);
  };
  const int error = confined(connect);
  EXPECT_TRUE(error == EPERM || error == EACCES) << error;
  EXPECT_EQ(code_of_child(connect), 0);
}

TEST_F(Sandbox, NoOtherProgramOrProcess) {
  NEEDS_SECCOMP();
  expect_refused("fork", [] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    return failed(child < 0);
  });
  // Without the sandbox, the program's own exit code is the attempt's 0.
  expect_refused("another program", [] {
    ::execl("/bin/true", "true", nullptr);
    return errno;
  });
}

TEST_F(Sandbox, OtherProcessesAreLeftAlone) {
  NEEDS_SECCOMP();
  const Bystander bystander;
  const pid_t other = bystander.pid();
  expect_refused("a signal", [other] { return failed(::kill(other, SIGCONT) != 0); });
  expect_refused("process_vm_readv", [other] {
    char byte = 0;
    iovec to{&byte, 1}, from{&byte, 1};  // the other process is a copy of this one, so it has the same address
    return failed(::process_vm_readv(other, &to, 1, &from, 1, 0) != 1);
  });
  expect_refused("ptrace",
                 [other] { return failed(::ptrace(PTRACE_SEIZE, other, nullptr, nullptr) != 0); });
  expect_refused("pidfd_getfd", [other] {
    const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, other, 0)));
    return failed(::syscall(SYS_pidfd_getfd, pidfd.get(), 2, 0) < 0);
  });
  expect_refused("F_SETOWN", [other] {
    int ends[2];
    return failed(::pipe(ends) != 0 || ::fcntl(ends[0], F_SETOWN, other) != 0);
  });
  expect_refused("prlimit", [other] {
    rlimit limits{};
    return failed(::prlimit(other, RLIMIT_NOFILE, nullptr, &limits) != 0);
  });
  NEEDS_LANDLOCK();
  const std::string proc = "/proc/" + std::to_string(other);
  expect_refused("another's memory", open_file(proc + "/mem", O_RDONLY));
  expect_refused("another's environment", open_file(proc + "/environ", O_RDONLY));
}

TEST_F(Sandbox, AnotherWorkersRegionCantBeMapped) {
  NEEDS_LANDLOCK();
  const std::string name = "/bulkhead-sandbox-test-" + std::to_string(::getpid());
  const UniqueFd region(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  if (!region.valid()) GTEST_SKIP() << "no POSIX shared memory here: " << std::strerror(errno);
  ASSERT_EQ(::ftruncate(region.get(), 4096), 0);
  expect_refused("mapping another's region", [&name] {
    const UniqueFd mine(::shm_open(name.c_str(), O_RDWR, 0));
    if (!mine.valid()) return errno;
    return failed(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mine.get(), 0) ==
                  MAP_FAILED);
  });
  ::shm_unlink(name.c_str());
}

TEST_F(Sandbox, TheRegionKeepsItsSize) {
  NEEDS_SECCOMP();
  const std::string name = "/bulkhead-sandbox-size-" + std::to_string(::getpid());
  const UniqueFd region(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  if (!region.valid()) GTEST_SKIP() << "no POSIX shared memory here: " << std::strerror(errno);
  ::shm_unlink(name.c_str());
  const int fd = region.get();
  expect_refused(
      "ftruncate", [fd] { return failed(::ftruncate(fd, 4096) != 0); }, fd);
  expect_refused(
      "dup", [fd] { return failed(::dup(fd) < 0); }, fd);
  expect_refused(
      "F_DUPFD", [fd] { return failed(::fcntl(fd, F_DUPFD_CLOEXEC, 10) < 0); }, fd);
  NEEDS_LANDLOCK();
  expect_refused(
      "opening it again",
      [fd] {
        const std::string again = "/proc/self/fd/" + std::to_string(fd);
        return failed(UniqueFd(::open(again.c_str(), O_RDWR)).get() < 0);
      },
      fd);
}

TEST_F(Sandbox, TheNextFileOfASealedRegionsNumberGetsItsSize) {
  const UniqueFd region(::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(region.valid());
  ASSERT_EQ(::ftruncate(region.get(), 4096), 0);
  ASSERT_EQ(::fcntl(region.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const int fd = region.get();
  const std::string file = (cache() / "index").string();
  EXPECT_EQ(confined(
                [fd, file] {
                  ::close(fd);
                  const int made = ::open(file.c_str(), O_RDWR | O_CREAT, 0600);
                  if (made != fd) return EBADF;
                  return failed(::ftruncate(made, 8192) != 0);
                },
                fd),
            0);
}

TEST_F(Sandbox, MayEndItself) {
  const int status = confined([] {
    ::signal(SIGABRT, SIG_DFL);
    std::abort();
    return 0;
  });
  EXPECT_EQ(status, kKilled);
}

// The service's unit forbids capset, and its daemon has no capabilities.
TEST_F(Sandbox, NeedsNoCallThatGivesUpWhatIsNotThere) {
  EXPECT_EQ(code_of_child([] {
              (void)!::setresgid(65534, 65534, 65534);
              (void)!::setresuid(65534, 65534, 65534);
              ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
              scmp_filter_ctx filter = ::seccomp_init(SCMP_ACT_ALLOW);
              ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(capset), 0);
              ::seccomp_load(filter);
              return enter_sandbox({}).ok() ? 0 : kNoSandbox;
            }),
            0);
}

TEST_F(Sandbox, LeavesNoCoreAndNoNewPrivileges) {
  expect_allowed([] {
    rlimit core{};
    ::getrlimit(RLIMIT_CORE, &core);
    return core.rlim_max == 0 && ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : EPERM;
  });
}

}  // namespace
}  // namespace bulkhead::worker
