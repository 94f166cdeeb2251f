// Where threads leave calls for the event loop. A disk, a driver or a network mount may hold a thread for longer than
// the loop lives, so the threads share the mailbox with the object that waits for them, and this object closes it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "orchestrator/event_loop.hpp"

namespace bulkhead::orchestrator {

// A shared_ptr must own it, because calls that are still due keep it.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  explicit Mailbox(EventLoop& loop) : loop_(&loop) {}

  // The event loop's thread. No call comes after this.
  void close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
    changed_.notify_all();
  }

  // Any other thread. Calls `task` in a later turn of the loop, unless the mailbox is closed by then. If there is no
  // memory for the call, put() tries again until there is, because somebody waits for the call. Throws nothing.
  template <typename Task>
  void put(const Task& task) {
    constexpr std::chrono::milliseconds kAgain{20};
    std::unique_lock lock(mutex_);
    while (loop_ != nullptr) {
      try {
        return loop_->post([self = shared_from_this(), task] {
          if (self->loop_ != nullptr) task();
        });
      } catch (const std::exception&) {
        changed_.wait_for(lock, kAgain, [this] { return loop_ == nullptr; });
      }
    }
  }

  // Any thread.
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return loop_ == nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  EventLoop* loop_;  // null: closed. Only the loop's thread changes it
};

}  // namespace bulkhead::orchestrator
