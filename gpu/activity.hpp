// What the device did when, by its own timestamps: how long it computed, how long copies took and
// how much of that ran while it computed. With a trace file the same intervals, and what the host
// did meanwhile, are written down as a timeline (trace.hpp).
//
// Times of the device are nanoseconds on its own clock, which all its queues share on the drivers
// we know (the Vulkan specification promises it for one queue alone).
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
  std::uint64_t compute_ns = 0;     // with work of the compute queue under way
  std::uint64_t transfer_ns = 0;    // of all copies, up and down
  std::uint64_t overlapped_ns = 0;  // of these, while the device computed
  std::uint64_t computed = 0;       // submissions that compute_ns is made of
  std::uint64_t copied = 0;         // copies that transfer_ns is made of
  // From the first submission's start to the last one's end: what compute_ns is a share of.
  std::uint64_t compute_span_ns = 0;

  // Share of the time of copies that ran while the device computed, 0 to 1.
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

  // Work that has ended: its interval on the device's clock, seen at its end by the host just now.
  // Intervals of the compute queue come in the order in which they ran. `id` tells it from others
  // of its name; `bytes` is what it moved, where known. `name` must stay valid (a literal).
  void device_ran(DeviceLane lane, const char* name, std::uint64_t begin_ns, std::uint64_t end_ns,
                  std::uint64_t id, std::uint64_t bytes = 0);
  // For the trace only; without a trace nothing is kept.
  void host_ran(const char* name, Clock::time_point begin, Clock::time_point end,
                std::uint64_t id = 0);
  bool tracing() const { return trace_ != nullptr; }
  // Before the first work. At most `max_bytes` are written. kInvalidArgument: the file cannot be
  // made.
  Status trace_to(const std::string& path, std::uint64_t max_bytes);
  // Writes what the trace has down: a process that is killed leaves what came before.
  void flush_trace();

  ActivityTotals totals() const;
  // Share of the host's time since the last call during which the device computed, 0 to 1; 0 at the
  // first call. Work counts when its end is reported, so a step that ended just now may count in the
  // next call.
  double busy_share_since_last();
  void reset_totals();

 private:
  struct Interval {
    std::uint64_t begin, end;
  };
  static std::uint64_t overlap(const Interval& a, const Interval& b);

  mutable std::mutex mutex_;
  ActivityTotals totals_;
  // A copy and a submission that overlap are told one after the other: whichever comes second finds
  // the first in here.
  std::vector<Interval> recent_compute_, recent_copies_;  // room from the start: no step allocates
  std::uint64_t first_compute_ns_ = 0, last_compute_ns_ = 0;
  std::uint64_t compute_ns_then_ = 0;  // at the last busy_share_since_last()
  Clock::time_point then_{};
  std::unique_ptr<Trace> trace_;
};

}  // namespace bulkhead::gpu
