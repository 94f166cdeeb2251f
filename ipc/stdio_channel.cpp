// The stdio transport: the ring's frames, one after another, on the stream sockets that are the worker's standard
// input and output. They are stream sockets and not pipes, because a send to a socket can be told not to block and
// not to raise SIGPIPE, whatever the peer does.
//
//   +0 uint32 length   +4 uint32 kind (whole | more | last)   +8 payload, zeros to a multiple of 8
//
// There is one buffer in each direction, as large as a ring and allocated at the start. Frames are read in place in
// the input buffer, because it is private memory. There are no doorbells, because the kernel wakes readers itself;
// the socketpair beside the streams shows the peer's death and carries descriptors.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "ipc/fault_points.hpp"
#include "ipc/transports.hpp"

namespace bulkhead::ipc {
namespace {

constexpr int kMaxReadsPerCall = 64;

class StdioLink {
 public:
  static constexpr bool kReadsCopies = false;

  StdioLink(UniqueFd input, UniqueFd output, PeerSocket socket, UniqueFd epoll,
            std::uint64_t ring_bytes)
      : input_(std::move(input)),
        output_(std::move(output)),
        socket_(std::move(socket)),
        epoll_(std::move(epoll)),
        capacity_(ring_bytes),
        in_(std::make_unique_for_overwrite<std::byte[]>(capacity_)),
        out_(std::make_unique_for_overwrite<std::byte[]>(capacity_)) {}
  StdioLink(StdioLink&&) = default;
  ~StdioLink() {
    output_.reset();
    if (input_.valid()) socket_.closer().close_socket(std::move(input_), maker_);
  }

  Status watch() {
    const auto add = [&](int fd, std::uint32_t events) {
      epoll_event event{};
      event.events = events;
      return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
    };
    if (!add(input_.get(), EPOLLIN) || !add(socket_.fd(), EPOLLIN) || !add(output_.get(), 0)) {
      return errno_error(ErrorCode::kInternal, "watching the worker's streams", errno);
    }
    return {};
  }

  std::size_t max_frame() const { return max_payload(capacity_); }

  // ---- sending: [out_begin_, out_end_) is committed and not sent ----
  std::byte* reserve(std::size_t bytes) {
    // The buffer's contents move only here. Reserved bytes stay in place until they are committed.
    if (flush()) {
      out_begin_ = out_end_ = 0;
    } else if (capacity_ - out_end_ < frame_bytes(bytes)) {
      std::memmove(out_.get(), out_.get() + out_begin_, out_end_ - out_begin_);
      out_end_ -= out_begin_;
      out_begin_ = 0;
    }
    if (capacity_ - out_end_ < frame_bytes(bytes)) return nullptr;
    return out_.get() + out_end_ + kFrameHeaderBytes;
  }
  void commit(std::size_t bytes, FrameKind kind) {
    const FrameHeader header{static_cast<std::uint32_t>(bytes), kind};
    std::byte* frame = out_.get() + out_end_;
    std::memcpy(frame, &header, sizeof header);
    std::memset(frame + kFrameHeaderBytes + bytes, 0, align8(bytes) - bytes);
    out_end_ += frame_bytes(bytes);
    flush();
  }
  bool put(std::span<const std::byte> payload, FrameKind kind) {
    std::byte* place = reserve(payload.size());
    if (place == nullptr) return false;
    std::memcpy(place, payload.data(), payload.size());
    reach(Point::kPayloadCopied);
    commit(payload.size(), kind);
    return true;
  }
  // Returns true if nothing is left to send.
  bool flush() {
    while (out_begin_ != out_end_ && !dead_) {
      die_in_a_frame();
      reach(Point::kStreamSend);
      const ssize_t sent = ::send(output_.get(), out_.get() + out_begin_, out_end_ - out_begin_,
                                  MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) {
        reach(Point::kStreamSent);
        out_begin_ += static_cast<std::size_t>(sent);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        reach(Point::kStreamFull);
        return false;
      } else if (errno != EINTR) {
        dead_ = true;
      }
    }
    return out_begin_ == out_end_;
  }

  // ---- receiving: [in_begin_, in_end_) is read and not released ----
  bool next(FrameHeader& frame) {
    // Bounded, so that a peer that sends byte by byte can't keep this end here. The rest that a dead peer sent is in
    // the socket's buffer and arrives in a few reads.
    for (int reads = 0; !parse(frame); ++reads) {
      if (fault_ != RingFault::kNone || reads == kMaxReadsPerCall || !fill() || descriptors_came_) {
        return false;
      }
    }
    return true;
  }
  std::span<const std::byte> peek() const {
    return {in_.get() + in_begin_ + kFrameHeaderBytes, held_.length};
  }
  void take(std::byte* into) const { std::memcpy(into, peek().data(), held_.length); }
  void release() {
    in_begin_ += frame_bytes(held_.length);
    if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
  }

