// Closes descriptors that a worker sent, without ever making the daemon wait.
//
// Closing the last copy of a descriptor may take long: a TCP socket with SO_LINGER waits for its reader, a file on a
// network filesystem waits for its server, and a socket closes every descriptor in its own queue. A worker chooses
// which descriptors it sends, so without this file it could choose how long the daemon blocks. (This was seen: a
// lingering socket stopped the daemon's thread for as many seconds as the worker had set, even when the daemon never
// took the socket from the queue.)
//
// This file therefore sorts the descriptors. It closes those that can't block (small files in memory, pipes, the
// kernel's anonymous ones) at once. It first empties sockets and tells them not to linger. A separate thread, which
// may block in place of the daemon, then closes sockets and all other descriptors.
//
// Descriptors that wait for that thread occupy the daemon's descriptor table, which all workers share. Therefore each
// worker has one PeerCloser, with its own threads and queue, for all of its lives, and the daemon does not restart
// the worker while full() is true. One life can leave behind the kMostScmFds of a refused packet, kMaxQueuedFds that
// were not taken, and a vault. So a worker makes the daemon hold at most kMostWaiting descriptors, plus those of one
// life, plus some hundreds that a thread took out of sockets. Descriptors that are still in a socket's queue are in
// no table; a closer that is full keeps the socket instead.
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

// The most descriptors that a socket packet may carry (the kernel's SCM_MAX_FD). With less room the kernel would
// close the rest itself, at once, and might block.
inline constexpr std::size_t kMaxScmFds = 253;

// What a recvmsg() received besides bytes. Give a worker's descriptors to a PeerCloser, because destroying them here
// may block. Without memory for them, received_with() closes them and throws std::bad_alloc.
struct ReceivedWith {
  std::vector<UniqueFd> fds;
  bool something_else = false;  // such as credentials
};
ReceivedWith received_with(msghdr& message);

// No function here waits, unless there is neither a thread nor memory to close a descriptor elsewhere. Any thread.
class PeerCloser : public std::enable_shared_from_this<PeerCloser> {
 public:
  static constexpr std::size_t kMostThreads = 4;
  static constexpr std::size_t kMostWaiting = 1024;

  // The threads keep the object alive while they need it. Tests pass another `how`.
  using Close = void (*)(UniqueFd);
  static std::shared_ptr<PeerCloser> make(Close how = close_for_good) {
    return std::shared_ptr<PeerCloser>(new PeerCloser(how));
  }

  void close(UniqueFd fd);
  // The same for descriptors that can't block but may take long to close: memory, whose pages are freed with its last
  // descriptor. One separate thread closes all of them.
  void close_lot(std::vector<UniqueFd> fds);
  // Closes everything that a recvmsg() received.
  void close_received(msghdr& message);
  // Closes one of our connected AF_UNIX sockets whose queue a worker may have filled: it stops the reception, gives
  // the queue's descriptors to close(), and then closes the socket, which no longer blocks. A fork of the process
  // that made the socket closes only its own copy.
  void close_socket(UniqueFd socket, pid_t maker);

  // Returns how many descriptors wait here or are being closed.
  std::size_t unclosed() const;
  bool full() const { return unclosed() >= kMostWaiting; }

  // What a closing thread does, and what may block it: it empties a socket and the sockets in its queue, tells it not
  // to linger, and closes it.
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
