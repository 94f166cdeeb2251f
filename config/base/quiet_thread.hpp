// Threads that no signal comes to: signals are for the threads that expect them, and a system call that
// one interrupts fails.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace bulkhead {

// Starts `run` with all signals blocked. Throws std::system_error where there is no thread to be
// had, as std::thread does.
template <typename Run>
std::thread quiet_thread(Run run) {
  struct AllBlocked {
    sigset_t before;
    AllBlocked() {
      sigset_t all;
      sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~AllBlocked() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  } const blocked;  // a new thread inherits its maker's mask
  return std::thread(std::move(run));
}

}  // namespace bulkhead
