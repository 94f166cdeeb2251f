// Sends signals to a test's own processes.
#pragma once

#include <signal.h>

#include <cerrno>

#include <gtest/gtest.h>

namespace bulkhead::test {

// Calls kill(2) for one process. If the number names none (-1 of a fork or a search that failed), the test fails,
// because kill(2) would take it for every process of the machine, or of the test's own group.
inline int send_signal(pid_t pid, int number) {
  if (pid <= 1) {
    ADD_FAILURE() << "no process to send signal " << number << " to: pid " << pid;
    errno = ESRCH;
    return -1;
  }
  return ::kill(pid, number);
}

}  // namespace bulkhead::test
