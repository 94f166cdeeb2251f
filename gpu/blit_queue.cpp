#include "gpu/blit_queue.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "config/base/log.hpp"
#include "gpu/staging_ring.hpp"
#include "gpu/transfer_lane.hpp"

namespace bulkhead::gpu {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

Status fits(std::uint64_t bytes, const BufferSlice& to) {
  if (to.buffer != VK_NULL_HANDLE && bytes <= to.bytes) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("upload: {} bytes do not fit into {}", bytes, to.bytes));
}

Error unknown_ticket(BlitQueue::Ticket ticket) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("download {} is unknown or was finished before", ticket));
}

BufferSlice part_of(const BufferSlice& slice, std::uint64_t offset, std::uint64_t bytes) {
  BufferSlice part = slice;
  part.offset += offset;
  part.address += offset;
  part.bytes = bytes;
  if (part.mapped != nullptr) part.mapped += offset;
  return part;
}

void fill_from_bytes(void* context, std::uint64_t offset, std::span<std::byte> piece) {
  std::memcpy(piece.data(), static_cast<const std::byte*>(context) + offset, piece.size());
}

// What both forms share: settings, statistics, and upload in terms of upload_with.
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
    if (settings_.verbose_logging) spdlog::info("blit queue: upload of {} bytes", bytes);
  }
  void downloaded(std::uint64_t bytes) {
    if (settings_.track_metrics) {
      ++stats_.downloads;
      stats_.bytes_downloaded += bytes;
    }
    if (settings_.verbose_logging) spdlog::info("blit queue: download of {} bytes", bytes);
  }
  void submitted() {
    if (settings_.track_metrics) ++stats_.submissions;
  }

  Device& device_;
  const config::BlitQueueSettings settings_;
  const std::uint32_t timeout_ms_;
  BlitQueueStats stats_;
};

class StagedQueue final : public BlitBase {
 public:
  using BlitBase::BlitBase;

  ~StagedQueue() override {
    if (StagedQueue::drain()) settle_queues(device_);
  }

  Status init() {
    // Uploads are weights and prompts, downloads logits and tokens: three quarters and a quarter.
    const std::uint64_t total = std::max<std::uint64_t>(settings_.staging_buffer_size_mb, 1) * kMib;
    BULKHEAD_TRY(upload_buffer_,
                 device_.allocate(total / 4 * 3, Memory::kUpload, "upload staging ring"));
    BULKHEAD_TRY(download_buffer_,
                 device_.allocate(total / 4, Memory::kReadback, "download staging ring"));
    upload_ring_ = StagingRing(upload_buffer_.bytes());
    download_ring_ = StagingRing(download_buffer_.bytes());
    // Several pieces fit the ring, so that the next is written while one is on its way.
    largest_piece_ = upload_buffer_.bytes() / 4 / StagingRing::kAlignment * StagingRing::kAlignment;

    TransferLane::Options lane;
    lane.family = device_.transfer_family();
    lane.max_pending = settings_.max_pending_ops;
    lane.timeline = settings_.use_shared_events;
    lane.timeout_ms = timeout_ms_;
    lane.queue = device_.transfer_queue();
    lane.name = "uploading to the device";
    BULKHEAD_RETURN_IF_ERROR(uploads_.init(device_, lane));
    lane.queue = device_.download_queue();
    lane.name = "downloading from the device";
    return downloads_.init(device_, lane);
  }

