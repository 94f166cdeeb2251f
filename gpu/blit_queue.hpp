// Transfers between host and device on the transfer queue (the compute queue where there is no
// other), through a ring of staging memory, so that uploads overlap compute and downloads overlap
// the next step.
//
// Thread-safety: one thread at a time, the owner; other threads may fill pieces that it reserved.
//
// Switched off (the baseline), each transfer is a submit of its own and a wait for its fence: an
// upload before anything else is done, a download once what it reads is computed. Transfers without
// memory of the caller's allocate a staging buffer and free it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "config/settings.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// All zeros without track_metrics.
struct BlitQueueStats {
  std::uint64_t uploads = 0, downloads = 0;
  std::uint64_t bytes_uploaded = 0, bytes_downloaded = 0;
  std::uint64_t stalls = 0;  // waits for staging room or for a pending operation to finish
  std::uint64_t submissions = 0;
  // Copies that are known to be done, and their time on the device by its timestamps. Both are 0 if
  // the transfer queue's timestamps can't be read while it works (Mesa's CPU driver). With the queue
  // off: how long the host waited.
  std::uint64_t upload_copies = 0, upload_nanoseconds = 0;
  std::uint64_t download_copies = 0, download_nanoseconds = 0;
  std::uint64_t sync_waits = 0, sync_wait_nanoseconds = 0;  // the host waited for a copy
  std::uint64_t pending = 0, pending_peak = 0;              // copies under way, of both directions
  std::uint64_t pending_limit = 1;                          // the most that may be, of both

  double average_upload_us() const { return average_us(upload_nanoseconds, upload_copies); }
  double average_download_us() const { return average_us(download_nanoseconds, download_copies); }
  double average_sync_wait_us() const { return average_us(sync_wait_nanoseconds, sync_waits); }

 private:
  static double average_us(std::uint64_t ns, std::uint64_t count) {
    return count == 0 ? 0 : static_cast<double>(ns) / 1e3 / static_cast<double>(count);
  }
};

class BlitQueue {
 public:
  static Result<std::unique_ptr<BlitQueue>> create(Device& device,
                                                   const config::BlitQueueSettings& settings,
                                                   bool enabled, std::uint32_t timeout_ms);
  virtual ~BlitQueue() = default;

  // Copies `bytes` into staging memory before returning and starts the transfer; larger than the
  // staging ring goes in pieces. Waits for room when the ring or max_pending_ops is full.
  virtual Status upload(std::span<const std::byte> bytes, const BufferSlice& to) = 0;
  // As upload, but `fill` writes straight into staging memory, piece by piece: [offset, offset +
  // span.size()).
  using Fill = void (*)(void* context, std::uint64_t offset, std::span<std::byte> piece);
  virtual Status upload_with(std::uint64_t bytes, const BufferSlice& to, Fill fill,
                             void* context) = 0;
  // For several threads that fill staging memory at once: the owner of the queue reserves a piece, any
  // thread fills it, and the owner sends it. An empty result means that there is no room until
  // something that was sent is done; wait_for_room() waits for that. Pieces may be sent in any order;
  // each must be sent or given up. A piece has at most largest_piece() bytes.
  struct Piece {
    std::uint64_t id = 0;
    std::span<std::byte> bytes;
  };
  virtual Result<std::optional<Piece>> reserve(std::uint64_t bytes) = 0;
  virtual Status send(const Piece& piece, const BufferSlice& to) = 0;
  virtual void give_up(const Piece& piece) = 0;
  // Until the oldest upload under way is done. kInternal: none is.
  virtual Status wait_for_room() = 0;
  virtual std::uint64_t largest_piece() const = 0;

  // What a submit on the compute queue must wait for so that it sees all uploads so far. Empty
  // value: nothing to wait for.
  virtual CommandRing::After uploads_done() const = 0;
  // Waits on the host for all uploads so far.
  virtual Status finish_uploads() = 0;

  // Starts a download of data that is ready once `after` is reached. At most one span of a ticket
  // is alive: it is valid until the next finish_download() or release.
  using Ticket = std::uint64_t;
  virtual Result<Ticket> download(const BufferSlice& from, CommandRing::After after) = 0;
  virtual Result<std::span<const std::byte>> finish_download(Ticket ticket) = 0;

  // For transfers that happen again and again: the caller owns the host's memory (kUpload, kReadback),
  // whose size is the size of the transfer. A further transfer between the same places records and
  // allocates nothing. Do not write to `host` before the upload, or a compute submission that waits
  // for it, is done.
  virtual Status upload_from(const BufferSlice& host, const BufferSlice& to) = 0;
  // The data are in `host` once finish_download_to() has returned. Finish tickets in the order in
  // which they were started.
  virtual Result<Ticket> download_to(const BufferSlice& host, const BufferSlice& from,
                                     CommandRing::After after) = 0;
  virtual Status finish_download_to(Ticket ticket) = 0;

  // As CommandRing::drain, which comes first: downloads wait for compute.
  virtual bool drain() = 0;

  virtual bool enabled() const = 0;
  virtual BlitQueueStats stats() const = 0;
};

}  // namespace bulkhead::gpu
