#include "gpu/free_memory_watch.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

#include "config/base/quiet_thread.hpp"

namespace bulkhead::gpu {

struct FreeMemoryWatch::Shared {
  std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::uint64_t newest = 0, answers = 0;
  bool asked = false;  // from ask() until the answer is there
  bool over = false;
};

FreeMemoryWatch::FreeMemoryWatch(Device& device, std::uint32_t timeout_ms, Ask ask)
    : device_(device),
      timeout_ms_(timeout_ms),
      ask_(std::move(ask)),
      shared_(std::make_shared<Shared>()) {
  shared_->newest = device.info().free_memory_bytes;
}

FreeMemoryWatch::~FreeMemoryWatch() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  shared_->changed.notify_all();
  const bool answered = shared_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms_),
                                                  [this] { return !shared_->asked; });
  lock.unlock();
  if (answered) {
    thread_.join();
  } else {
    device_.abandon();
    thread_.detach();
  }
}

void FreeMemoryWatch::ask() {
  if (!thread_.joinable()) {
    try {
      thread_ = quiet_thread([shared = shared_, ask = ask_] { run(*shared, ask); });
    } catch (const std::system_error&) {
      return;
    }
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->asked = true;
  shared_->changed.notify_all();
}

std::uint64_t FreeMemoryWatch::newest() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->newest;
}

std::uint64_t FreeMemoryWatch::answers() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->answers;
}

void FreeMemoryWatch::run(Shared& shared, const Ask& ask) {
  std::unique_lock lock(shared.mutex);
  for (;;) {
    shared.changed.wait(lock, [&shared] { return shared.asked || shared.over; });
    if (!shared.over) {
      lock.unlock();
      const std::uint64_t bytes = ask();
      lock.lock();
      shared.newest = bytes;
      ++shared.answers;
    }
    shared.asked = false;
    shared.changed.notify_all();
    if (shared.over) return;
  }
}

}  // namespace bulkhead::gpu
