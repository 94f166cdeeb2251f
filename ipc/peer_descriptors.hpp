// Closes descriptors that a worker sent, without ever making the daemon wait.
//
// Closing the last copy of a descriptor may take long: a TCP socket with SO_LINGER waits for its
// reader, a file on a network filesystem waits for its server, and a socket closes every descriptor
// in its own queue. A worker chooses which descriptors it sends, so it could choose how long the
// daemon stands still. (This was seen: a lingering socket stopped the daemon's thread for as many
// seconds as the worker had set, even when the daemon never took the socket from the queue.)
//
// So this file sorts them. Descriptors that can't wait (files in memory, pipes, the kernel's
// anonymous ones) are closed at once. Sockets are first told not to linger and emptied. Then they
// and all others are closed on a thread made for this, which may block instead of the daemon.
//
// Descriptors that wait for that thread fill the daemon's descriptor table, which all workers
// share. Therefore each worker has one PeerCloser for all of its lives, with threads and a queue of
// its own, and gets no further life while full() is true. One life can leave behind kMostScmFds of
// a refused packet, kMaxQueuedFds that were not taken, and a vault. So a worker makes the daemon
// hold at most kMostWaiting and those, and some hundreds that a thread took out of sockets.
// Descriptors still in a socket's queue are in no table; a full closer keeps the socket instead.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "config/base/unique_fd.hpp"

namespace bulkhead::ipc {

// What a socket packet may carry in all (the kernel's SCM_MAX_FD): room for fewer would have the
// kernel close the rest for us, on the spot.
inline constexpr std::size_t kMaxScmFds = 253;

// What a recvmsg() brought beside its bytes. Give a worker's descriptors to a PeerCloser: destroying
// them here may block.
struct ReceivedWith {
  std::vector<UniqueFd> fds;
  bool something_else = false;  // credentials, say
};
ReceivedWith received_with(msghdr& message);

// Nothing here waits. Any thread.
class PeerCloser : public std::enable_shared_from_this<PeerCloser> {
 public:
  static constexpr std::size_t kMostThreads = 4;
  static constexpr std::size_t kMostWaiting = 1024;

  // Its threads keep it for as long as they need. `how`: another one in tests.
  using Close = void (*)(UniqueFd);
  static std::shared_ptr<PeerCloser> make(Close how = close_for_good) {
    return std::shared_ptr<PeerCloser>(new PeerCloser(how));
  }

  void close(UniqueFd fd);
  // The same for what may take long to end though it can't wait: memory, whose pages are freed with
  // its last descriptor. Always on another thread, one for all of them.
  void close_lot(std::vector<UniqueFd> fds);
  // All that a recvmsg() brought.
  void close_received(msghdr& message);
  // Ends a connected AF_UNIX socket of ours whose queue a worker may have filled: stops what comes
  // in, gives the queue's descriptors to close(), then closes the socket, which no longer blocks. A
  // fork of the process that made the socket closes its copy only.
  void close_socket(UniqueFd socket, pid_t maker);

  // Descriptors that wait here, or are being closed.
  std::size_t unclosed() const;
  bool full() const { return unclosed() >= kMostWaiting; }

  // What a closing thread does, and may block on: empties a socket and the sockets in its queue,
  // tells it not to linger, closes it.
  static void close_for_good(UniqueFd first);

 private:
  explicit PeerCloser(Close how) : how_(how) {}
  void add(UniqueFd fd);
  bool start();
  void run();

  const Close how_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<UniqueFd> waiting_;
  std::size_t threads_ = 0, idle_ = 0, busy_ = 0;
};

}  // namespace bulkhead::ipc
