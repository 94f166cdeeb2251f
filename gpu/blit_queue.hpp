// Transfers between host and device on the transfer queue (or on the compute queue if there is no other). They go
// through a ring of staging memory, so that uploads overlap with computing, and downloads overlap with the next step.
//
// Thread-safety: one owner thread at a time. Other threads may fill pieces that the owner reserved.
//
// When switched off (the baseline), each transfer is a separate submit followed by a wait for its fence: an upload
// ends before anything else is done, and a download starts once its source is computed. A transfer for which the
// caller gives no host memory allocates a staging buffer and frees it.
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
  std::uint64_t stalls = 0;  // waits for staging room or for a pending operation
  std::uint64_t submissions = 0;
  // Copies that are known to be done, and their time by the device's timestamps. Both are 0 if the transfer queue's
  // timestamps can't be read while it works (Mesa's CPU driver). With the queue off, they hold how long the host
  // waited.
  std::uint64_t upload_copies = 0, upload_nanoseconds = 0;
  std::uint64_t download_copies = 0, download_nanoseconds = 0;
  std::uint64_t sync_waits = 0, sync_wait_nanoseconds = 0;  // waits of the host for a copy
  std::uint64_t pending = 0, pending_peak = 0;              // copies under way, in both directions
  // the most copies that may be under way, in both directions
  std::uint64_t pending_limit = 1;

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

  // Copies `bytes` into staging memory before it returns, and starts the transfer. Bytes that exceed the staging ring
  // go in pieces. Waits if the ring is full or max_pending_ops transfers are under way.
  virtual Status upload(std::span<const std::byte> bytes, const BufferSlice& to) = 0;
  // Like upload, but `fill` writes straight into staging memory, piece by piece. A piece covers [offset, offset +
  // span.size()).
  using Fill = void (*)(void* context, std::uint64_t offset, std::span<std::byte> piece);
  virtual Status upload_with(std::uint64_t bytes, const BufferSlice& to, Fill fill,
                             void* context) = 0;
  // For several threads that fill staging memory at the same time: the queue's owner reserves a piece, any thread
  // fills it, and the owner sends it. An empty result means that there is no room until a piece that was sent is
  // done; wait_for_room() waits for that. Pieces may be sent in any order; each piece must be sent or given up. A
  // piece has at most largest_piece() bytes.
  struct Piece {
    std::uint64_t id = 0;
    std::span<std::byte> bytes;
  };
  virtual Result<std::optional<Piece>> reserve(std::uint64_t bytes) = 0;
  virtual Status send(const Piece& piece, const BufferSlice& to) = 0;
  virtual void give_up(const Piece& piece) = 0;
  // Waits until the oldest upload under way is done. kInternal: there is no upload under way.
  virtual Status wait_for_room() = 0;
  virtual std::uint64_t largest_piece() const = 0;

  // Returns what a submit on the compute queue must wait for to see all uploads so far. An empty value means that it
  // need not wait.
  virtual CommandRing::After uploads_done() const = 0;
  // Makes the host wait for all uploads so far.
  virtual Status finish_uploads() = 0;

  // Starts a download of data that are ready once `after` is reached. The span of a ticket is valid until the next
  // finish_download() or release, so at most one span is valid at a time.
  using Ticket = std::uint64_t;
  virtual Result<Ticket> download(const BufferSlice& from, CommandRing::After after) = 0;
  virtual Result<std::span<const std::byte>> finish_download(Ticket ticket) = 0;

  // For transfers that are repeated: the caller owns the host's memory (kUpload, kReadback), whose size is the size
  // of the transfer. Later transfers between the same places record and allocate nothing. Do not write to `host`
  // before the upload, or a compute submission that waits for it, is done.
  virtual Status upload_from(const BufferSlice& host, const BufferSlice& to) = 0;
  // The data are in `host` once finish_download_to() has returned. Finish tickets in the order in which they were
  // started.
  virtual Result<Ticket> download_to(const BufferSlice& host, const BufferSlice& from,
                                     CommandRing::After after) = 0;
  virtual Status finish_download_to(Ticket ticket) = 0;

  // Like CommandRing::drain. Drain the command ring first, because downloads wait for compute work.
  virtual bool drain() = 0;

  virtual bool enabled() const = 0;
  virtual BlitQueueStats stats() const = 0;
};

}  // namespace bulkhead::gpu
