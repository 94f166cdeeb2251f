#include "gpu/blit_queue.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "config/base/elapsed.hpp"
#include "config/base/log.hpp"
#include "gpu/blit_base.hpp"
#include "gpu/staging_ring.hpp"
#include "gpu/transfer_lane.hpp"

namespace bulkhead::gpu {
namespace {

class StagedQueue final : public BlitBase {
 public:
  using BlitBase::BlitBase;

  ~StagedQueue() override {
    if (StagedQueue::drain()) settle_queues(device_, timeout_ms_);
  }

  Status init() {
    // Uploads are weights and prompts, downloads are logits and tokens: they get three quarters and a quarter.
    const std::uint64_t total = std::max<std::uint64_t>(settings_.staging_buffer_size_mb, 1) * kMib;
    BULKHEAD_TRY(upload_buffer_,
                 device_.allocate(total / 4 * 3, Memory::kUpload, "upload staging ring"));
    BULKHEAD_TRY(download_buffer_,
                 device_.allocate(total / 4, Memory::kReadback, "download staging ring"));
    upload_ring_ = StagingRing(upload_buffer_.bytes());
    download_ring_ = StagingRing(download_buffer_.bytes());
    // Several pieces fit the ring, so that the next piece can be written while one is being copied.
    largest_piece_ = upload_buffer_.bytes() / 4 / StagingRing::kAlignment * StagingRing::kAlignment;

    TransferLane::Options lane;
    lane.family = device_.transfer_family();
    lane.max_pending = settings_.max_pending_ops;
    lane.timeline = settings_.use_shared_events;
    lane.timeout_ms = timeout_ms_;
    lane.track = settings_.track_metrics;
    lane.queue = device_.transfer_queue();
    lane.name = "uploading to the device";
    BULKHEAD_RETURN_IF_ERROR(uploads_.init(device_, lane));
    lane.queue = device_.download_queue();
    lane.name = "downloading from the device";
    lane.lane = DeviceLane::kDownload;
    return downloads_.init(device_, lane);
  }

  Status upload_with(std::uint64_t bytes, const BufferSlice& to, Fill fill,
                     void* context) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    BULKHEAD_RETURN_IF_ERROR(fits(bytes, to));
    for (std::uint64_t offset = 0; offset < bytes;) {
      const std::uint64_t piece_bytes = std::min(bytes - offset, largest_piece_);
      BULKHEAD_TRY(std::optional<Piece> piece, reserve(piece_bytes));
      while (!piece) {
        BULKHEAD_RETURN_IF_ERROR(wait_for_room());
        BULKHEAD_TRY(piece, reserve(piece_bytes));
      }
      fill(context, offset, piece->bytes);
      BULKHEAD_RETURN_IF_ERROR(start_copy(*piece, part_of(to, offset, piece_bytes)));
      offset += piece_bytes;
    }
    uploaded(bytes);
    return {};
  }

