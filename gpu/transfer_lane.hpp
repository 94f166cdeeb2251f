// Copies on one queue, a bounded number at a time, each with a number that increases. The blit queue
// has one lane for uploads and one for downloads, so that an upload never waits behind a download that
// waits for compute.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/submission.hpp"

namespace bulkhead::gpu {

class TransferLane {
 public:
  struct Options {
    VkQueue queue = VK_NULL_HANDLE;
    std::uint32_t family = 0;
    std::uint32_t max_pending = 1;
    bool timeline = true;  // else fences
    std::uint32_t timeout_ms = 0;
    const char* name = "";
    DeviceLane lane = DeviceLane::kUpload;
    bool track = true;            // time the copies and the waits for them
    bool keep_recordings = true;  // false: buffers come and go, and each copy is recorded anew
    bool polls = false;           // a fence before the host falls asleep over it
  };

  TransferLane() = default;
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;
  ~TransferLane();
  Status init(Device& device, const Options& options);

  struct Copy {
    BufferSlice from, to;  // from.bytes
  };
  // Waits for the oldest copy where max_pending are under way. With fences, `after` is waited for
  // here. The copy's number. A copy between the same places as an earlier one that is done is not
  // recorded again.
  Result<std::uint64_t> copy(const Copy& copy, std::span<const CommandRing::After> after);

  std::uint64_t submitted() const { return submitted_; }
  std::uint64_t known_done() const { return done_; }  // as reached() or a wait last saw it
  Result<std::uint64_t> reached();    // copies up to this number are done; does not wait
  Status wait(std::uint64_t number);  // for this copy and all before it
  Status wait_oldest();               // kInternal when none is pending
  CommandRing::After after_all() const {
    return {timeline_.handle(), submitted_};
  }  // with a timeline
  std::uint64_t stalls() const { return stalls_; }
  std::uint64_t pending() const { return pending_.size(); }
  // With Options::track. Copies are those that are known to be done, by the device's timestamps;
  // where its queue has none that can be read, none: the host does not know when they ran.
  struct Timing {
    std::uint64_t copies = 0, copy_ns = 0;
    std::uint64_t waits = 0, wait_ns = 0;  // of the host, for a copy not known to be done
    std::uint64_t most_pending = 0;
  };
  const Timing& timing() const { return timing_; }
  // Whether everything under way came to its end in time; else what it uses must be left to the
  // device.
  bool drain();

 private:
  struct Slot {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    VkFence fence = VK_NULL_HANDLE;  // without a timeline
    std::uint32_t query = 0;         // the first of two in queries_
    Copy recorded;                   // what `commands` do
  };
  struct Pending {
    std::uint64_t number;
    Slot slot;
    std::uint64_t bytes;
  };
  Result<Slot> free_slot(const Copy& copy);
  Status record(Slot& slot, const Copy& copy);
  Status submit(const Slot& slot, std::span<const CommandRing::After> after);
  void retire_until(std::uint64_t number);
  void note_done(const Pending& pending);
  Status wait_untimed(std::uint64_t number);

  Device* device_ = nullptr;
  Options options_;
  bool has_compute_ = false;  // whether the queue is the compute queue
  CommandPool pool_;
  Timeline timeline_;
  std::vector<Pending> pending_;  // the oldest first; room for max_pending from the start
  std::vector<Slot> idle_;
  std::uint64_t submitted_ = 0, done_ = 0, stalls_ = 0;
  VkQueryPool queries_ = VK_NULL_HANDLE;  // two for each slot; null: nothing is timed on the device
  std::uint32_t slots_ = 0;
  std::uint64_t tick_mask_ = 0;
  Timing timing_;
};

}  // namespace bulkhead::gpu
