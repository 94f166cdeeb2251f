// Makes channels, and implements the helpers over Channel that both programs use.
#include "ipc/channel.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "ipc/fault_points.hpp"
#include "ipc/peer_socket.hpp"
#include "ipc/transports.hpp"

namespace bulkhead::ipc {
namespace {

using Clock = std::chrono::steady_clock;

template <typename Message>
Result<bool> try_send_message(Channel& channel, const Message& message) {
  BULKHEAD_TRY(const std::span<std::byte> record, channel.try_reserve(encoded_bound(message)));
  if (record.empty()) return false;
  BULKHEAD_TRY(const std::size_t bytes, encode(message, record));
  BULKHEAD_RETURN_IF_ERROR(channel.commit(bytes));
  return true;
}

// Sleeps at most until `deadline`, or until the peer has news.
Status sleep_on(Channel& channel, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd wait{channel.wait_fd(), POLLIN, 0};
  if (::poll(&wait, 1, static_cast<int>(std::clamp<long long>(left, 0, INT_MAX))) < 0 &&
      errno != EINTR) {
    const int error_number = errno;
    channel.finish_sleep();
    return errno_error(ErrorCode::kInternal, "poll", error_number);
  }
  channel.finish_sleep();
  return {};
}

// Calls `done` (which returns a Result<bool>) until it is true. Returns false if the deadline passed.
template <typename Done>
Result<bool> wait_for_room(Channel& channel, Clock::time_point deadline, Done done) {
  for (;;) {
    BULKHEAD_TRY(const bool finished, done());
    if (finished) return true;
    if (Clock::now() >= deadline) return false;
    BULKHEAD_TRY(const bool asleep, channel.prepare_sleep());
    if (asleep) {
      BULKHEAD_RETURN_IF_ERROR(sleep_on(channel, deadline));
      continue;
    }
    // Either there is room now, or a record waits that this function must not receive, and it keeps the channel from
    // sleeping.
    BULKHEAD_TRY(const bool now, done());
    if (now) return true;
    ::usleep(100);
  }
}

template <typename Message>
Status send_message(Channel& channel, const Message& message, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  BULKHEAD_TRY(const bool sent, wait_for_room(channel, deadline,
                                              [&] { return try_send_message(channel, message); }));
  if (!sent) {
    return Error(ErrorCode::kDeadlineExceeded, "the peer made no room for a message within " +
                                                   std::to_string(timeout.count()) + " ms");
  }
  auto flushed = wait_for_room(channel, deadline, [&] { return channel.flush(); });
  if (!flushed.ok()) return flushed.error();
  return {};
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

Status set_close_on_exec(int fd) {
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) return {};
  return errno_error(ErrorCode::kInvalidArgument, "descriptor " + std::to_string(fd), errno);
}

// Takes over a standard stream: its socket moves to a high descriptor, and `replacement` takes its place.
Result<UniqueFd> move_away(int fd, int replacement) {
  UniqueFd moved(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!moved.valid() || ::dup2(replacement, fd) < 0) {
    return errno_error(ErrorCode::kInternal, "taking over descriptor " + std::to_string(fd), errno);
  }
  return moved;
}

Result<std::unique_ptr<Channel>> open_stdio_worker(const InheritedDescriptors& inherited,
                                                   PeerSocket socket, std::uint64_t ring_bytes) {
  BULKHEAD_RETURN_IF_ERROR(check_socket(inherited.input, SOCK_STREAM, "standard input"));
  BULKHEAD_RETURN_IF_ERROR(check_socket(inherited.output, SOCK_STREAM, "standard output"));
  UniqueFd input, output;
  if (inherited.input == STDIN_FILENO) {
    UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null.valid()) return errno_error(ErrorCode::kInternal, "open /dev/null", errno);
    BULKHEAD_TRY(input, move_away(STDIN_FILENO, null.get()));
  } else {
    input.reset(inherited.input);
    BULKHEAD_RETURN_IF_ERROR(set_close_on_exec(input.get()));
  }
  if (inherited.output == STDOUT_FILENO) {
    BULKHEAD_TRY(output, move_away(STDOUT_FILENO, STDERR_FILENO));
  } else {
    output.reset(inherited.output);
    BULKHEAD_RETURN_IF_ERROR(set_close_on_exec(output.get()));
  }
  reach(Point::kStreamsMoved);
  return make_stdio_channel(Side::kWorker, std::move(input), std::move(output), std::move(socket),
                            ring_bytes);
}

Result<UniqueFd> duplicate(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!copy.valid()) return errno_error(ErrorCode::kResourceExhausted, "dup", errno);
  return copy;
}

}  // namespace

