// Command buffers that are recorded once and submitted many times: a decode step is recorded once for its batch shape
// and replayed with its parameters in a small device buffer.
//
// When switched off (the baseline), no recording is kept: each submit waits for the one before and then records its
// command buffer again, as a plain program does. The same kernels run with the same arguments, so the results are the
// same to the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/settings.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// What a recording may contain. Operations start in order; a barrier() makes everything before it visible to
// everything after it. Without a barrier, neighbouring operations may overlap.
class Recorder {
 public:
  virtual ~Recorder() = default;
  // `bytes_moved` is how many bytes of device memory the dispatch must at least read and write; profiles use it. 0:
  // unknown.
  virtual void dispatch(const Kernel& kernel, std::span<const std::byte> push, std::uint32_t x,
                        std::uint32_t y = 1, std::uint32_t z = 1,
                        std::uint64_t bytes_moved = 0) = 0;
  // The device reads the three group counts from `counts` (12 bytes, 4-byte aligned) when the work runs.
  virtual void dispatch_indirect(const Kernel& kernel, std::span<const std::byte> push,
                                 const BufferSlice& counts, std::uint64_t bytes_moved = 0) = 0;
  virtual void copy(const BufferSlice& from, const BufferSlice& to) = 0;  // from.bytes
  virtual void fill(const BufferSlice& to, std::uint32_t word) = 0;
  virtual void barrier() = 0;  // orders shader, transfer and indirect accesses, reads and writes
  // A barrier between dispatches only; it orders no other operations. It is cheaper, because the device may go on
  // reading commands.
  virtual void compute_barrier() { barrier(); }
};

template <typename Push>
std::span<const std::byte> push_bytes(const Push& push) {
  return std::as_bytes(std::span<const Push>(&push, 1));
}

struct CommandRingStats {
  std::uint64_t recordings = 0;   // command buffers recorded
  std::uint64_t submissions = 0;  // batches that the queue got
  std::uint64_t replays = 0;      // submissions of an existing recording
  std::uint64_t waits = 0;
  std::uint64_t wait_microseconds = 0;
  std::uint64_t recording_nanoseconds = 0, submit_nanoseconds = 0;  // of the host's time
};

// What a profiled submit took, by device timestamps.
struct KernelTime {
  std::string name;
  std::uint64_t calls = 0;
  double microseconds = 0;
  std::uint64_t bytes_moved = 0;
};

class CommandRing {
 public:
  // timeout_ms bounds every wait. The caller has already replaced the settings' 0. Unless the ring is `enabled`, one
  // command buffer is recorded again for each submission.
  static Result<std::unique_ptr<CommandRing>> create(
      Device& device, const config::CommandBufferRingSettings& settings, bool enabled,
      std::uint32_t timeout_ms);
  virtual ~CommandRing() = default;

  using Build = std::function<void(Recorder&)>;
  // A recording, identified by a small integer. At most ring_size recordings are kept; one more drops the idle one
  // that was submitted longest ago, whose id is unknown from then on. With the ring off, `build` is kept and runs at
  // each submit. Everything that `build` refers to (kernels, slices) must stay valid until drop().
  //
  // A recording may have variants that do the same work in different places (such as a step's two sets of
  // parameters and results). Each has a command buffer; they are kept and dropped together.
  using RecordingId = std::uint64_t;
  // kAlways: the recording does not count towards ring_size and stays until drop().
  enum class Keep : std::uint8_t { kInRing, kAlways };
  virtual Result<RecordingId> record_variants(std::vector<Build> variants,
                                              Keep keep = Keep::kInRing) = 0;
  Result<RecordingId> record(Build build) { return record_variants({std::move(build)}); }
  virtual bool known(RecordingId id) const = 0;
  virtual void drop(RecordingId id) = 0;  // after its last submission has finished
  virtual void drop_all() = 0;

  // Submits batches on the compute queue, at least one and at most kMostBatches. A batch has different recordings, at
  // least one and at most kMostTogether. If it has `after`, the device first waits until its semaphore reaches its
  // value (see BlitQueue). Recordings run in order, and each sees what those before it wrote. A recording may be
  // submitted again before it has finished, but a ring that times its submissions (track_statistics) may wait until it
  // has. Recordings of a batch follow each other sooner than those of two batches, and batches that are submitted
  // together sooner than others. Once the host has waited for a batch's ticket, it sees what the batch wrote to mapped
  // memory. Error kNotFound: the ring has no recording for one of the ids, and has submitted nothing.
  using Ticket = std::uint64_t;
  struct After {
    VkSemaphore semaphore = VK_NULL_HANDLE;  // timeline
    std::uint64_t value = 0;
  };
  static constexpr std::size_t kMostTogether = 8, kMostBatches = 2;
  struct Batch {
    std::span<const RecordingId> ids;
    std::span<const After> after = {};
    std::uint32_t variant = 0;
    Ticket ticket = 0;  // submit_batches() sets the ticket
  };
  virtual Status submit_batches(std::span<Batch> batches) = 0;
  Result<Ticket> submit(RecordingId id, std::span<const After> after = {},
                        std::uint32_t variant = 0) {
    Batch batch{{&id, 1}, after, variant};
    BULKHEAD_RETURN_IF_ERROR(submit_batches({&batch, 1}));
    return batch.ticket;
  }
  // kDeadlineExceeded after timeout_ms; kDeviceLost if the device is lost.
  virtual Status wait(Ticket ticket) = 0;
  // Waits at most `wait_ms` and returns whether the submission is done. For a caller that waits longer than one such
  // wait and sends heartbeats in between.
  virtual Result<bool> finished(Ticket ticket, std::uint32_t wait_ms) = 0;
  // Waits, in bounded time, until nothing that was submitted runs any more. For error paths, before the submitted
  // work's memory is freed. Returns false if the device hangs; it was then abandoned (Device::abandon).
  virtual bool drain() = 0;
  // The timeline semaphore that gets the ticket's number when a submission is done.
  virtual VkSemaphore timeline() const = 0;

  // For benchmarks: runs the recording once with a timestamp around each dispatch, and waits.
  virtual Result<std::vector<KernelTime>> profile(RecordingId id, std::uint32_t variant = 0) = 0;

  virtual bool enabled() const = 0;
  virtual CommandRingStats stats() const = 0;
};

}  // namespace bulkhead::gpu
