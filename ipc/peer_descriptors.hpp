// Closing descriptors that a worker sent.
//
// Whoever closes the last copy of a descriptor does what closing means for it, however long that
// takes: a TCP socket with SO_LINGER waits for its reader, a file of a mounted filesystem waits for
// a server, a socket does the same for every descriptor in its own queue. A worker chooses what it
// sends, and so would choose how long the daemon stands still. (Seen: a lingering socket stopped the
// daemon's thread for as many seconds as the worker had set, even when it was never taken from the
// queue but went with it.)
//
// So: what can't wait (files in memory, pipes, the kernel's anonymous ones) is closed where it
// stands. Sockets are first told not to linger and emptied, and closed with all the rest on a thread
// made for it, which may stand still in the daemon's stead. What comes then waits for it, in this
// process's descriptor table, and that is everybody's: a worker has one PeerCloser for all of its
// lives, with threads and a queue of its own, and gets no further life while that is full(). One
// life can leave kMostScmFds of a refused packet, kMaxQueuedFds not taken and a vault: what a worker
// makes the daemon hold is at most kMostWaiting and those, and some hundreds that a thread has got
// out of sockets. What is still in a socket's queue is in no table: a full closer takes the socket
// instead.
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

// What a recvmsg() brought beside its bytes. Who receives from a worker gives the descriptors to a
// PeerCloser: to destroy them here may wait.
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
  // Ends a connected AF_UNIX socket of ours whose queue a worker may have filled: nothing comes in any
  // more, descriptors in the queue go to close(), and the socket, which can then be closed without
  // waiting, is. A fork of its maker only closes its copy: the connection is not its to end.
  void close_socket(UniqueFd socket, pid_t maker);

  // Descriptors that wait here, or are being closed.
  std::size_t unclosed() const;
  bool full() const { return unclosed() >= kMostWaiting; }

  // What a thread does, which may stand still over it: empties a socket, and those in its queue, tells
  // it not to linger, closes.
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