  Status upload_with(std::uint64_t bytes, const BufferSlice& to, Fill fill,
                     void* context) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    BULKHEAD_RETURN_IF_ERROR(fits(bytes, to));
    for (std::uint64_t offset = 0; offset < bytes;) {
      const std::uint64_t piece_bytes = std::min(bytes - offset, largest_piece_);
      BULKHEAD_TRY(const StagingRing::Piece piece, upload_room(piece_bytes));
      const BufferSlice staging = slice(upload_buffer_, piece.offset, piece_bytes);
      fill(context, offset, {staging.mapped, piece_bytes});
      const auto number = uploads_.copy({staging, part_of(to, offset, piece_bytes)}, {});
      if (!number.ok()) {
        upload_ring_.undo(piece);
        return number.error();
      }
      pending_pieces_.push_back({*number, piece.end});
      submitted();
      offset += piece_bytes;
    }
    uploaded(bytes);
    return {};
  }

  CommandRing::After uploads_done() const override {
    if (settings_.use_shared_events) {
      return uploads_.submitted() == 0 ? CommandRing::After{} : uploads_.after_all();
    }
    // The lane and the sticky error are mutable for this: with fences the wait happens here.
    if (const Status status = uploads_.wait(uploads_.submitted()); !status.ok() && failed_.ok())
      failed_ = status;
    return {};
  }

  Status finish_uploads() override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    return uploads_.wait(uploads_.submitted());
  }

  Result<Ticket> download(const BufferSlice& from, CommandRing::After after) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    if (from.buffer == VK_NULL_HANDLE || from.bytes == 0) {
      return Error(ErrorCode::kInvalidArgument, "download: nothing to read from");
    }
    Open one;
    one.bytes = from.bytes;
    BufferSlice staging;
    if (from.bytes <= download_ring_.bytes()) one.piece = download_ring_.take(from.bytes);
    if (one.piece) {
      staging = slice(download_buffer_, one.piece->offset, from.bytes);
    } else {
      // Larger than the ring, or the ring is full of downloads that nobody has finished: memory of
      // its own.
      if (settings_.track_metrics) ++stats_.stalls;
      BULKHEAD_TRY(one.own, device_.allocate(from.bytes, Memory::kReadback, "large download"));
      staging = slice(one.own);
    }
    one.data = staging.mapped;

    // What is read may have been uploaded just now.
    if (!settings_.use_shared_events) BULKHEAD_RETURN_IF_ERROR(undone(one, finish_uploads()));
    const CommandRing::After both[] = {
        after, settings_.use_shared_events ? uploads_done() : CommandRing::After{}};
    const auto number = downloads_.copy({from, staging}, both);
    if (!number.ok()) return undone(one, number.error()).error();
    one.number = *number;
    submitted();
    open_.emplace(*number, std::move(one));
    return *number;
  }

  Result<std::span<const std::byte>> finish_download(Ticket ticket) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    release_alive();
    const auto found = open_.find(ticket);
    if (found == open_.end() || found->second.finished) return unknown_ticket(ticket);
    BULKHEAD_RETURN_IF_ERROR(downloads_.wait(ticket));
    found->second.finished = true;
    alive_ = ticket;
    downloaded(found->second.bytes);
    return std::span<const std::byte>(found->second.data, found->second.bytes);
  }

  bool drain() override {
    const bool uploads_over = uploads_.drain();
    const bool downloads_over = downloads_.drain();
    return uploads_over && downloads_over;
  }

  bool enabled() const override { return true; }
  BlitQueueStats stats() const override {
    BlitQueueStats stats = stats_;
    if (settings_.track_metrics) stats.stalls += uploads_.stalls() + downloads_.stalls();
    return stats;
  }

 private:
  struct PendingPiece {
    std::uint64_t number;
    std::uint64_t ring_end;
  };
  // A download that was started and whose data may still be looked at.
  struct Open {
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;
    const std::byte* data = nullptr;
    std::optional<StagingRing::Piece> piece;  // else `own`
    Buffer own;
    bool finished = false;
    bool released = false;
  };

  Result<StagingRing::Piece> upload_room(std::uint64_t bytes) {
    while (true) {
      BULKHEAD_TRY(const std::uint64_t reached, uploads_.reached());
      while (!pending_pieces_.empty() && pending_pieces_.front().number <= reached) {
        upload_ring_.free_until(pending_pieces_.front().ring_end);
        pending_pieces_.pop_front();
      }
      if (const auto piece = upload_ring_.take(bytes)) return *piece;
      BULKHEAD_RETURN_IF_ERROR(uploads_.wait_oldest());
    }
  }

  // A download that did not start gives its room back.
  Status undone(const Open& one, Status status) {
    if (!status.ok() && one.piece) download_ring_.undo(*one.piece);
    return status;
  }

  // The span that finish_download() gave out last ends here. The ring is freed in order, past
  // everything released.
  void release_alive() {
    if (alive_ == 0) return;
    open_.at(alive_).released = true;
    open_.at(alive_).own = Buffer();
    alive_ = 0;
    while (!open_.empty() && open_.begin()->second.released) {
      if (open_.begin()->second.piece) download_ring_.free_until(open_.begin()->second.piece->end);
      open_.erase(open_.begin());
    }
  }

  Buffer upload_buffer_, download_buffer_;
  StagingRing upload_ring_, download_ring_;
  std::uint64_t largest_piece_ = 0;
  mutable TransferLane uploads_;
  TransferLane downloads_;
  std::deque<PendingPiece> pending_pieces_;
  std::map<Ticket, Open> open_;
  Ticket alive_ = 0;
  mutable Status failed_;
};

