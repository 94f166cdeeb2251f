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
// made for it, which may stand still in the daemon's stead: a few at most, and what comes then waits
// for them.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "config/base/unique_fd.hpp"

namespace bulkhead::ipc {

// What a socket packet may carry in all (the kernel's SCM_MAX_FD): room for fewer would have the
// kernel close the rest for us, on the spot.
inline constexpr std::size_t kMaxScmFds = 253;

// Never waits. Any thread.
void close_from_peer(UniqueFd fd);

// The same for what may take long to end though it can't wait: memory, whose pages are freed with its
// last descriptor. Always on another thread, one for all of them.
void close_elsewhere(std::vector<UniqueFd> fds);

// All that a recvmsg() brought.
void close_received(msghdr& message);

// Ends a connected AF_UNIX socket of ours whose queue a worker may have filled: nothing comes in any
// more, descriptors in the queue go to close_from_peer(), and the socket, which can then be closed
// without waiting, is. A fork of its maker only closes its copy: the connection is not its to end.
void close_socket_to_peer(UniqueFd socket, pid_t maker);

}  // namespace bulkhead::ipc
