// What both transports share: records made of frames, sleeping, and permanent errors.
//
// A record of at most Link::max_frame() bytes is one frame, which is built and read where the link keeps its frames.
// A larger record is built in private memory, sent in pieces as room appears (try_receive, try_reserve, prepare_sleep
// and flush each send more), and put together in private memory at the other end, up to a fixed limit. That memory
// exists only while such a record does, and messages with tokens never need it.
//
// A Link moves frames; see ShmLink and StdioLink. It is a template parameter and not an interface, because every
// token passes through here.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "ipc/channel.hpp"
#include "ipc/fault_points.hpp"
#include "ipc/peer_socket.hpp"
#include "ipc/ring.hpp"

namespace bulkhead::ipc {

// The largest records. The worker receives prompts of up to 16 MB as text or as ids; the daemon receives the ids of a
// 16 MB text. The daemon's limit bounds how much a hostile worker can make it hold.
inline constexpr std::size_t kMaxRecordToWorker = std::size_t{64} << 20;
inline constexpr std::size_t kMaxRecordToDaemon = std::size_t{16} << 20;

enum class Side { kDaemon, kWorker };

template <class Link>
class RecordChannel final : public Channel {
 public:
  RecordChannel(Side side, Link link)
      : link_(std::move(link)),
        max_outgoing_(side == Side::kDaemon ? kMaxRecordToWorker : kMaxRecordToDaemon),
        max_incoming_(side == Side::kDaemon ? kMaxRecordToDaemon : kMaxRecordToWorker) {
    if constexpr (Link::kReadsCopies) inbox_ = allocate(link_.max_frame());
  }

  Result<std::span<std::byte>> try_reserve(std::size_t bytes) override {
    reserved_ = 0;
    if (bytes == 0 || bytes > max_outgoing_) {
      return Error(ErrorCode::kInvalidArgument,
                   "a record of " + std::to_string(bytes) +
                       " bytes does not fit in the channel; the limit is " +
                       std::to_string(max_outgoing_) +
                       " (records over half of ipc.ring_kib travel in pieces)");
    }
    if (fails(Point::kReserve)) return peer_gone();
    if (auto flushed = flush(); !flushed.ok()) return flushed.error();
    const bool idle = outgoing_size_ == 0;  // small frames may wait in the link, which sends them itself
    std::byte* place = nullptr;
    if (bytes > link_.max_frame()) {
      if (!outgoing_) {
        try {
          outgoing_ = allocate(bytes);
        } catch (const std::bad_alloc&) {
          return Error(ErrorCode::kResourceExhausted,
                       "no memory for a record of " + std::to_string(bytes) + " bytes");
        }
        outgoing_capacity_ = bytes;
        place = outgoing_.get();
      } else if (idle && bytes <= outgoing_capacity_) {
        place = outgoing_.get();  // reserved before and not committed
      } else if (idle) {
        outgoing_.reset();
        return try_reserve(bytes);
      }
    } else if (idle) {
      outgoing_.reset();
      place = link_.reserve(bytes);
      if (place == nullptr && asleep_ && link_.announce_wait(bytes)) place = link_.reserve(bytes);
    }
    BULKHEAD_RETURN_IF_ERROR(check_peer());
    if (place == nullptr) {
      wanted_ = std::min(bytes, link_.max_frame());
      ++stats_.full_stalls;
      return std::span<std::byte>();
    }
    wanted_ = 0;
    reserved_ = bytes;
    if constexpr (fault::kCompiledIn) place_ = place;
    reach(Point::kReserved);
    return std::span<std::byte>(place, bytes);
  }

  Status commit(std::size_t bytes) override {
    if (bytes == 0 || bytes > reserved_) {
      return Error(ErrorCode::kInvalidArgument, "commit of " + std::to_string(bytes) +
                                                    " bytes where " + std::to_string(reserved_) +
                                                    " were reserved");
    }
    if (corrupts(Point::kCommit)) std::memset(place_, 0xa5, bytes);
    const bool large = std::exchange(reserved_, 0) > link_.max_frame();
    ++stats_.records_sent;
    stats_.bytes_sent += bytes;
    if (large) {
      outgoing_size_ = bytes;
      outgoing_sent_ = 0;
      auto flushed = flush();
      if (!flushed.ok()) return flushed.error();
      return {};
    }
    link_.commit(bytes, FrameKind::kWhole);
    return check_peer();
  }

