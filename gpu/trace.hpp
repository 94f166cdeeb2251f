// A timeline of device and host in Chrome's trace format, for chrome://tracing and ui.perfetto.dev:
// one JSON array, one event a line, its end optional, so that a file that was cut by a crash or by
// its size limit can be looked at all the same. Written by a buffer of its own; no event is dropped
// before the limit, none is written after it.
//
// Process 1 is the device (compute, upload, download), process 2 the host. Their clocks are laid
// one over the other by what the host saw: no end of work on the device is later than the moment at
// which the host saw it, and the closest such pair sets the distance; it is good to some tens of
// microseconds once a few waits have passed. For that the first events are held back.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/activity.hpp"

namespace bulkhead::gpu {

// Thread-safety: its owner's lock.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  static Result<std::unique_ptr<Trace>> create(const std::string& path, std::uint64_t max_bytes);
  ~Trace();

  void device_ran(DeviceLane lane, const char* name, std::uint64_t begin_ns, std::uint64_t end_ns,
                  std::uint64_t id, std::uint64_t bytes);
  void host_ran(const char* name, Clock::time_point begin, Clock::time_point end, std::uint64_t id);
  // What is known so far goes to the file, but for the first few events.
  void flush();

 private:
  struct Event {
    const char* name;
    int process, lane;
    std::int64_t begin_ns, duration_ns;  // on the clock of its process
    std::uint64_t id, bytes;
  };
  Trace(std::FILE* file, std::uint64_t max_bytes);
  void add(const Event& event);
  void write(const Event& event);
  void settle();

  std::FILE* file_;
  std::uint64_t left_;  // bytes that may still be written
  Clock::time_point start_ = Clock::now();
  std::vector<Event> held_back_;
  bool settled_ = false;
  bool full_ = false;
  bool seen_device_ = false;
  std::int64_t device_to_host_ns_ = 0;  // the least distance seen
};

}  // namespace bulkhead::gpu
