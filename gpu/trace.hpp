// Writes a timeline of device and host in Chrome's trace format, for chrome://tracing and ui.perfetto.dev: one JSON
// array, one event a line. The array's end is optional, so a file that a crash or its size limit cut short can still
// be viewed. It has its own buffer; it drops no event before the limit and writes none after it.
//
// Process 1 is the device (compute, upload, download), process 2 is the host. What the host saw aligns their clocks:
// work on the device never ends after the host saw its end, so the smallest difference of such a pair gives the
// offset. It is accurate to some tens of microseconds after a few waits. Therefore the first events are held back.
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

// Thread-safety: the owner's lock protects it.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  static Result<std::unique_ptr<Trace>> create(const std::string& path, std::uint64_t max_bytes);
  ~Trace();

  void device_ran(DeviceLane lane, const char* name, std::uint64_t begin_ns, std::uint64_t end_ns,
                  std::uint64_t id, std::uint64_t bytes);
  void host_ran(const char* name, Clock::time_point begin, Clock::time_point end, std::uint64_t id);
  // Writes everything known so far to the file, except the first few events.
  void flush();

 private:
  struct Event {
    const char* name;
    int process, lane;
    std::int64_t begin_ns, duration_ns;  // on the clock of its own process
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
  std::int64_t device_to_host_ns_ = 0;  // the smallest difference seen
};

}  // namespace bulkhead::gpu