  Result<bool> flush() override {
    BULKHEAD_RETURN_IF_ERROR(check_peer());
    // Bounded, like try_receive, because a peer that reads as fast as this end writes could otherwise keep it here. An
    // end that is asleep sends until the ring is full: only then has it announced that it waits for room, and nothing
    // else would wake it for the rest.
    for (int pieces = 0; outgoing_size_ != 0; ++pieces) {
      if (pieces >= kMaxFramesPerCall && !asleep_) return false;
      const std::size_t left = outgoing_size_ - outgoing_sent_;
      const std::size_t piece = std::min(left, piece_bytes());
      const FrameKind kind = piece < left          ? FrameKind::kMore
                             : outgoing_sent_ == 0 ? FrameKind::kWhole
                                                   : FrameKind::kLast;
      const std::span<const std::byte> bytes(outgoing_.get() + outgoing_sent_, piece);
      if (!link_.put(bytes, kind) &&
          !(asleep_ && link_.announce_wait(piece) && link_.put(bytes, kind))) {
        BULKHEAD_RETURN_IF_ERROR(check_peer());
        return false;
      }
      reach(Point::kPieceSent);
      outgoing_sent_ += piece;
      if (outgoing_sent_ == outgoing_size_) {
        outgoing_size_ = 0;
        outgoing_.reset();
      }
    }
    return link_.flush();
  }

  Result<std::span<const std::byte>> try_receive() override {
    if (!record_.empty()) return record_;
    if (corrupt_) return *corrupt_;
    // flush, so that a dead peer's records come before its error
    if (!link_.flush() || outgoing_size_ != 0) (void)flush();
    // Bounded, so that a stream of pieces can't keep the caller from its other workers.
    for (int frames = 0; frames < kMaxFramesPerCall; ++frames) {
      FrameHeader frame;
      if (!link_.next(frame)) {
        if (auto fault = link_.fault()) return corrupt(*fault);
        if (!link_.dead()) {
          // A caller that only polls must notice the peer's death, too.
          if (!asleep_ && ++empty_polls_ % kPollsPerSocketLook == 0) link_.drain_socket();
          return std::span<const std::byte>();
        }
        // The peer was dead before this look began, so this look sees everything that it had committed.
        if (!link_.next(frame)) {
          if (auto fault = link_.fault()) return corrupt(*fault);
          return peer_gone();
        }
      }
      if (frame.kind == FrameKind::kWhole) {
        if (assembled_ != 0) return corrupt("a whole record lies between the pieces of another");
        if constexpr (Link::kReadsCopies) {
          link_.take(inbox_.get());
          reach(Point::kCopied);
          link_.release();
          record_ = {inbox_.get(), frame.length};
        } else {
          record_ = link_.peek();
          in_place_ = true;
        }
      } else {
        auto status = assemble(frame);
        if (!status.ok()) return status.error();
        if (frame.kind == FrameKind::kMore) continue;
        record_ = {assembly_.get(), std::exchange(assembled_, 0)};
      }
      ++stats_.records_received;
      stats_.bytes_received += record_.size();
      reach(Point::kReceived);
      return record_;
    }
    return std::span<const std::byte>();
  }

  void release() override {
    if (record_.empty()) return;
    record_ = {};
    if (std::exchange(in_place_, false)) {
      link_.release();
    } else if (assembly_ && assembled_ == 0) {
      assembly_.reset();
    }
    reach(Point::kReleased);
  }

  int wait_fd() const override { return link_.wait_fd(); }

  Result<bool> prepare_sleep() override {
    if (!record_.empty() || corrupt_) return false;
    if (outgoing_size_ != 0 || !link_.flush()) {
      // Everything was sent. A caller that waits for that must look again, because nobody would wake it (tests/model:
      // SLEEP_WHEN_OUT).
      if (const auto flushed = flush(); flushed.ok() && *flushed) {
        link_.withdraw_sleep();
        asleep_ = false;
        return false;
      }
    }
    const std::size_t wanted =
        outgoing_size_ != 0 ? std::min(outgoing_size_ - outgoing_sent_, piece_bytes()) : wanted_;
    const bool room = link_.announce_sleep(wanted);
    if (room || link_.readable() || link_.dead() || link_.fault()) {
      if (room) wanted_ = 0;  // report it once
      link_.withdraw_sleep();
      asleep_ = false;
      return false;
    }
    if (!std::exchange(asleep_, true)) ++stats_.sleeps;
    reach(Point::kAsleep);
    return true;
  }