  // ---- sleeping ----
  bool announce_sleep(std::size_t wanted) {
    FrameHeader frame;
    readable_ = next(frame);
    return announce_wait(wanted);
  }
  bool announce_wait(std::size_t wanted) {
    if (wanted != 0 && reserve(wanted) != nullptr) return true;
    const bool pending = out_begin_ != out_end_;
    if (pending != watching_output_) {
      epoll_event event{};
      event.events = pending ? static_cast<std::uint32_t>(EPOLLOUT) : 0U;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, output_.get(), &event);
      watching_output_ = pending;
    }
    return false;
  }
  bool readable() const { return readable_; }
  void withdraw_sleep() {}
  int wait_fd() const { return epoll_.get(); }
  void drain_socket() { socket_.drain(0); }

  // ---- the peer ----
  bool dead() const { return dead_ || socket_.dead(); }
  std::optional<std::string> fault() const {
    if (descriptors_came_) return std::string("its stream: descriptors came with it");
    if (fault_ != RingFault::kNone) return std::string("its stream: ") + to_string(fault_);
    if (!socket_.violation().empty()) return socket_.violation();
    return std::nullopt;
  }
  PeerSocket& socket() { return socket_; }
  const PeerSocket& socket() const { return socket_; }
  std::uint64_t depth() const { return in_end_ - in_begin_; }
  std::uint64_t max_depth() const { return max_depth_; }

  void beat(std::uint64_t) {}
  std::optional<std::uint64_t> last_beat() const { return std::nullopt; }
  std::optional<std::uint64_t> last_beat_ns() const { return std::nullopt; }

 private:
  // For tests: the process dies after it has sent half a frame.
  void die_in_a_frame() {
    const auto at = [&](Point point, std::size_t bytes) {
      if (fault::due(name_of(point))) {
        (void)::send(output_.get(), out_.get() + out_begin_, std::min(bytes, out_end_ - out_begin_),
                     MSG_DONTWAIT | MSG_NOSIGNAL);
      }
      reach(point);
    };
    at(Point::kHalfHeaderSent, kFrameHeaderBytes / 2);
    at(Point::kHalfPayloadSent, kFrameHeaderBytes + 3);
  }
  // Returns whether there is a whole frame at in_begin_.
  bool parse(FrameHeader& frame) {
    const std::size_t have = in_end_ - in_begin_;
    if (have < kFrameHeaderBytes || fault_ != RingFault::kNone) return false;
    std::memcpy(&held_, in_.get() + in_begin_, sizeof held_);
    if (held_.length == 0 || held_.length > max_frame()) {
      fault_ = RingFault::kLength;
    } else if (held_.kind != FrameKind::kWhole && held_.kind != FrameKind::kMore &&
               held_.kind != FrameKind::kLast) {
      fault_ = RingFault::kKind;
    }
    if (fault_ != RingFault::kNone || have < frame_bytes(held_.length)) return false;
    frame = held_;
    return true;
  }
  // Reads once. The largest frame takes half the buffer, so there is room after the rest is moved to the front.
  bool fill() {
    if (in_begin_ != 0 && capacity_ - in_end_ < capacity_ / 2) {
      std::memmove(in_.get(), in_.get() + in_begin_, in_end_ - in_begin_);
      in_end_ -= in_begin_;
      in_begin_ = 0;
    }
    for (;;) {
      const ssize_t got = read(in_.get() + in_end_, capacity_ - in_end_);
      if (got > 0) {
        reach(Point::kStreamRead);
        in_end_ += static_cast<std::size_t>(got);
        max_depth_ = std::max<std::uint64_t>(max_depth_, in_end_ - in_begin_);
        return true;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
      dead_ = true;  // end of file, or a reset by a peer that had not read everything
      return false;
    }
  }

  // Descriptors may come on any AF_UNIX socket. If this function did not ask for them, the kernel would close them
  // here, and closing may block.
  ssize_t read(std::byte* into, std::size_t bytes) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxScmFds)];
    iovec vector{into, bytes};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(input_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0 && message.msg_controllen != 0) {
      descriptors_came_ = true;
      socket_.closer().close_received(message);
    }
    return got;
  }

  UniqueFd input_, output_;
  pid_t maker_ = ::getpid();
  PeerSocket socket_;
  UniqueFd epoll_;  // readable when any of the other descriptors has news
  std::size_t capacity_;
  std::unique_ptr<std::byte[]> in_, out_;
  std::size_t in_begin_ = 0, in_end_ = 0;
  std::size_t out_begin_ = 0, out_end_ = 0;
  FrameHeader held_{};
  bool dead_ = false;
  bool readable_ = false;
  bool watching_output_ = false;
  bool descriptors_came_ = false;
  RingFault fault_ = RingFault::kNone;
  std::uint64_t max_depth_ = 0;
};

}  // namespace

Result<std::unique_ptr<Channel>> make_stdio_channel(Side side, UniqueFd input, UniqueFd output,
                                                    PeerSocket socket, std::uint64_t ring_bytes) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_error(ErrorCode::kResourceExhausted, "epoll_create1", errno);
  StdioLink link(std::move(input), std::move(output), std::move(socket), std::move(epoll),
                 ring_bytes);
  BULKHEAD_RETURN_IF_ERROR(link.watch());
  return std::unique_ptr<Channel>(
      std::make_unique<RecordChannel<StdioLink>>(side, std::move(link)));
}

}  // namespace bulkhead::ipc
