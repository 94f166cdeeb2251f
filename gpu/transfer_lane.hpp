// Runs copies on one queue, a bounded number at a time; each has an increasing number. The blit queue has one lane
// for uploads and one for downloads, so that an upload never waits behind a download that waits for compute work.
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
    bool timeline = true;  // otherwise it uses fences
    std::uint32_t timeout_ms = 0;
    const char* name = "";
    DeviceLane lane = DeviceLane::kUpload;
    bool track = true;            // measures copies and waits for them
    bool keep_recordings = true;  // false: buffers are short-lived, and each copy is recorded again
    bool polls = false;           // polls a fence before the host sleeps on it
  };

  TransferLane() = default;
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;
  ~TransferLane();
  Status init(Device& device, const Options& options);

  struct Copy {
    BufferSlice from, to;  // from.bytes
  };
  // Starts a copy and returns its number. It first waits for the oldest copy if max_pending are under way. With
  // fences, it also waits for `after` here. A copy between the same places as an earlier one that is done is not
  // recorded again.
  Result<std::uint64_t> copy(const Copy& copy, std::span<const CommandRing::After> after);

  std::uint64_t submitted() const { return submitted_; }
  std::uint64_t known_done() const { return done_; }  // as the last reached() or wait saw it
  Result<std::uint64_t> reached();    // the newest copy up to which all are done; does not wait
  Status wait(std::uint64_t number);  // waits for this copy and all before it
  Status wait_oldest();               // kInternal when none is pending
  CommandRing::After after_all() const {
    return {timeline_.handle(), submitted_};
  }  // with a timeline
  std::uint64_t stalls() const { return stalls_; }
  std::uint64_t pending() const { return pending_.size(); }
  // With Options::track. Counts copies that are known to be done, by the device's timestamps. If the queue's
  // timestamps can't be read, it counts none, because the host does not know when the copies ran.
  struct Timing {
    std::uint64_t copies = 0, copy_ns = 0;
    std::uint64_t waits = 0, wait_ns = 0;  // waits of the host for a copy that was not known to be done
    std::uint64_t most_pending = 0;
  };
  const Timing& timing() const { return timing_; }
  // Returns whether everything under way ended in time. If not, leave the memory that it uses to the device.
  bool drain();

 private:
  struct Slot {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    VkFence fence = VK_NULL_HANDLE;  // if there is no timeline
    std::uint32_t query = 0;         // the first of two in queries_
    Copy recorded;                   // what `commands` does
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
  std::vector<Pending> pending_;  // the oldest first; reserved for max_pending from the start
  std::vector<Slot> idle_;
  std::uint64_t submitted_ = 0, done_ = 0, stalls_ = 0;
  VkQueryPool queries_ = VK_NULL_HANDLE;  // two for each slot; null: copies are not timed on the device
  std::uint32_t slots_ = 0;
  std::uint64_t tick_mask_ = 0;
  Timing timing_;
};

}  // namespace bulkhead::gpu
