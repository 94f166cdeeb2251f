#include "orchestrator/loop_watch.hpp"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "config/base/log.hpp"
#include "config/base/quiet_thread.hpp"

namespace bulkhead::orchestrator {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds kWatchEvery{2};
constexpr seconds kStuck{2};

}  // namespace

struct LoopWatch::Speaker {
  explicit Speaker(LoopWatch& the_watch)
      : watch(the_watch), thread(quiet_thread([this] { run(); })) {}
  ~Speaker() {
    {
      std::lock_guard lock(mutex);
      ending = true;
    }
    wake.notify_one();
    thread.join();
  }

  void run() {
    Clock::rep told = 0;  // start of the call that has been logged already
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, kWatchEvery, [this] { return ending; })) {
      const Clock::rep since = watch.since_.load(std::memory_order_relaxed);
      if (since == 0 || since == told) continue;
      const Clock::duration lasts = Clock::now() - Clock::time_point(Clock::duration(since));
      if (lasts < kStuck) continue;
      told = since;
      spdlog::error("the event loop has been busy with one thing for {} ms: {}",
                    duration_cast<milliseconds>(lasts).count(),
                    watch.doing_.load(std::memory_order_relaxed));
    }
  }

  LoopWatch& watch;
  std::mutex mutex;
  std::condition_variable wake;
  bool ending = false;
  std::thread thread;
};

LoopWatch::LoopWatch() = default;
LoopWatch::~LoopWatch() = default;

void LoopWatch::speak_up() {
  if (speaker_ == nullptr) speaker_ = std::make_unique<Speaker>(*this);
}

void LoopWatch::begin(const char* what) {
  doing(what);
  since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

void LoopWatch::end() {
  const Clock::time_point began{Clock::duration(since_.load(std::memory_order_relaxed))};
  since_.store(0, std::memory_order_relaxed);
  const auto took = duration_cast<microseconds>(Clock::now() - began);
  if (took >= kStall) {
    ++figures_.stalls;
    spdlog::warn("the event loop was kept for {} ms: {}", took.count() / 1000,
                 doing_.load(std::memory_order_relaxed));
  }
  if (took <= figures_.longest) return;
  figures_.longest = took;
  figures_.longest_doing = doing_.load(std::memory_order_relaxed);
}

}  // namespace bulkhead::orchestrator
