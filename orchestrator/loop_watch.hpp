// Measures how long the event loop is blocked. It times each call that the loop makes, and remembers the longest and
// what it was doing. If a call lasts for seconds, a separate thread logs that, because the loop itself can't.
//
// begin(), end() and doing() belong to the loop's thread; the others may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace bulkhead::orchestrator {

class LoopWatch {
 public:
  // A call that takes this long counts as a stall.
  static constexpr std::chrono::milliseconds kStall{50};

  LoopWatch();
  ~LoopWatch();
  LoopWatch(const LoopWatch&) = delete;
  LoopWatch& operator=(const LoopWatch&) = delete;

  // `what` is a literal. It is kept until the next begin() or doing().
  void begin(const char* what);
  void doing(const char* what) { doing_.store(what, std::memory_order_relaxed); }
  void end();

  struct Figures {
    std::chrono::microseconds longest{0};
    const char* longest_doing = "nothing";
    std::uint64_t stalls = 0;      // calls of kStall or longer
    std::uint64_t exceptions = 0;  // exceptions that a call threw; the loop continued
  };
  Figures figures() const { return figures_; }  // for the loop's thread
  void exception() { ++figures_.exceptions; }

  // Starts the thread that logs when the loop is stuck.
  void speak_up();

 private:
  struct Speaker;
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::rep> since_{0};  // 0: no call is running
  std::atomic<const char*> doing_{"nothing"};
  Figures figures_;
  std::unique_ptr<Speaker> speaker_;
};

}  // namespace bulkhead::orchestrator
