// Threads that receive no signals. Only the threads that expect signals should get them, because a signal makes the
// system call that it interrupts fail.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace bulkhead {

// Starts `run` in a thread with all signals blocked. Throws std::system_error if no thread can be started, as
// std::thread does.
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
  } const blocked;  // a new thread inherits the signal mask of the thread that starts it
  return std::thread(std::move(run));
}

}  // namespace bulkhead
