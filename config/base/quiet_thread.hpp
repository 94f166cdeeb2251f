// Threads that receive no signals. Only the threads that expect signals should get them, because a signal makes the
// system call that it interrupts fail.
//
// quiet_thread() starts one that its owner joins. A DetachedThread may wait for the kernel or for another host for
// longer than its owner lives.
//
// An exception that leaves `run` ends the process. A thread of the daemon therefore handles every exception in its own
// loop: it loses the one thing that it had in hand, says so to whoever waits for that, and goes on. In a worker,
// std::bad_alloc is meant to end the process, whichever thread it comes from (worker/main.cpp).
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
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

// The owner awaits the thread's end for a limited time. One thread uses it.
class DetachedThread {
 public:
  // Starts `run`, which may outlive this object and all that it does not own. Call it once. Throws as quiet_thread().
  template <typename Run>
  void start(Run run) {
    auto its_end = std::make_shared<End>();
    quiet_thread([run = std::move(run), end = its_end]() mutable {
      run();
      const std::lock_guard lock(end->mutex);
      end->reached = true;
      end->changed.notify_all();
    }).detach();
    end_ = std::move(its_end);
  }
  bool started() const { return end_ != nullptr; }

  // Waits for the thread's end, but no longer than `most`. If no thread was started, the function returns at once.
  void await_end(std::chrono::milliseconds most) const {
    if (end_ == nullptr) return;
    std::unique_lock lock(end_->mutex);
    end_->changed.wait_for(lock, most, [this] { return end_->reached; });
  }

 private:
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
  };
  std::shared_ptr<End> end_;
};

}  // namespace bulkhead
