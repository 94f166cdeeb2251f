// The shm transport: two rings in one region, doorbells on the socket.
#include <ctime>
#include <limits>

#include "ipc/transports.hpp"

namespace bulkhead::ipc {
namespace {

std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// The worker works in the ring itself; the daemon works in its outbox and in RecordChannel's inbox.
template <Side kSide>
class ShmLink {
 public:
  static constexpr bool kReadsCopies = kSide == Side::kDaemon;

  ShmLink(Region region, PeerSocket socket)
      : region_(std::move(region)),
        socket_(std::move(socket)),
        producer_(kSide == Side::kDaemon ? region_.header().to_worker : region_.header().to_daemon,
                  kSide == Side::kDaemon ? region_.to_worker_data() : region_.to_daemon_data(),
                  region_.ring_bytes()),
        consumer_(kSide == Side::kDaemon ? region_.header().to_daemon : region_.header().to_worker,
                  kSide == Side::kDaemon ? region_.to_daemon_data() : region_.to_worker_data(),
                  region_.ring_bytes()) {
    if constexpr (kSide == Side::kDaemon) {
      outbox_ = std::make_unique_for_overwrite<std::byte[]>(max_frame());
    }
  }

  std::size_t max_frame() const { return max_payload(region_.ring_bytes()); }

  // ---- sending ----
  std::byte* reserve(std::size_t bytes) {
    std::byte* place = producer_.reserve(bytes);
    if constexpr (kSide == Side::kDaemon) return place == nullptr ? nullptr : outbox_.get();
    return place;
  }
  void commit(std::size_t bytes, FrameKind kind) {
    if constexpr (kSide == Side::kDaemon) {
      producer_.put({outbox_.get(), bytes}, kind);  // has room, because the ring can only have become emptier
    } else {
      producer_.commit(bytes, kind);
    }
    if (producer_.must_ring()) socket_.ring();
  }
  bool put(std::span<const std::byte> payload, FrameKind kind) {
    if (!producer_.put(payload, kind)) return false;
    if (producer_.must_ring()) socket_.ring();
    return true;
  }
  bool flush() { return true; }

  // ---- receiving ----
  bool next(FrameHeader& frame) {
    if (!consumer_.next(frame)) return false;
    if (consumer_.depth() > max_depth_) max_depth_ = consumer_.depth();
    return true;
  }
  std::span<const std::byte> peek() const { return consumer_.peek(); }
  void take(std::byte* into) const { consumer_.take(into); }
  void release() {
    consumer_.release();
    if (consumer_.must_ring()) socket_.ring();
  }

  // ---- sleeping ----
  // Returns true if there is room for `wanted` bytes after all (0: none are wanted).
  bool announce_sleep(std::size_t wanted) {
    readable_ = consumer_.announce_sleep();
    return wanted != 0 && producer_.announce_wait(wanted);
  }
  bool announce_wait(std::size_t wanted) { return producer_.announce_wait(wanted); }
  bool readable() const { return readable_; }  // as announce_sleep() saw it
  void withdraw_sleep() {
    consumer_.withdraw_sleep();
    producer_.withdraw_wait();
  }
  int wait_fd() const { return socket_.fd(); }
  void drain_socket() { socket_.drain(consumer_.sleeps_announced() + producer_.waits_announced()); }

  // ---- the peer ----
  bool dead() const { return socket_.dead(); }
  std::optional<std::string> fault() const {
    if (producer_.fault() != RingFault::kNone) {
      return std::string("the ring it reads from: ") + to_string(producer_.fault());
    }
    if (consumer_.fault() != RingFault::kNone) {
      return std::string("the ring it writes to: ") + to_string(consumer_.fault());
    }
    if (!socket_.violation().empty()) return socket_.violation();
    return std::nullopt;
  }
  PeerSocket& socket() { return socket_; }
  const PeerSocket& socket() const { return socket_; }
  std::uint64_t depth() const { return consumer_.depth(); }
  std::uint64_t max_depth() const { return max_depth_; }

  void beat(std::uint64_t step) {
    RegionHeader& header = region_.header();
    header.beat_step.store(step, std::memory_order_relaxed);
    header.beat_ns.store(monotonic_ns(), std::memory_order_relaxed);
  }
  std::optional<std::uint64_t> last_beat() const {
    return region_.header().beat_step.load(std::memory_order_relaxed);
  }
  // A time in the future would hide a hang, so the result is never later than now.
  std::optional<std::uint64_t> last_beat_ns() const {
    return std::min(region_.header().beat_ns.load(std::memory_order_relaxed), monotonic_ns());
  }

 private:
  Region region_;
  PeerSocket socket_;
  RingProducer producer_;
  RingConsumer consumer_;
  std::unique_ptr<std::byte[]> outbox_;
  bool readable_ = false;
  std::uint64_t max_depth_ = 0;
};

}  // namespace

std::unique_ptr<Channel> make_shm_channel(Side side, Region region, PeerSocket socket) {
  if (side == Side::kDaemon) {
    using Link = ShmLink<Side::kDaemon>;
    return std::make_unique<RecordChannel<Link>>(side, Link(std::move(region), std::move(socket)));
  }
  using Link = ShmLink<Side::kWorker>;
  return std::make_unique<RecordChannel<Link>>(side, Link(std::move(region), std::move(socket)));
}

}  // namespace bulkhead::ipc
