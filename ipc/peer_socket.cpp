#include "ipc/peer_socket.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "ipc/fault_points.hpp"

namespace bulkhead::ipc {

Channel::Descriptors::~Descriptors() {
  for (UniqueFd& fd : fds)
    closer_->close(std::move(fd));
}

void PeerSocket::ring() {
  const char byte = 1;
  ++doorbells_sent_;
  reach(Point::kRing);
  if (::send(fd_.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) lost(errno);
  reach(Point::kRung);
}

void PeerSocket::lost(int error_number) {
  if (error_number == EPIPE || error_number == ECONNRESET || error_number == ENOTCONN) dead_ = true;
}

Status PeerSocket::send_descriptors(std::span<const int> descriptors, std::uint64_t tag) {
  if (descriptors.empty() || descriptors.size() > kMaxPacketFds) {
    return Error(ErrorCode::kInvalidArgument, "send_descriptors: 1 to " +
                                                  std::to_string(kMaxPacketFds) + ", not " +
                                                  std::to_string(descriptors.size()));
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)] = {};
  iovec payload{&tag, sizeof tag};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  reach(Point::kSendDescriptors);
  if (::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
    reach(Point::kDescriptorsSent);
    return {};
  }
  const int error_number = errno;
  lost(error_number);
  if (dead_) return Error(ErrorCode::kUnavailable, "send_descriptors: the peer is gone");
  if (error_number == EAGAIN) {
    return Error(ErrorCode::kResourceExhausted,
                 "send_descriptors: the peer has not read the earlier ones; try again later");
  }
  if (error_number == ETOOMANYREFS) {
    return Error(ErrorCode::kResourceExhausted,
                 "send_descriptors: this user's processes have as many on the way as one may have "
                 "open (RLIMIT_NOFILE); try again later");
  }
  return errno_error(ErrorCode::kInvalidArgument, "send_descriptors", error_number);
}

void PeerSocket::drain(std::uint64_t allowed_doorbells) {
  for (int packet = 0; packet < kMaxPacketsPerCall && !dead_ && violation_.empty();) {
    std::uint64_t payload[2] = {};  // one byte more than allowed, so that an oversized packet is noticed
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxScmFds)];
    iovec vector{payload, sizeof payload};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t size = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == ECONNRESET) {  // reported once, before packets that are still there
        ++packet;
        continue;
      }
      dead_ = true;
      return;
    }
    ++packet;
    if (size > 0) reach(Point::kPacketReceived);
    ReceivedWith with = received_with(message);
    Channel::Descriptors received(closer_);  // owns them, so that every way out closes them
    received.tag = payload[0];
    received.fds = std::move(with.fds);
    if (size == 0) {
      dead_ = true;
    } else if ((message.msg_flags & MSG_CTRUNC) != 0) {
      lose_descriptors();
    } else if (received.fds.size() > kMaxPacketFds) {
      violation_ = "a packet on the socket carries " + std::to_string(received.fds.size()) +
                   " descriptors; " + std::to_string(kMaxPacketFds) + " are allowed";
    } else if (with.something_else || (message.msg_flags & MSG_TRUNC) != 0) {
      violation_ = "a packet on the socket is too long or carries something unknown";
    } else {
      take_packet(static_cast<std::size_t>(size), std::move(received), allowed_doorbells);
    }
  }
}

void PeerSocket::lose_descriptors() {
  lost_descriptors_ = true;
  queue_.clear();
  queued_fds_ = 0;
  if (++dropped_packets_ > kMaxDroppedPackets)
    violation_ = "descriptors without end, for which this process has no room";
}

// A doorbell, or descriptors with their tag.
void PeerSocket::take_packet(std::size_t bytes, Channel::Descriptors received,
                             std::uint64_t allowed_doorbells) {
  if (bytes == 1 && received.fds.empty()) {
    if (++doorbells_received_ > allowed_doorbells) {
      violation_ = "it rang " + std::to_string(doorbells_received_) + " times for " +
                   std::to_string(allowed_doorbells) + " sleeps";
    }
  } else if (bytes == sizeof(std::uint64_t) && !received.fds.empty()) {
    if (lost_descriptors_) {
      lose_descriptors();
    } else if (queued_fds_ + received.fds.size() > kMaxQueuedFds) {
      violation_ = "more than " + std::to_string(kMaxQueuedFds) + " descriptors wait to be taken";
    } else {
      queued_fds_ += received.fds.size();
      queue_.push_back(std::move(received));
    }
  } else {
    violation_ = "a packet on the socket has " + std::to_string(bytes) + " bytes and " +
                 std::to_string(received.fds.size()) + " descriptors";
  }
}

std::optional<Channel::Descriptors> PeerSocket::take() {
  if (queue_.empty()) return std::nullopt;
  Channel::Descriptors first = std::move(queue_.front());
  queue_.pop_front();
  queued_fds_ -= first.fds.size();
  reach(Point::kDescriptorsTaken);
  return first;
}

Result<SocketPair> make_socket_pair(int type) {
  int fds[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) != 0) {
    return errno_error(ErrorCode::kResourceExhausted, "socketpair", errno);
  }
  return SocketPair{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Status check_socket(int fd, int type, const char* what) {
  int domain = 0, actual = 0;
  socklen_t length = sizeof(int);
  if (fd < 0 || ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &actual, &length) != 0 || domain != AF_UNIX ||
      actual != type) {
    return Error(ErrorCode::kInvalidArgument, std::string(what) + " (descriptor " +
                                                  std::to_string(fd) +
                                                  ") is not the socket that the daemon passes on; "
                                                  "a worker is started by bulkheadd, not by hand");
  }
  return {};
}

}  // namespace bulkhead::ipc
