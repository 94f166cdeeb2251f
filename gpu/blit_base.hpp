// The base of both forms of the blit queue: blit_queue.cpp (staged) and blit_direct.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "config/base/log.hpp"
#include "gpu/blit_queue.hpp"

namespace bulkhead::gpu {

inline constexpr std::uint64_t kMib = 1 << 20;

inline Status fits(std::uint64_t bytes, const BufferSlice& to) {
  if (to.buffer != VK_NULL_HANDLE && bytes <= to.bytes) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("upload: {} bytes do not fit into {}", bytes, to.bytes));
}

inline Error unknown_ticket(BlitQueue::Ticket ticket) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("download {} is unknown or was finished before", ticket));
}

inline BufferSlice part_of(const BufferSlice& slice, std::uint64_t offset, std::uint64_t bytes) {
  BufferSlice part = slice;
  part.offset += offset;
  part.address += offset;
  part.bytes = bytes;
  if (part.mapped != nullptr) part.mapped += offset;
  return part;
}

inline void fill_from_bytes(void* context, std::uint64_t offset, std::span<std::byte> piece) {
  std::memcpy(piece.data(), static_cast<const std::byte*>(context) + offset, piece.size());
}

// The part that both forms share: settings, statistics, and upload() in terms of upload_with().
class BlitBase : public BlitQueue {
 public:
  BlitBase(Device& device, const config::BlitQueueSettings& settings, std::uint32_t timeout_ms)
      : device_(device), settings_(settings), timeout_ms_(timeout_ms) {}

  Status upload(std::span<const std::byte> bytes, const BufferSlice& to) final {
    return upload_with(bytes.size(), to, &fill_from_bytes, const_cast<std::byte*>(bytes.data()));
  }

 protected:
  void uploaded(std::uint64_t bytes) {
    if (settings_.track_metrics) {
      ++stats_.uploads;
      stats_.bytes_uploaded += bytes;
    }
    if (settings_.verbose_logging) spdlog::debug("blit queue: upload of {} bytes", bytes);
  }
  void downloaded(std::uint64_t bytes) {
    if (settings_.track_metrics) {
      ++stats_.downloads;
      stats_.bytes_downloaded += bytes;
    }
    if (settings_.verbose_logging) spdlog::debug("blit queue: download of {} bytes", bytes);
  }
  void submitted() {
    if (settings_.track_metrics) ++stats_.submissions;
  }

  Device& device_;
  const config::BlitQueueSettings settings_;
  const std::uint32_t timeout_ms_;
  BlitQueueStats stats_;
};

// Makes the queue that waits for each transfer (blit_direct.cpp).
Result<std::unique_ptr<BlitQueue>> make_direct_queue(Device& device,
                                                     const config::BlitQueueSettings& settings,
                                                     std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu
