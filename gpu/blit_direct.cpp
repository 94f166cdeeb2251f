// The blit queue without its optimisations.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "config/base/elapsed.hpp"
#include "gpu/blit_base.hpp"
#include "gpu/transfer_lane.hpp"

namespace bulkhead::gpu {
namespace {

// The baseline. For each transfer it records a command buffer, submits it and waits for it; it allocates
// staging memory if the caller has none. It uses the compute queue, the only queue that a plain program has.
class DirectQueue final : public BlitBase {
 public:
  using BlitBase::BlitBase;

  ~DirectQueue() override {
    if (DirectQueue::drain()) settle_queues(device_, timeout_ms_);
  }

  Status init() {
    TransferLane::Options lane;
    lane.queue = device_.compute_queue();
    lane.family = device_.compute_family();
    lane.timeline = false;  // a plain program waits for a fence
    lane.polls = true;
    lane.timeout_ms = timeout_ms_;
    lane.track = false;
    lane.keep_recordings = false;
    lane.name = "uploading to the device";
    BULKHEAD_RETURN_IF_ERROR(uploads_.init(device_, lane));
    lane.name = "downloading from the device";
    return downloads_.init(device_, lane);
  }

  Status upload_with(std::uint64_t bytes, const BufferSlice& to, Fill fill,
                     void* context) override {
    BULKHEAD_RETURN_IF_ERROR(fits(bytes, to));
    // A whole tensor may exceed the largest allocation.
    const std::uint64_t largest =
        std::max<std::uint64_t>(settings_.staging_buffer_size_mb, 1) * kMib;
    for (std::uint64_t offset = 0; offset < bytes;) {
      const std::uint64_t piece = std::min(bytes - offset, largest);
      BULKHEAD_TRY(const Buffer staging,
                   device_.allocate(piece, Memory::kUpload, "upload staging"));
      fill(context, offset, staging.mapped());
      BULKHEAD_RETURN_IF_ERROR(
          run_copy(slice(staging), part_of(to, offset, piece), DeviceLane::kUpload));
      offset += piece;
    }
    uploaded(bytes);
    return {};
  }

  Result<std::optional<Piece>> reserve(std::uint64_t bytes) override {
    BULKHEAD_TRY(Buffer staging, device_.allocate(bytes, Memory::kUpload, "upload staging"));
    const Piece piece{++last_piece_, staging.mapped()};
    pieces_.emplace(piece.id, std::move(staging));
    return std::optional<Piece>(piece);
  }
  Status send(const Piece& piece, const BufferSlice& to) override {
    const auto found = pieces_.find(piece.id);
    if (found == pieces_.end())
      return Error(ErrorCode::kInvalidArgument, "upload: the piece was sent or given up before");
    const Buffer staging = std::move(found->second);
    pieces_.erase(found);
    BULKHEAD_RETURN_IF_ERROR(fits(staging.bytes(), to));
    BULKHEAD_RETURN_IF_ERROR(
        run_copy(slice(staging), part_of(to, 0, staging.bytes()), DeviceLane::kUpload));
    uploaded(staging.bytes());
    return {};
  }
  void give_up(const Piece& piece) override { pieces_.erase(piece.id); }
  Status wait_for_room() override {
    return Error(ErrorCode::kInternal, "uploading to the device: no transfer to wait for");
  }
  std::uint64_t largest_piece() const override {
    return std::max<std::uint64_t>(settings_.staging_buffer_size_mb, 1) * kMib;
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
    BULKHEAD_RETURN_IF_ERROR(run_copy(from, slice(staging), DeviceLane::kDownload));
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

  Status upload_from(const BufferSlice& host, const BufferSlice& to) override {
    BULKHEAD_RETURN_IF_ERROR(fits(host.bytes, to));
    BULKHEAD_RETURN_IF_ERROR(run_copy(host, part_of(to, 0, host.bytes), DeviceLane::kUpload));
    uploaded(host.bytes);
    return {};
  }

  Result<Ticket> download_to(const BufferSlice& host, const BufferSlice& from,
                             CommandRing::After after) override {
    BULKHEAD_RETURN_IF_ERROR(fits(host.bytes, from));
    later_.push_back({++last_ticket_, host, part_of(from, 0, host.bytes), after});
    return last_ticket_;
  }

  Status finish_download_to(Ticket ticket) override {
    while (!later_.empty() && later_.front().ticket <= ticket) {
      const Later one = later_.front();
      later_.erase(later_.begin());
      BULKHEAD_RETURN_IF_ERROR(
          wait_for(device_, one.after, timeout_ms_, "downloading from the device"));
      BULKHEAD_RETURN_IF_ERROR(run_copy(one.from, one.host, DeviceLane::kDownload));
      downloaded(one.host.bytes);
    }
    return {};
  }

  // The queue has waited for every transfer, so only a transfer whose wait failed may still run.
  bool drain() override {
    const bool uploads_over = uploads_.drain();
    const bool downloads_over = downloads_.drain();
    return uploads_over && downloads_over;
  }
  bool enabled() const override { return false; }
  BlitQueueStats stats() const override { return stats_; }

 private:
  Status run_copy(const BufferSlice& from, const BufferSlice& to, DeviceLane lane) {
    submitted();
    const auto start = std::chrono::steady_clock::now();
    TransferLane& queue = lane == DeviceLane::kUpload ? uploads_ : downloads_;
    BULKHEAD_TRY(const std::uint64_t number, queue.copy({from, to}, {}));
    if (const Status done = queue.wait(number); !done.ok()) {
      queue.drain();  // before the caller frees what the copy uses
      return done;
    }
    if (!settings_.track_metrics) return {};
    // The host waits for each transfer, and nothing runs at the same time, so the host's clock measures it.
    const std::uint64_t took = nanoseconds_since(start);
    ++stats_.sync_waits;
    stats_.sync_wait_nanoseconds += took;
    const bool up = lane == DeviceLane::kUpload;
    ++(up ? stats_.upload_copies : stats_.download_copies);
    (up ? stats_.upload_nanoseconds : stats_.download_nanoseconds) += took;
    stats_.pending_peak = 1;
    return {};
  }

  // A download whose data are not computed yet.
  struct Later {
    Ticket ticket;
    BufferSlice host, from;
    CommandRing::After after;
  };

  TransferLane uploads_, downloads_;
  std::vector<Later> later_;
  std::map<std::uint64_t, Buffer> pieces_;
  std::uint64_t last_piece_ = 0;
  std::map<Ticket, Buffer> open_;
  Buffer alive_;
  Ticket last_ticket_ = 0;
};

}  // namespace

Result<std::unique_ptr<BlitQueue>> make_direct_queue(Device& device,
                                                     const config::BlitQueueSettings& settings,
                                                     std::uint32_t timeout_ms) {
  auto queue = std::make_unique<DirectQueue>(device, settings, timeout_ms);
  const Status ready = queue->init();
  if (!ready.ok()) return ready.error().within("blit queue");
  return std::unique_ptr<BlitQueue>(std::move(queue));
}

}  // namespace bulkhead::gpu