  void finish_sleep() override {
    reach(Point::kWoken);
    link_.withdraw_sleep();
    asleep_ = false;
    reach(Point::kWithdrawn);
    link_.drain_socket();
    reach(Point::kAwake);
  }

  Status send_descriptors(std::span<const int> descriptors, std::uint64_t tag) override {
    return link_.socket().send_descriptors(descriptors, tag);
  }
  std::optional<Descriptors> take_descriptors() override {
    // Not while asleep: reading a doorbell here would leave nothing to wake the sleeper.
    if (!asleep_) link_.drain_socket();
    return link_.socket().take();
  }

  std::size_t waiting_descriptors() const override { return link_.socket().waiting(); }
  bool lost_descriptors() const override { return link_.socket().lost_descriptors(); }

  std::size_t max_record_bytes() const override { return max_outgoing_; }
  ChannelStats stats() const override {
    ChannelStats stats = stats_;
    stats.doorbells_sent = link_.socket().doorbells_sent();
    stats.depth_bytes = link_.depth();
    stats.max_depth_bytes = link_.max_depth();
    return stats;
  }
  void beat(std::uint64_t step) override { link_.beat(step); }
  std::optional<std::uint64_t> last_beat() const override { return link_.last_beat(); }
  std::optional<std::uint64_t> last_beat_ns() const override { return link_.last_beat_ns(); }

 private:
  static constexpr int kMaxFramesPerCall = 64;
  static constexpr std::uint32_t kPollsPerSocketLook = 4096;

  static std::unique_ptr<std::byte[]> allocate(std::size_t bytes) {
    return std::make_unique_for_overwrite<std::byte[]>(bytes);
  }
  // Small enough that one end can fill the ring while the other empties it, and that one call does a bounded amount
  // of work.
  std::size_t piece_bytes() const { return (link_.max_frame() / 4) & ~std::size_t{7}; }

  static Error peer_gone() { return Error(ErrorCode::kUnavailable, "the peer is gone"); }
  Error corrupt(const std::string& what) {
    corrupt_ = Error(ErrorCode::kCorrupt, "the peer broke the channel's rules: " + what);
    return *corrupt_;
  }
  Status check_peer() {
    if (corrupt_) return *corrupt_;
    if (auto fault = link_.fault()) return corrupt(*fault);
    if (link_.dead()) return peer_gone();
    return {};
  }

  Status assemble(const FrameHeader& frame) {
    if (frame.kind == FrameKind::kLast && assembled_ == 0) {
      return corrupt("a record's last piece comes first");
    }
    if (frame.length > max_incoming_ - assembled_) {
      return corrupt("a record in pieces is longer than " + std::to_string(max_incoming_) +
                     " bytes");
    }
    if (!assembly_) {
      try {
        // This reserves address space for the largest record. Pages are used only as they are written, and release()
        // gives all of them back.
        assembly_ = allocate(max_incoming_);
      } catch (const std::bad_alloc&) {
        return Error(ErrorCode::kResourceExhausted, "no memory for a record in pieces");
      }
    }
    link_.take(assembly_.get() + assembled_);
    reach(Point::kPieceReceived);
    assembled_ += frame.length;
    link_.release();
    return {};
  }

  Link link_;
  std::size_t max_outgoing_;
  std::size_t max_incoming_;
  std::optional<Error> corrupt_;  // permanent
  bool asleep_ = false;           // between prepare_sleep() and finish_sleep()
  std::size_t reserved_ = 0;      // bytes that the last try_reserve gave and that are not committed yet
  std::byte* place_ = nullptr;    // the reserved bytes, where faults are compiled in
  std::size_t wanted_ = 0;        // the frame for which the last try_reserve had no room
  std::uint32_t empty_polls_ = 0;
  ChannelStats stats_;

  std::span<const std::byte> record_;  // received and not released
  bool in_place_ = false;              // record_ lies in the link's memory
  std::unique_ptr<std::byte[]> inbox_;
  std::unique_ptr<std::byte[]> assembly_;
  std::size_t assembled_ = 0;

  std::unique_ptr<std::byte[]> outgoing_;  // a large record
  std::size_t outgoing_capacity_ = 0;
  std::size_t outgoing_size_ = 0;  // 0: none committed
  std::size_t outgoing_sent_ = 0;
};

}  // namespace bulkhead::ipc