Status send(Channel& channel, const ToWorker& message, std::chrono::milliseconds timeout) {
  return send_message(channel, message, timeout);
}
Status send(Channel& channel, const FromWorker& message, std::chrono::milliseconds timeout) {
  return send_message(channel, message, timeout);
}
Status send(Channel& channel, const TokenBatch& batch, std::chrono::milliseconds timeout) {
  return send_message(channel, batch, timeout);
}

Result<bool> try_send(Channel& channel, const ToWorker& message) {
  return try_send_message(channel, message);
}
Result<bool> try_send(Channel& channel, const FromWorker& message) {
  return try_send_message(channel, message);
}
Result<bool> try_send(Channel& channel, const TokenBatch& batch) {
  return try_send_message(channel, batch);
}

Result<bool> wait_readable(Channel& channel, std::chrono::microseconds spin,
                           std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  const auto deadline = start + timeout;
  const auto spin_until = std::min(start + spin, deadline);
  for (;;) {
    BULKHEAD_TRY(const std::span<const std::byte> record, channel.try_receive());
    if (!record.empty()) return true;
    if (Clock::now() >= spin_until) break;
    pause_cpu();
  }
  for (;;) {
    BULKHEAD_TRY(const bool asleep, channel.prepare_sleep());
    const bool last = Clock::now() >= deadline;
    if (asleep) BULKHEAD_RETURN_IF_ERROR(sleep_on(channel, deadline));
    BULKHEAD_TRY(const std::span<const std::byte> record, channel.try_receive());
    if (!record.empty()) return true;
    if (last) return false;
  }
}

Result<ChannelPair> make_channel_pair(const config::IpcSettings& settings,
                                      std::shared_ptr<PeerCloser> closer) {
  BULKHEAD_TRY(const std::uint64_t ring_bytes, checked_ring_bytes(settings.ring_kib));
  BULKHEAD_TRY(SocketPair sockets, make_socket_pair(SOCK_SEQPACKET));
  reach(Point::kSocketsMade);
  PeerSocket socket(std::move(sockets.ours), closer ? std::move(closer) : PeerCloser::make());
  ChannelPair pair;
  pair.worker_socket = std::move(sockets.theirs);
  if (settings.transport == config::Transport::kShm) {
    BULKHEAD_TRY(Region region, Region::create(settings.region, ring_bytes, pair.worker_region));
    pair.daemon = make_shm_channel(Side::kDaemon, std::move(region), std::move(socket));
    reach(Point::kPairMade);
    return pair;
  }
  BULKHEAD_TRY(SocketPair streams, make_socket_pair(SOCK_STREAM));
  BULKHEAD_TRY(UniqueFd output, duplicate(streams.ours));
  BULKHEAD_TRY(pair.worker_stdout, duplicate(streams.theirs));
  pair.worker_stdin = std::move(streams.theirs);
  BULKHEAD_TRY(pair.daemon, make_stdio_channel(Side::kDaemon, std::move(streams.ours),
                                               std::move(output), std::move(socket), ring_bytes));
  reach(Point::kPairMade);
  return pair;
}

Result<std::unique_ptr<Channel>> open_worker_channel(const InheritedDescriptors& inherited,
                                                     const config::IpcSettings& settings) {
  UniqueFd socket_fd(inherited.socket);
  UniqueFd region_fd(inherited.region);
  reach(Point::kOpen);
  BULKHEAD_RETURN_IF_ERROR(check_socket(socket_fd.get(), SOCK_SEQPACKET, "the channel"));
  BULKHEAD_RETURN_IF_ERROR(set_close_on_exec(socket_fd.get()));
  PeerSocket socket(std::move(socket_fd), PeerCloser::make());
  std::unique_ptr<Channel> channel;
  if (region_fd.valid()) {
    // The mapping outlives the descriptor.
    BULKHEAD_TRY(Region region, Region::open(region_fd.get()));
    channel = make_shm_channel(Side::kWorker, std::move(region), std::move(socket));
  } else {
    BULKHEAD_TRY(const std::uint64_t ring_bytes, checked_ring_bytes(settings.ring_kib));
    BULKHEAD_TRY(channel, open_stdio_worker(inherited, std::move(socket), ring_bytes));
  }
  reach(Point::kOpened);
  return channel;
}

}  // namespace bulkhead::ipc