  Result<std::optional<Piece>> reserve(std::uint64_t bytes) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    if (bytes == 0 || bytes > largest_piece_) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("upload: a piece of {} bytes; at most {} at a time", bytes, largest_piece_));
    }
    auto room = upload_ring_.take(bytes);
    if (!room) {
      BULKHEAD_TRY([[maybe_unused]] const std::uint64_t now, uploads_.reached());
      free_done_pieces();
      room = upload_ring_.take(bytes);
    }
    if (!room) return std::optional<Piece>();
    const std::uint64_t id = first_piece_ + pieces_.size();
    pieces_.push_back({PieceState::kFilling, 0, room->offset, room->end});
    return std::optional<Piece>(
        Piece{id, {slice(upload_buffer_, room->offset, bytes).mapped, bytes}});
  }

  Status send(const Piece& piece, const BufferSlice& to) override {
    if (const Status fit = fits(piece.bytes.size(), to); !fit.ok()) {
      give_up(piece);
      return fit;
    }
    BULKHEAD_RETURN_IF_ERROR(start_copy(piece, part_of(to, 0, piece.bytes.size())));
    uploaded(piece.bytes.size());
    return {};
  }

  void give_up(const Piece& piece) override {
    if (StagedPiece* const staged = find(piece)) staged->state = PieceState::kOver;
    free_done_pieces();
  }

  Status wait_for_room() override {
    BULKHEAD_RETURN_IF_ERROR(uploads_.wait_oldest());
    free_done_pieces();
    return {};
  }

  std::uint64_t largest_piece() const override { return largest_piece_; }

  CommandRing::After uploads_done() const override {
    if (settings_.use_shared_events) {
      return uploads_.submitted() == 0 ? CommandRing::After{} : uploads_.after_all();
    }
    // The lane and the permanent error are mutable because, with fences, the wait happens here.
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
      // The download is larger than the ring, or the ring is full of downloads that nobody has finished: it gets its
      // own memory.
      if (settings_.track_metrics) ++stats_.stalls;
      BULKHEAD_TRY(one.own, device_.allocate(from.bytes, Memory::kReadback, "large download"));
      staging = slice(one.own);
    }
    one.data = staging.mapped;

    // The data to be read may have been uploaded just now.
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

  Status upload_from(const BufferSlice& host, const BufferSlice& to) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    BULKHEAD_RETURN_IF_ERROR(fits(host.bytes, to));
    BULKHEAD_TRY([[maybe_unused]] const std::uint64_t number,
                 uploads_.copy({host, part_of(to, 0, host.bytes)}, {}));
    submitted();
    uploaded(host.bytes);
    return {};
  }

  Result<Ticket> download_to(const BufferSlice& host, const BufferSlice& from,
                             CommandRing::After after) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    BULKHEAD_RETURN_IF_ERROR(fits(host.bytes, from));
    const auto number = downloads_.copy({part_of(from, 0, host.bytes), host}, std::span(&after, 1));
    if (!number.ok()) return number.error();
    submitted();
    downloaded(host.bytes);
    return *number;
  }

  Status finish_download_to(Ticket ticket) override {
    BULKHEAD_RETURN_IF_ERROR(failed_);
    return downloads_.wait(ticket);
  }

  bool drain() override {
    const bool uploads_over = uploads_.drain();
    const bool downloads_over = downloads_.drain();
    return uploads_over && downloads_over;
  }

  bool enabled() const override { return true; }
  BlitQueueStats stats() const override {
    BlitQueueStats stats = stats_;
    if (!settings_.track_metrics) return stats;
    stats.stalls += uploads_.stalls() + downloads_.stalls();
    const TransferLane::Timing& up = uploads_.timing();
    const TransferLane::Timing& down = downloads_.timing();
    stats.upload_copies = up.copies;
    stats.upload_nanoseconds = up.copy_ns;
    stats.download_copies = down.copies;
    stats.download_nanoseconds = down.copy_ns;
    stats.sync_waits = up.waits + down.waits;
    stats.sync_wait_nanoseconds = up.wait_ns + down.wait_ns;
    stats.pending_limit = std::uint64_t{2} * std::max(settings_.max_pending_ops, 1U);
    stats.pending = under_way(uploads_) + under_way(downloads_);
    stats.pending_peak = std::max(up.most_pending, down.most_pending);
    return stats;
  }

 private:
  // A piece of the ring, in the ring's order.
  enum class PieceState { kFilling, kSent, kOver };
  struct StagedPiece {
    PieceState state;
    std::uint64_t number;  // the copy's number, once it is sent
    std::uint64_t offset, ring_end;
  };
  // A download that was started and whose data may still be read.
  struct Open {
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;
    const std::byte* data = nullptr;
    std::optional<StagingRing::Piece> piece;  // otherwise `own`
    Buffer own;
    bool finished = false;
    bool released = false;
  };

  StagedPiece* find(const Piece& piece) {
    if (piece.id < first_piece_ || piece.id - first_piece_ >= pieces_.size()) return nullptr;
    StagedPiece& staged = pieces_[piece.id - first_piece_];
    return staged.state == PieceState::kFilling ? &staged : nullptr;
  }

  Status start_copy(const Piece& piece, const BufferSlice& to) {
    StagedPiece* const staged = find(piece);
    if (staged == nullptr)
      return Error(ErrorCode::kInvalidArgument, "upload: the piece was sent or given up before");
    const BufferSlice staging = slice(upload_buffer_, staged->offset, piece.bytes.size());
    const auto number = uploads_.copy({staging, to}, {});
    if (!number.ok()) {
      give_up(piece);
      return number.error();
    }
    staged->state = PieceState::kSent;
    staged->number = *number;
    submitted();
    return {};
  }

  void free_done_pieces() {
    const std::uint64_t done = uploads_.known_done();
    while (!pieces_.empty()) {
      const StagedPiece& first = pieces_.front();
      if (first.state == PieceState::kFilling) return;
      if (first.state == PieceState::kSent && first.number > done) return;
      upload_ring_.free_until(first.ring_end);
      pieces_.pop_front();
      ++first_piece_;
    }
  }

  // A download that did not start gives its room back.
  Status undone(const Open& one, Status status) {
    if (!status.ok() && one.piece) download_ring_.undo(*one.piece);
    return status;
  }

  // The span that finish_download() returned last is no longer valid. Frees the ring in order, up to everything that
  // is released.
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

  // Returns how many copies are in progress. If the device can't tell how many it has completed, the copies that this
  // program has not seen completed count. No error is lost: the next wait for a copy reports a lost device.
  static std::uint64_t under_way(TransferLane& lane) {
    const auto reached = lane.reached();
    return reached.ok() ? lane.submitted() - *reached : lane.pending();
  }

  Buffer upload_buffer_, download_buffer_;
  StagingRing upload_ring_, download_ring_;
  std::uint64_t largest_piece_ = 0;
  mutable TransferLane uploads_, downloads_;  // mutable because stats() checks what is done
  std::deque<StagedPiece> pieces_;
  std::uint64_t first_piece_ = 1;  // the id of pieces_.front()
  std::map<Ticket, Open> open_;
  Ticket alive_ = 0;
  mutable Status failed_;
};

}  // namespace

Result<std::unique_ptr<BlitQueue>> BlitQueue::create(Device& device,
                                                     const config::BlitQueueSettings& settings,
                                                     bool enabled, std::uint32_t timeout_ms) {
  if (!enabled) return make_direct_queue(device, settings, timeout_ms);
  auto queue = std::make_unique<StagedQueue>(device, settings, timeout_ms);
  const Status ready = queue->init();
  if (!ready.ok()) return ready.error().within("blit queue");
  return std::unique_ptr<BlitQueue>(std::move(queue));
}

}  // namespace bulkhead::gpu
