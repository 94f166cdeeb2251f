// Channel: ordered, reliable records between the daemon and one worker, over shared memory (`shm`)
// or the worker's standard input and output (`stdio`). An end is used from one thread (beat() and
// last_beat() from any).
//
// Trust: the daemon trusts nothing that comes up. Its end copies each record into private memory
// before anyone reads it (one memcpy, no allocation) and checks every index and length; the
// worker's end trusts the daemon and works in place. An error of kCorrupt means "end this worker":
// it lasts, and its message is the reason to report.
//
// Waiting: an end is either polled (try_receive) or slept on:
//
//   prepare_sleep()  True: asleep; now poll wait_fd() for POLLIN. False: do not sleep, there is
//                    something to do (a record, room, an error): call try_receive and retry what
//                    was refused.
//   wait_fd()        A socket (shm) or an epoll descriptor (stdio), the same for the channel's
//                    whole life; level-triggered, fit for poll, epoll and Asio's async_wait.
//                    Readable when a record has come, when there is room after a try_reserve that
//                    found none, when descriptors have come, and for good once the peer is gone.
//                    It may be readable for nothing.
//   finish_sleep()   After the poll, whatever it said (a timeout too): takes the announcement back
//                    and eats doorbells.
//
// No wake-up is lost: prepare_sleep() announces the sleep and then looks once more (ring.hpp
// explains the race). While asleep, try_reserve, commit, flush and try_receive may still be called
// (an event loop's other handlers do).
//
// Large records: one that exceeds half of ipc.ring_kib travels in pieces, through private memory at
// both ends. commit() sends what fits; try_receive, try_reserve, prepare_sleep and flush() send on.
// Until it is out, try_reserve finds no room.
//
// When a side dies (a closed end and a dead process look the same):
//
//   the peer dies ...                      we see                         we do
//   -------------------------------------  -----------------------------  -------------------------
//   before it opened its end               EOF                            kUnavailable
//   having reserved, not committed         nothing of the record, EOF     kUnavailable
//   between the commit and the doorbell    EOF wakes us, the record is    receive it, then
//                                          there                          kUnavailable
//   after the doorbell                     the record, EOF                the same
//   having sent some pieces of a record    pieces without a last, EOF     drop them, kUnavailable
//   in the middle of a stdio frame         a cut frame, EOF               drop it, kUnavailable
//   having peeked, not released            a ring that stays full, EOF    sends say kUnavailable
//   while we wait for room                 EOF wakes us                   sends say kUnavailable
//   asleep                                 the doorbell fails with EPIPE  sends say kUnavailable
//   with descriptors on the way            they can still be taken        close the untaken ones
//
// kUnavailable does not prove that the process has exited (it may have closed its socket only):
// kill it all the same.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "config/settings.hpp"
#include "ipc/messages.hpp"

namespace bulkhead::ipc {

class PeerCloser;

struct ChannelStats {
  std::uint64_t records_sent = 0, records_received = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint64_t full_stalls = 0;      // sends that found no room
  std::uint64_t doorbells_sent = 0;   // wake-ups of the peer
  std::uint64_t sleeps = 0;           // times this end slept
  std::uint64_t depth_bytes = 0;      // waiting to be received, as of the last look
  std::uint64_t max_depth_bytes = 0;  // most bytes seen so
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Room for a record of up to `bytes`, 8-byte aligned, to be filled and committed. Empty when the
  // ring is full now (back-pressure: try again later, or wait). kInvalidArgument when `bytes`
  // exceeds max_record_bytes(); kUnavailable when the peer is gone.
  virtual Result<std::span<std::byte>> try_reserve(std::size_t bytes) = 0;
  // Sends the first `bytes` (at least 1) of what try_reserve returned. kUnavailable: committed, but
  // nobody will read it.
  virtual Status commit(std::size_t bytes) = 0;
  // Pushes on what was committed and is still in private memory (a large record; over stdio, what
  // the socket had no room for). True when nothing is left, so that an end may exit without losing
  // its last words.
  virtual Result<bool> flush() = 0;

  // The next record, or an empty span when there is none now. Valid until release(), and returned
  // again until then. kCorrupt: the peer broke the protocol (say why, end it); kUnavailable: the
  // peer is gone and everything it had sent has been received.
  virtual Result<std::span<const std::byte>> try_receive() = 0;
  virtual void release() = 0;

  virtual int wait_fd() const = 0;
  virtual Result<bool> prepare_sleep() = 0;
  virtual void finish_sleep() = 0;

