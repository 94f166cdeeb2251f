// A dead process that can't be reaped yet. It looks like a process whose memory the kernel or a driver takes long to
// reclaim. The test traces one of its threads. All of the threads have ended, but the kernel reports the process's
// end only when the test has waited for the traced thread.
#pragma once

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace bulkhead::test {

// The reason for skipping a test that holds a process, in one line, because tools/test prints it after the test's
// name.
inline constexpr const char* kNoTracing =
    "not checked: what the daemon does while the kernel takes long to take this dead process "
    "back. The test holds the process by tracing it, and this system refuses ptrace. To run the "
    "test, start the container with --cap-add=SYS_PTRACE, or set kernel.yama.ptrace_scope to 1 "
    "(sysctl), or run ctest as root";

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
    // A process without such a thread is a fault of the test, and no reason to skip it.
    EXPECT_TRUE(has_threads) << "process " << pid << " has no thread to hold it by";
  }
  ~HeldProcess() { release(); }
  HeldProcess(const HeldProcess&) = delete;
  HeldProcess& operator=(const HeldProcess&) = delete;

  // Returns false if this system does not allow the test to trace the process.
  bool held() const { return thread_ > 0; }
  // Lets the process go, once it has been killed.
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
