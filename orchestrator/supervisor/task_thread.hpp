// Runs tasks that wait for a disk one after another, in a thread beside the event loop's. The thread exists only
// while there are tasks. If a task throws because memory is short, the next task still runs. Thread-safe.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "config/base/quiet_thread.hpp"

namespace bulkhead::orchestrator {

// A shared_ptr must own the object, because its thread keeps it alive until the last task is done.
class TaskThread : public std::enable_shared_from_this<TaskThread> {
 public:
  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
    start();
  }

  // Tries again to start a thread if the system refused one to add(). Callers that wait for a task call this.
  void go_on() {
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty()) start();
  }

 private:
  void start() {
    if (std::exchange(running_, true)) return;
    try {
      quiet_thread([self = shared_from_this()] { self->run(); }).detach();
    } catch (const std::exception&) {  // the system has no thread, or the daemon has no memory for one
      running_ = false;
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      const std::function<void()> task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      try {
        task();
      } catch (const std::exception&) {
      }
      lock.lock();
    }
    running_ = false;
  }

  std::mutex mutex_;
  std::deque<std::function<void()>> waiting_;
  bool running_ = false;
};

}  // namespace bulkhead::orchestrator
