// Records what the device did and when, by the device's own timestamps: how long it computed, how long copies took,
// and how much of the copies overlapped with computing. With a trace file it also writes these intervals, and what
// the host did meanwhile, as a timeline (trace.hpp).
//
// The device's times are nanoseconds on its own clock. On all drivers that were tested, all of its queues share
// this clock; the Vulkan specification promises that only within one queue.
//
// Thread-safety: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::gpu {

class Trace;

enum class DeviceLane { kCompute, kUpload, kDownload };

struct ActivityTotals {
  std::uint64_t compute_ns = 0;     // with work on the compute queue
  std::uint64_t transfer_ns = 0;    // all copies, up and down
  std::uint64_t overlapped_ns = 0;  // the part of transfer_ns during which the device computed
  std::uint64_t computed = 0;       // submissions that compute_ns adds up
  std::uint64_t copied = 0;         // copies that transfer_ns adds up
  // From the first submission's start to the last one's end. compute_ns is a share of this span.
  std::uint64_t compute_span_ns = 0;

  // Returns the share of the copies' time during which the device computed, 0 to 1.
  double overlap_ratio() const {
    return transfer_ns == 0 ? 0
                            : static_cast<double>(overlapped_ns) / static_cast<double>(transfer_ns);
  }
};

class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  Activity();
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // Reports work that has ended: its interval on the device's clock; the host has just seen the end. Report intervals
  // of the compute queue in the order in which they ran. `id` distinguishes work with the same name; `bytes` is how
  // much it moved, if known. `name` must stay valid (a literal).
  void device_ran(DeviceLane lane, const char* name, std::uint64_t begin_ns, std::uint64_t end_ns,
                  std::uint64_t id, std::uint64_t bytes = 0);
  // Reports work of the host for the trace. Does nothing without a trace.
  void host_ran(const char* name, Clock::time_point begin, Clock::time_point end,
                std::uint64_t id = 0);
  bool tracing() const { return trace_ != nullptr; }
  // Starts the trace; call before the first work. Writes at most `max_bytes`. kInvalidArgument: the file cannot be
  // created.
  Status trace_to(const std::string& path, std::uint64_t max_bytes);
  // Writes the buffered events to the file, so that they survive if the process is killed.
  void flush_trace();

  ActivityTotals totals() const;
  // Returns the share of the host's time since the last call during which the device computed, 0 to 1; 0 at the first
  // call. Work counts when its end is reported, so a step that has just ended may count in the next call.
  double busy_share_since_last();
  void reset_totals();

 private:
  struct Interval {
    std::uint64_t begin, end;
  };
  static std::uint64_t overlap(const Interval& a, const Interval& b);

  mutable std::mutex mutex_;
  ActivityTotals totals_;
  // A copy and a submission that overlap are reported one after the other. The one that is reported second finds the
  // first one here.
  std::vector<Interval> recent_compute_, recent_copies_;  // reserved from the start, so that no step allocates
  std::uint64_t first_compute_ns_ = 0, last_compute_ns_ = 0;
  std::uint64_t compute_ns_then_ = 0;  // at the last busy_share_since_last()
  Clock::time_point then_{};
  std::unique_ptr<Trace> trace_;
};

}  // namespace bulkhead::gpu