// The baseline: staging memory, a submit, a fence and a wait for each transfer.
class DirectQueue final : public BlitBase {
 public:
  using BlitBase::BlitBase;

  Status init() { return pool_.init(device_, device_.transfer_family()); }

  Status upload_with(std::uint64_t bytes, const BufferSlice& to, Fill fill,
                     void* context) override {
    BULKHEAD_RETURN_IF_ERROR(fits(bytes, to));
    // A whole tensor may be more than one allocation can hold.
    const std::uint64_t largest =
        std::max<std::uint64_t>(settings_.staging_buffer_size_mb, 1) * kMib;
    for (std::uint64_t offset = 0; offset < bytes;) {
      const std::uint64_t piece = std::min(bytes - offset, largest);
      BULKHEAD_TRY(const Buffer staging,
                   device_.allocate(piece, Memory::kUpload, "upload staging"));
      fill(context, offset, staging.mapped());
      BULKHEAD_RETURN_IF_ERROR(
          run_copy(slice(staging), part_of(to, offset, piece), "uploading to the device"));
      offset += piece;
    }
    uploaded(bytes);
    return {};
  }

  CommandRing::After uploads_done() const override { return {}; }
  Status finish_uploads() override { return {}; }

  Result<Ticket> download(const BufferSlice& from, CommandRing::After after) override {
    if (from.buffer == VK_NULL_HANDLE || from.bytes == 0) {
      return Error(ErrorCode::kInvalidArgument, "download: nothing to read from");
    }
    BULKHEAD_RETURN_IF_ERROR(wait_for(device_, after, timeout_ms_, "downloading from the device"));
    BULKHEAD_TRY(Buffer staging,
                 device_.allocate(from.bytes, Memory::kReadback, "download staging"));
    BULKHEAD_RETURN_IF_ERROR(run_copy(from, slice(staging), "downloading from the device"));
    open_.emplace(++last_ticket_, std::move(staging));
    return last_ticket_;
  }

  Result<std::span<const std::byte>> finish_download(Ticket ticket) override {
    const auto found = open_.find(ticket);
    if (found == open_.end()) return unknown_ticket(ticket);
    alive_ = std::move(found->second);
    open_.erase(found);
    downloaded(alive_.bytes());
    return std::span<const std::byte>(alive_.mapped());
  }

  bool drain() override { return true; }  // every transfer was waited for
  bool enabled() const override { return false; }
  BlitQueueStats stats() const override { return stats_; }

 private:
  Status run_copy(const BufferSlice& from, const BufferSlice& to, const char* what) {
    submitted();
    return run_once(pool_, device_.transfer_queue(), timeout_ms_, what,
                    [&](VkCommandBuffer commands) {
                      const VkBufferCopy region{from.offset, to.offset, from.bytes};
                      vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
                      transfer_to_host_barrier(commands);
                    });
  }

  CommandPool pool_;
  std::map<Ticket, Buffer> open_;
  Buffer alive_;
  Ticket last_ticket_ = 0;
};

template <typename Form>
Result<std::unique_ptr<BlitQueue>> make(Device& device, const config::BlitQueueSettings& settings,
                                        std::uint32_t timeout_ms) {
  auto queue = std::make_unique<Form>(device, settings, timeout_ms);
  const Status ready = queue->init();
  if (!ready.ok()) return ready.error().within("blit queue");
  return std::unique_ptr<BlitQueue>(std::move(queue));
}

}  // namespace

Result<std::unique_ptr<BlitQueue>> BlitQueue::create(Device& device,
                                                     const config::BlitQueueSettings& settings,
                                                     bool enabled, std::uint32_t timeout_ms) {
  return enabled ? make<StagedQueue>(device, settings, timeout_ms)
                 : make<DirectQueue>(device, settings, timeout_ms);
}

}  // namespace bulkhead::gpu
