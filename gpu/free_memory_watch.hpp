// Measures how much memory of a device is free, without making the caller wait for the driver.
//
// NVIDIA's kernel driver (580) answers this question under a lock. It holds the same lock while it frees the
// memory of a process that died, which takes 0.2 to 0.5 s for a worker with a 7B. So another thread asks, and the
// thread that computes gets the newest answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "gpu/device.hpp"

namespace bulkhead::gpu {

// Call its functions from one thread.
class FreeMemoryWatch {
 public:
  using Ask = std::function<std::uint64_t()>;

  // `ask` returns how many bytes are free now, and may take long. The device must outlive this object, unless it was
  // abandoned.
  FreeMemoryWatch(Device& device, std::uint32_t timeout_ms, Ask ask);
  // If the driver is still answering, the destructor waits up to timeout_ms for it, and then abandons the device.
  ~FreeMemoryWatch();
  FreeMemoryWatch(const FreeMemoryWatch&) = delete;
  FreeMemoryWatch& operator=(const FreeMemoryWatch&) = delete;

  // Makes the thread ask, unless it still waits for an answer. The first call starts the thread. If the system has no
  // thread, the next call tries again.
  void ask();
  // Returns the newest answer; before the first one, what was free when the device was opened.
  std::uint64_t newest() const;
  std::uint64_t answers() const;  // how many have come

 private:
  struct Shared;
  static void run(Shared& shared, const Ask& ask);

  Device& device_;
  const std::uint32_t timeout_ms_;
  const Ask ask_;
  // The thread holds a second pointer to this state: if the driver hangs, the thread lives longer than this object.
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace bulkhead::gpu
