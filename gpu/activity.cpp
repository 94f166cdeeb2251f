#include "gpu/activity.hpp"

#include <algorithm>

#include "gpu/trace.hpp"

namespace bulkhead::gpu {
namespace {

// More than are ever in progress at once: max_pending_ops copies and a few steps.
constexpr std::size_t kKept = 512;

}  // namespace

Activity::Activity() {
  recent_compute_.reserve(kKept);
  recent_copies_.reserve(kKept);
}
Activity::~Activity() = default;

std::uint64_t Activity::overlap(const Interval& a, const Interval& b) {
  const std::uint64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return end > begin ? end - begin : 0;
}

void Activity::device_ran(DeviceLane lane, const char* name, std::uint64_t begin_ns,
                          std::uint64_t end_ns, std::uint64_t id, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (trace_ != nullptr) trace_->device_ran(lane, name, begin_ns, end_ns, id, bytes);
  const auto keep = [](std::vector<Interval>& kept, const Interval& one) {
    if (kept.size() == kKept) kept.erase(kept.begin());
    kept.push_back(one);
  };
  if (lane != DeviceLane::kCompute) {
    const Interval copy{begin_ns, std::max(begin_ns, end_ns)};
    totals_.transfer_ns += copy.end - copy.begin;
    ++totals_.copied;
    for (auto it = recent_compute_.rbegin(); it != recent_compute_.rend(); ++it) {
      if (it->end <= copy.begin) break;  // they are in rising order
      totals_.overlapped_ns += overlap(*it, copy);
    }
    keep(recent_copies_, copy);
    return;
  }
  // The device may read the next submission's first commands before the last submission ends. No time is counted
  // twice.
  if (totals_.computed == 0) first_compute_ns_ = begin_ns;
  const std::uint64_t begin = std::max(begin_ns, last_compute_ns_);
  const Interval work{begin, std::max(begin, end_ns)};
  last_compute_ns_ = work.end;
  totals_.compute_ns += work.end - work.begin;
  ++totals_.computed;
  totals_.compute_span_ns = last_compute_ns_ - first_compute_ns_;
  for (const Interval& copy : recent_copies_)
    totals_.overlapped_ns += overlap(copy, work);
  keep(recent_compute_, work);
}

void Activity::host_ran(const char* name, Clock::time_point begin, Clock::time_point end,
                        std::uint64_t id) {
  if (trace_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  trace_->host_ran(name, begin, end, id);
}

Status Activity::trace_to(const std::string& path, std::uint64_t max_bytes) {
  BULKHEAD_TRY(std::unique_ptr<Trace> trace, Trace::create(path, max_bytes));
  const std::lock_guard lock(mutex_);
  trace_ = std::move(trace);
  return {};
}

void Activity::flush_trace() {
  const std::lock_guard lock(mutex_);
  if (trace_ != nullptr) trace_->flush();
}

ActivityTotals Activity::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

double Activity::busy_share_since_last() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  const double passed = std::chrono::duration<double, std::nano>(now - then_).count();
  const auto computed = static_cast<double>(totals_.compute_ns - compute_ns_then_);
  const bool first = then_ == Clock::time_point();
  then_ = now;
  compute_ns_then_ = totals_.compute_ns;
  return first || passed <= 0 ? 0 : std::min(computed / passed, 1.0);
}

void Activity::reset_totals() {
  const std::lock_guard lock(mutex_);
  totals_ = {};
  compute_ns_then_ = 0;
  recent_compute_.clear();
  recent_copies_.clear();
}

}  // namespace bulkhead::gpu
