// How long the event loop is kept from its work. Each call that the loop makes is timed; the longest
// is remembered with what was being done, and a thread says so while one lasts for seconds, when the
// loop itself can tell nobody.
//
// begin(), end() and doing() are the loop's thread's; the rest is anybody's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace bulkhead::orchestrator {

class LoopWatch {
 public:
  // A call that takes so long is counted as a stall.
  static constexpr std::chrono::milliseconds kStall{50};

  LoopWatch();
  ~LoopWatch();
  LoopWatch(const LoopWatch&) = delete;
  LoopWatch& operator=(const LoopWatch&) = delete;

  // `what`: a literal. It is kept until the next begin() or doing().
  void begin(const char* what);
  void doing(const char* what) { doing_.store(what, std::memory_order_relaxed); }
  void end();

  struct Figures {
    std::chrono::microseconds longest{0};
    const char* longest_doing = "nothing";
    std::uint64_t stalls = 0;      // calls of kStall or longer
    std::uint64_t exceptions = 0;  // that a call threw, and the loop went on
  };
  Figures figures() const { return figures_; }  // the loop's thread
  void exception() { ++figures_.exceptions; }

  // Starts the thread that speaks of a loop that is stuck.
  void speak_up();

 private:
  struct Speaker;
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::rep> since_{0};  // 0: nothing is being done
  std::atomic<const char*> doing_{"nothing"};
  Figures figures_;
  std::unique_ptr<Speaker> speaker_;
};

}  // namespace bulkhead::orchestrator
