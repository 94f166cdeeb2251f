// Coroutines for a parser whose text comes in pieces: each part of a syntax is a function that reads in the order of
// the syntax and stops where the text ends (`co_await input()`). A machine keeps the running functions in its own
// stack and resumes the innermost one. So a waiting parser needs no thread, and nested text does not nest the
// program's stack.
#pragma once

#include <coroutine>
#include <utility>
#include <vector>

namespace bulkhead::model::answer {

// The running functions, outermost first. A Routine belongs to its caller's frame, so the stack never owns one.
using RoutineStack = std::vector<std::coroutine_handle<>>;

// A running function; its result says whether the syntax was there. Its first parameter (`this` of a member function)
// must have `RoutineStack& routines()`.
class [[nodiscard]] Routine {
 public:
  struct promise_type {
    template <typename Machine, typename... Arguments>
    explicit promise_type(Machine& machine, Arguments&&... /*unused*/)
        : stack(machine.routines()) {}

    Routine get_return_object() {
      return Routine(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_value(bool value) { result = value; }
    void unhandled_exception() { throw; }

    RoutineStack& stack;
    bool result = false;
  };

  Routine(Routine&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Routine(const Routine&) = delete;
  Routine& operator=(const Routine&) = delete;
  Routine& operator=(Routine&&) = delete;
  ~Routine() {
    if (handle_) handle_.destroy();
  }

  // Starts it at the machine's next step.
  void enter() { handle_.promise().stack.push_back(handle_); }

  // co_await routine: the caller continues when the routine has ended.
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> /*caller*/) { enter(); }
  bool await_resume() const { return handle_.promise().result; }

 private:
  explicit Routine(std::coroutine_handle<promise_type> handle) : handle_(handle) {}

  std::coroutine_handle<promise_type> handle_;
};

// Resumes the innermost function until it waits for input or all functions have ended.
inline void run(RoutineStack& stack) {
  while (!stack.empty()) {
    const std::coroutine_handle<> innermost = stack.back();
    const std::size_t depth = stack.size();
    innermost.resume();
    if (innermost.done()) {
      stack.pop_back();
    } else if (stack.size() == depth) {
      return;
    }
  }
}

}  // namespace bulkhead::model::answer
