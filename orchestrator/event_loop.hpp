// The daemon's one thread: timers, descriptors that become readable, deferred calls. Everything in orchestrator/ runs
// on it, so nothing there needs a lock. Only event_loop.cpp and http/server.cpp include Asio, because it takes
// seconds to compile.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "orchestrator/loop_watch.hpp"

namespace boost::asio {
class io_context;
}

namespace bulkhead::orchestrator {

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs until stop(), or until nothing is left to wait for. If a call throws an exception, the loop logs and counts
  // it and ends only that call.
  void run();
  void stop();
  // Calls `task` later from run(), never from here.
  void post(std::function<void()> task);
  // Calls `task` as soon as the running call (of a timer, a watch or post()) has returned, before anything else.
  // Outside of such a call it works like post(). It is for work that should be done once after several calls in a
  // row.
  void after_this(std::function<void()> task);
  // Calls `handler` with the number of each SIGTERM or SIGINT that arrives.
  void on_termination_signal(std::function<void(int signal)> handler);
  // Calls `handler` for each SIGHUP that arrives.
  void on_hangup_signal(std::function<void()> handler);

  boost::asio::io_context& context();

  // Runs a call on the loop's thread that does not come through this class (Asio's handlers of connections), with the
  // same timing and guards as the loop's own calls. `doing` is a literal, for the watch.
  void call(const char* doing, const std::function<void()>& task);
  // Says what the running call does now.
  void doing(const char* what);
  LoopWatch::Figures figures() const;
  // Logs and counts an exception that the running call has caught itself, so that the rest of the call goes on. `what`
  // says in words what the exception ended.
  void caught(const char* what, const std::exception& error) noexcept;

 private:
  friend class Timer;
  friend class ReadableWatch;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Destroys the object in a later turn of the loop, because one of its functions called this. If there is no memory for
// that, this throws, and the object stays where it is.
template <typename T>
void destroy_later(EventLoop& loop, std::unique_ptr<T>& object) {
  auto holder = std::make_shared<std::unique_ptr<T>>();
  loop.post([holder] {});
  *holder = std::move(object);
}

// One deadline at a time. A cancelled or destroyed timer never calls back.
class Timer {
 public:
  explicit Timer(EventLoop& loop);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Replaces an earlier deadline.
  void start(std::chrono::microseconds delay, std::function<void()> expired);
  void cancel();
  bool running() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Calls back when a descriptor is readable (or at its end). Does not own the descriptor, which must outlive the
// watch. A cancelled or destroyed watch never calls back.
class ReadableWatch {
 public:
  ReadableWatch(EventLoop& loop, int descriptor);
  ~ReadableWatch();
  ReadableWatch(const ReadableWatch&) = delete;
  ReadableWatch& operator=(const ReadableWatch&) = delete;

  // Calls back once for each wait.
  void wait(std::function<void()> readable);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace bulkhead::orchestrator
