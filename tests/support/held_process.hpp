// A process that is dead and can't be reaped: as one looks whose memory the kernel or a driver takes
// long to take back. One of its threads, which have all ended, is traced by the test, so the kernel
// waits with the word of the process's end until the test has taken note of that thread's.
#pragma once

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace bulkhead::test {

class HeldProcess {
 public:
  explicit HeldProcess(pid_t pid) {
    std::error_code gone;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
      const auto thread = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
      if (thread == pid || ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) continue;
      thread_ = thread;
      return;
    }
  }
  ~HeldProcess() { release(); }
  HeldProcess(const HeldProcess&) = delete;
  HeldProcess& operator=(const HeldProcess&) = delete;

  // False: it has one thread, or this system does not let it be traced.
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
