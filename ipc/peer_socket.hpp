// The AF_UNIX SOCK_SEQPACKET socketpair beside every channel. It carries doorbells and descriptors, and shows when
// the peer dies.
//
//   1 byte, no descriptors               a doorbell
//   8 bytes, 1..kMaxPacketFds of them    descriptors with a tag (SCM_RIGHTS)
//   end of file, reset                   the peer is gone
//
// No function here blocks, whatever the peer does with its end: every send and receive is MSG_DONTWAIT, and each end
// has its own socket flags (unlike an eventfd). A full socket buffer counts as success, because the peer then has
// doorbells to read and will wake up. One call reads a bounded number of packets; the remaining ones keep the
// descriptor readable.
//
// If this process may open no more files, the kernel drops a packet's descriptors. The peer is not to blame for that,
// so it only loses its descriptors: this end drops those that wait to be taken, which may belong to the others, and
// all that come later (lost_descriptors()).
//
// These violations end the peer: a packet of any other size; descriptors with a doorbell, or a tag without
// descriptors; more than kMaxPacketFds descriptors in a packet, or more than kMaxQueuedFds that are not taken yet;
// more doorbells than this end has slept (the ring allows one per sleep, so more can only be meant to keep this end
// busy). An empty packet can't be told from end of file, so it counts as end of file. This end closes the descriptors
// of a refused packet without waiting (peer_descriptors.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "ipc/channel.hpp"
#include "ipc/peer_descriptors.hpp"

namespace bulkhead::ipc {

inline constexpr std::size_t kMaxPacketFds = 64;
inline constexpr std::size_t kMaxQueuedFds = 256;
inline constexpr int kMaxPacketsPerCall = 64;
inline constexpr std::size_t kMaxDroppedPackets = 65536;  // with descriptors, after some were lost

class PeerSocket {
 public:
  PeerSocket(UniqueFd fd, std::shared_ptr<PeerCloser> closer)
      : fd_(std::move(fd)), closer_(std::move(closer)) {}
  PeerSocket(PeerSocket&&) = default;
  ~PeerSocket() {
    if (closer_) closer_->close_socket(std::move(fd_), maker_);
  }

  int fd() const { return fd_.get(); }
  PeerCloser& closer() { return *closer_; }
  bool dead() const { return dead_; }
  // The reason to end the peer; empty while the peer follows the rules.
  const std::string& violation() const { return violation_; }
  // Returns whether this process had no room for descriptors that the peer sent.
  bool lost_descriptors() const { return lost_descriptors_; }
  std::uint64_t doorbells_sent() const { return doorbells_sent_; }

  void ring();
  Status send_descriptors(std::span<const int> descriptors, std::uint64_t tag);

  // Reads packets until there are none left, at most kMaxPacketsPerCall. `allowed_doorbells` is how many doorbells
  // the peer may have sent since the start.
  void drain(std::uint64_t allowed_doorbells);
  std::optional<Channel::Descriptors> take();
  std::size_t waiting() const { return queued_fds_; }

 private:
  void lost(int error_number);
  void lose_descriptors();
  void take_packet(std::size_t bytes, Channel::Descriptors received,
                   std::uint64_t allowed_doorbells);

  UniqueFd fd_;
  std::shared_ptr<PeerCloser> closer_;  // null once it was moved away
  pid_t maker_ = ::getpid();
  bool dead_ = false;
  std::string violation_;
  std::uint64_t doorbells_sent_ = 0;
  std::uint64_t doorbells_received_ = 0;
  std::deque<Channel::Descriptors> queue_;
  std::size_t queued_fds_ = 0;
  bool lost_descriptors_ = false;
  std::size_t dropped_packets_ = 0;
};

// Both ends of a new pair, close-on-exec. `type`: SOCK_SEQPACKET or SOCK_STREAM.
struct SocketPair {
  UniqueFd ours, theirs;
};
Result<SocketPair> make_socket_pair(int type);

// kInvalidArgument unless `fd` is a connected AF_UNIX socket of `type`. The error calls it `what`.
Status check_socket(int fd, int type, const char* what);

}  // namespace bulkhead::ipc
