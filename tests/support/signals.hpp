// Sends signals to a test's own processes.
#pragma once

#include <signal.h>

#include <cerrno>

#include <gtest/gtest.h>

namespace bulkhead::test {

// Calls kill(2) for one process. If `pid` names no single process (as the -1 of a failed fork or search), the
// test fails, because kill(2) would send the signal to every process of the machine, or of the test's own group.
inline int send_signal(pid_t pid, int number) {
  if (pid <= 1) {
    ADD_FAILURE() << "no process to send signal " << number << " to: pid " << pid;
    errno = ESRCH;
    return -1;
  }
  return ::kill(pid, number);
}

}  // namespace bulkhead::test
