// Signals to a test's own processes.
#pragma once

#include <signal.h>

#include <cerrno>

#include <gtest/gtest.h>

namespace bulkhead::test {

// kill(2) to one process. A number that names none (-1 of a fork or a search that failed) fails the
// test: kill(2) itself would take it for every process of the machine, or of the test's own group.
inline int send_signal(pid_t pid, int number) {
  if (pid <= 1) {
    ADD_FAILURE() << "no process to send signal " << number << " to: pid " << pid;
    errno = ESRCH;
    return -1;
  }
  return ::kill(pid, number);
}

}  // namespace bulkhead::test
