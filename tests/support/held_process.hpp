// A process that is dead and can't be reaped: as one looks whose memory the kernel or a driver takes
// long to take back. One of its threads, which have all ended, is traced by the test, so the kernel
// waits with the word of the process's end until the test has taken note of that thread's.
#pragma once

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace bulkhead::test {

// Why a test that holds a process is skipped.
inline constexpr const char* kNoTracing =
    "this system lets no process be traced (kernel.yama.ptrace_scope, or a container's filter); "
    "run the test as root "
    "with CAP_SYS_PTRACE";

class HeldProcess {
 public:
  explicit HeldProcess(pid_t pid) {
    std::error_code gone;
    bool has_threads = false;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
      const auto thread = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
      if (thread == pid) continue;
      has_threads = true;
      if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) continue;
      thread_ = thread;
      return;
    }
    // Otherwise the test would be skipped for a reason that is not the system's.
    EXPECT_TRUE(has_threads) << "process " << pid << " has no thread to hold it by";
  }
  ~HeldProcess() { release(); }
  HeldProcess(const HeldProcess&) = delete;
  HeldProcess& operator=(const HeldProcess&) = delete;

  // False: this system does not let it be traced.
  bool held() const { return thread_ > 0; }
  // Of a process that has been killed: lets it go.
  void release() {
    if (!held()) return;
    int status = 0;
    ::waitpid(thread_, &status, __WALL);
    thread_ = -1;
  }

 private:
  pid_t thread_ = -1;
};

}  // namespace bulkhead::test
