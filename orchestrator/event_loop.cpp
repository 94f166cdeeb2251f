#include "orchestrator/event_loop.hpp"

#include <csignal>
#include <exception>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "config/base/log.hpp"
#include "orchestrator/memory_reserve.hpp"

namespace bulkhead::orchestrator {

namespace asio = boost::asio;

struct EventLoop::Impl {
  asio::io_context context{1};  // one thread, so Asio needs no locks
  asio::signal_set signals{context};
  asio::signal_set hangups{context};
  LoopWatch watch;
  bool calling = false;
  std::vector<std::function<void()>> afterwards;

  // The loop calls everything through this function.
  void call(const char* doing, const std::function<void()>& task) {
    calling = true;
    watch.begin(doing);
    guarded(task);
    // These tasks may add further ones.
    for (std::size_t i = 0; i < afterwards.size(); ++i)
      guarded(std::exchange(afterwards[i], nullptr));
    afterwards.clear();
    watch.end();
    calling = false;
  }

  void guarded(const std::function<void()>& task) {
    try {
      task();
    } catch (const std::exception& error) {
      caught("one call of the event loop", error);
    }
  }

  void caught(const char* what, const std::exception& error) noexcept {
    watch.exception();
    try {
      spdlog::error("an exception ended {}: {}", what, error.what());
    } catch (const std::exception&) {  // there is no memory for the message either
    }
    MemoryReserve::refill();
  }

  void next_signal(asio::signal_set& from, std::function<void(int)> handler) {
    from.async_wait(
        [this, &from, handler = std::move(handler)](boost::system::error_code error, int number) {
          if (error) return;
          call("a signal", [&] { handler(number); });
          try {
            next_signal(from, handler);
          } catch (const std::exception& failure) {  // handling it may have given the reserve back
            caught("the wait for signals", failure);
            next_signal(from, handler);
          }
        });
  }
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;
void EventLoop::run() {
  impl_->watch.speak_up();
  while (true) {
    try {
      impl_->context.run();
      return;
    } catch (const std::exception& error) {  // an exception of Asio's own, between two calls
      impl_->watch.exception();
      spdlog::error("an exception in the event loop: {}", error.what());
    }
  }
}
void EventLoop::call(const char* doing, const std::function<void()>& task) {
  impl_->call(doing, task);
}
void EventLoop::doing(const char* what) {
  impl_->watch.doing(what);
}
LoopWatch::Figures EventLoop::figures() const {
  return impl_->watch.figures();
}
void EventLoop::caught(const char* what, const std::exception& error) noexcept {
  impl_->caught(what, error);
}
void EventLoop::stop() {
  impl_->context.stop();
}
void EventLoop::post(std::function<void()> task) {
  asio::post(impl_->context,
             [impl = impl_.get(), task = std::move(task)] { impl->call("a posted call", task); });
}
void EventLoop::after_this(std::function<void()> task) {
  if (!impl_->calling) return post(std::move(task));
  impl_->afterwards.push_back(std::move(task));
}
asio::io_context& EventLoop::context() {
  return impl_->context;
}

void EventLoop::on_termination_signal(std::function<void(int)> handler) {
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  impl_->next_signal(impl_->signals, std::move(handler));
}

void EventLoop::on_hangup_signal(std::function<void()> handler) {
  impl_->hangups.add(SIGHUP);
  impl_->next_signal(impl_->hangups, [handler = std::move(handler)](int) { handler(); });
}

// A completed wait may be queued already when it is cancelled; the generation tells it apart.
struct Timer::Impl {
  explicit Impl(EventLoop& the_loop) : loop(the_loop), timer(the_loop.context()) {}
  EventLoop& loop;
  asio::steady_timer timer;
  std::uint64_t generation = 0;
  bool running = false;
};

Timer::Timer(EventLoop& loop) : impl_(std::make_shared<Impl>(loop)) {}
Timer::~Timer() {
  cancel();
}

void Timer::start(std::chrono::microseconds delay, std::function<void()> expired) {
  std::uint64_t generation = ++impl_->generation;
  impl_->running = false;  // if the wait can't begin
  impl_->timer.expires_after(delay);
  impl_->timer.async_wait(
      [impl = impl_, generation, expired = std::move(expired)](boost::system::error_code) {
        if (impl->generation != generation) return;
        impl->running = false;
        impl->loop.impl_->call("a timer", expired);
      });
  impl_->running = true;
}

void Timer::cancel() {
  ++impl_->generation;
  impl_->running = false;
  impl_->timer.cancel();
}

bool Timer::running() const {
  return impl_->running;
}

struct ReadableWatch::Impl {
  Impl(EventLoop& the_loop, int fd) : loop(the_loop), descriptor(the_loop.context(), fd) {}
  EventLoop& loop;
  asio::posix::stream_descriptor descriptor;
  bool cancelled = false;
};

ReadableWatch::ReadableWatch(EventLoop& loop, int descriptor)
    : impl_(std::make_shared<Impl>(loop, descriptor)) {}

ReadableWatch::~ReadableWatch() {
  impl_->cancelled = true;
  impl_->descriptor.release();  // unregisters; the owner closes it
}

void ReadableWatch::wait(std::function<void()> readable) {
  impl_->descriptor.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [impl = impl_, readable = std::move(readable)](boost::system::error_code error) {
        if (impl->cancelled || error == asio::error::operation_aborted) return;
        impl->loop.impl_->call("a descriptor", readable);
      });
}

}  // namespace bulkhead::orchestrator
