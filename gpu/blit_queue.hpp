// Transfers between host and device on the transfer queue (the compute queue where there is no
// other), through a ring of staging memory, so that uploads overlap compute and downloads overlap
// the next step.
//
// Switched off (the baseline), each transfer allocates a staging buffer, submits, waits for a fence
// and frees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "config/settings.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

struct BlitQueueStats {
  std::uint64_t uploads = 0, downloads = 0;
  std::uint64_t bytes_uploaded = 0, bytes_downloaded = 0;
  std::uint64_t stalls = 0;  // waits for staging room or for a pending operation to finish
  std::uint64_t submissions = 0;
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

  // As CommandRing::drain, which comes first: downloads wait for compute.
  virtual bool drain() = 0;

  virtual bool enabled() const = 0;
  virtual BlitQueueStats stats() const = 0;
};

}  // namespace bulkhead::gpu