  // Descriptors to and from the peer (SCM_RIGHTS on the socketpair), never blocking.
  virtual Status send_descriptors(std::span<const int> descriptors, std::uint64_t tag) = 0;
  // Closes what is left in it without blocking, whatever it is (peer_descriptors.hpp). Move a
  // descriptor out into a UniqueFd only if you know that closing it does not block.
  struct Descriptors {
    std::uint64_t tag = 0;
    std::vector<UniqueFd> fds;

    explicit Descriptors(std::shared_ptr<PeerCloser> closer) : closer_(std::move(closer)) {}
    Descriptors(Descriptors&&) = default;
    Descriptors& operator=(Descriptors&& other) noexcept {
      std::swap(tag, other.tag);
      std::swap(fds, other.fds);
      std::swap(closer_, other.closer_);
      return *this;
    }
    ~Descriptors();

   private:
    std::shared_ptr<PeerCloser> closer_;
  };
  virtual std::optional<Descriptors> take_descriptors() = 0;
  // Descriptors that had come at the last look at the socket (finish_sleep() is one) and that nobody
  // has taken.
  virtual std::size_t waiting_descriptors() const = 0;

  virtual std::size_t max_record_bytes() const = 0;
  virtual ChannelStats stats() const = 0;

  // Heartbeat (design: a step counter and a monotonic time in the region; over stdio the worker
  // sends pongs). beat() by the worker; last_beat() by the daemon: the peer's counter, unvalidated
  // but bounded.
  virtual void beat(std::uint64_t step) = 0;
  virtual std::optional<std::uint64_t> last_beat() const = 0;
  // CLOCK_MONOTONIC at the last beat() as the worker wrote it, at most now; 0 before the first;
  // empty over stdio.
  virtual std::optional<std::uint64_t> last_beat_ns() const = 0;
};

// Convenience over Channel, same thread rules: encode and send, waiting while the ring is full for
// at most `timeout` (kDeadlineExceeded: nothing was sent). OK means that the channel has the
// message; the channel sends the rest of a large one later. It receives nothing meanwhile, so two
// ends that both wait here for room both time out.
Status send(Channel& channel, const ToWorker& message, std::chrono::milliseconds timeout);
Status send(Channel& channel, const FromWorker& message, std::chrono::milliseconds timeout);
Status send(Channel& channel, const TokenBatch& batch, std::chrono::milliseconds timeout);
// False when the ring has no room now.
Result<bool> try_send(Channel& channel, const ToWorker& message);
Result<bool> try_send(Channel& channel, const FromWorker& message);
Result<bool> try_send(Channel& channel, const TokenBatch& batch);
// Waits (spinning `spin`, then asleep) until a record can be received or `timeout` passes: true
// when there is one. Errors are try_receive's.
Result<bool> wait_readable(Channel& channel, std::chrono::microseconds spin,
                           std::chrono::milliseconds timeout);

// What a worker process must inherit. The daemon's end and the descriptors for the child, made
// together. All are close-on-exec: the spawner's dup2 (or clearing the flag in the child) hands on
// exactly what is meant. Close the worker_* descriptors in the daemon after the spawn, or the
// worker's death will not be seen.
struct ChannelPair {
  std::unique_ptr<Channel> daemon;
  UniqueFd worker_socket;  // pass as --channel FD
  UniqueFd worker_region;  // shm: pass as --region FD; stdio: invalid
  UniqueFd worker_stdin;   // stdio: dup2 to 0 of the child (a stream socket)
  UniqueFd worker_stdout;  // stdio: dup2 to 1 of the child; the child moves it away before anything
                           // can print
};
// `closer`: closes the descriptors that this worker sends; pass the same one for all of the worker's
// lives. Null: the pair makes its own.
Result<ChannelPair> make_channel_pair(const config::IpcSettings& settings,
                                      std::shared_ptr<PeerCloser> closer = nullptr);

// The worker's end, from what it inherited, which it takes over (on error too). For stdio it moves
// descriptors 0 and 1 away, opens /dev/null as 0 and makes 1 a copy of stderr, so that a stray
// print harms nothing. Call it before anything can print. Checks what it was given; errors tell
// what was missing. Only `ring_kib` of the settings is used, over stdio.
struct InheritedDescriptors {
  int socket = -1;
  int region = -1;  // -1: stdio
  int input = 0;    // stdio, for tests: another descriptor than 0 or 1 is taken over where it is
  int output = 1;
};
Result<std::unique_ptr<Channel>> open_worker_channel(const InheritedDescriptors& inherited,
                                                     const config::IpcSettings& settings);

}  // namespace bulkhead::ipc
