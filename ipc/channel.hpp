// Channel: carries ordered, reliable records between the daemon and one worker, over shared memory (`shm`) or over
// the worker's standard input and output (`stdio`). Use each end from one thread only; any thread may call beat() and
// last_beat().
//
// Trust: the daemon trusts nothing that a worker sends. The daemon's end copies each record into private memory
// before anyone reads it (one memcpy, no allocation) and checks every index and length. The worker's end trusts the
// daemon and reads records in place. The error kCorrupt means "end this worker": it is permanent, and its message is
// the reason to report.
//
// Waiting: a thread either polls an end (try_receive) or sleeps on it:
//
//   prepare_sleep()  Returns true: the end is asleep; poll wait_fd() for POLLIN now. Returns false: do not sleep,
//                    because there is something to do (a record, room, an error): call try_receive, and retry
//                    what was refused.
//   wait_fd()        A socket (shm) or an epoll descriptor (stdio). It stays the same for the channel's whole life,
//                    is level-triggered and works with poll, epoll and Asio's async_wait. It becomes readable when
//                    a record arrives, when there is room again after a try_reserve that found none, when
//                    descriptors arrive, and permanently once the peer is gone. It may also be readable without a
//                    reason.
//   finish_sleep()   Call it after the poll, whatever the poll returned (a timeout, too): it withdraws the
//                    announced sleep and reads pending doorbells.
//
// No wake-up is lost: prepare_sleep() announces the sleep and then looks once more (ring.hpp explains the race).
// While an end is asleep, try_reserve, commit, flush and try_receive may still be called, because an event loop's
// other handlers do so.
//
// Large records: a record that exceeds half of ipc.ring_kib travels in pieces, through private memory at both ends.
// commit() sends as many pieces as fit; try_receive, try_reserve, prepare_sleep and flush() send more. Until all
// pieces are sent, try_reserve finds no room.
//
// When one side dies (a closed end and a dead process look the same to the other side):
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
// kUnavailable does not prove that the process has exited, because it may only have closed its socket. Kill it in any
// case.
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
  std::uint64_t depth_bytes = 0;      // bytes that waited to be received at the last look
  std::uint64_t max_depth_bytes = 0;  // the most bytes that were seen waiting
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Returns room for a record of up to `bytes`, 8-byte aligned, for the caller to fill and commit. An empty span
  // means that the ring is full now: try again later, or wait. kInvalidArgument if `bytes` exceeds
  // max_record_bytes(); kUnavailable if the peer is gone.
  virtual Result<std::span<std::byte>> try_reserve(std::size_t bytes) = 0;
  // Sends the first `bytes` (at least 1) of the room that try_reserve returned. kUnavailable: the record was
  // committed, but nobody will read it.
  virtual Status commit(std::size_t bytes) = 0;
  // Sends more of what was committed and is still in private memory (a large record; over stdio also bytes for which
  // the socket had no room). Returns true if nothing is left; an end may then exit without losing its last messages.
  virtual Result<bool> flush() = 0;

  // Returns the next record, or an empty span if there is none now. The record stays valid, and is returned again,
  // until release(). kCorrupt: the peer broke the protocol (report why and end it). kUnavailable: the peer is gone,
  // and everything that it had sent has been received.
  virtual Result<std::span<const std::byte>> try_receive() = 0;
  virtual void release() = 0;

  virtual int wait_fd() const = 0;
  virtual Result<bool> prepare_sleep() = 0;
  virtual void finish_sleep() = 0;

  // Sends descriptors to the peer (SCM_RIGHTS on the socketpair). Never blocks.
  virtual Status send_descriptors(std::span<const int> descriptors, std::uint64_t tag) = 0;
  // Destroying it closes the descriptors that are left in it, whatever they are, without blocking
  // (peer_descriptors.hpp). Move a descriptor into a UniqueFd only if you know that closing it does not block.
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
  // Returns how many descriptors had arrived at the last look at the socket (finish_sleep() is such a look) and have
  // not been taken.
  virtual std::size_t waiting_descriptors() const = 0;
  // Returns whether the peer sent descriptors for which this process had no room. From then on none arrive.
  virtual bool lost_descriptors() const = 0;

  virtual std::size_t max_record_bytes() const = 0;
  virtual ChannelStats stats() const = 0;

  // Heartbeat: over shm, a step counter and a monotonic time in the region; over stdio, the pongs that the worker
  // sends. The worker calls beat(); the daemon calls last_beat(), which returns the peer's counter. The daemon can't
  // verify that counter; its size is bounded.
  virtual void beat(std::uint64_t step) = 0;
  virtual std::optional<std::uint64_t> last_beat() const = 0;
  // Returns CLOCK_MONOTONIC at the last beat() as the worker wrote it, but never a time after now. 0 before the first
  // beat; empty over stdio.
  virtual std::optional<std::uint64_t> last_beat_ns() const = 0;
};

// Encodes and sends a message, and waits at most `timeout` while the ring is full (kDeadlineExceeded: nothing was
// sent). The thread rules of Channel apply. OK means that the channel has the message; the channel sends the rest of
// a large message later. This function receives nothing while it waits, so if both ends wait in it for room, both
// time out.
Status send(Channel& channel, const ToWorker& message, std::chrono::milliseconds timeout);
Status send(Channel& channel, const FromWorker& message, std::chrono::milliseconds timeout);
Status send(Channel& channel, const TokenBatch& batch, std::chrono::milliseconds timeout);
// Returns false if the ring has no room now.
Result<bool> try_send(Channel& channel, const ToWorker& message);
Result<bool> try_send(Channel& channel, const FromWorker& message);
Result<bool> try_send(Channel& channel, const TokenBatch& batch);
// Waits until a record can be received or `timeout` passes; returns true if there is a record. It spins for `spin`
// first and then sleeps. Its errors are those of try_receive.
Result<bool> wait_readable(Channel& channel, std::chrono::microseconds spin,
                           std::chrono::milliseconds timeout);

// The daemon's end, and the descriptors that the worker process must inherit; they are made together. All are
// close-on-exec: the spawner passes on exactly the intended ones by dup2, or by clearing the flag in the child. The
// daemon must close the worker_* descriptors after the spawn, or it will not notice the worker's death.
struct ChannelPair {
  std::unique_ptr<Channel> daemon;
  UniqueFd worker_socket;  // pass as --channel FD
  UniqueFd worker_region;  // shm: pass as --region FD; stdio: invalid
  UniqueFd worker_stdin;   // stdio: dup2 to 0 of the child (a stream socket)
  UniqueFd worker_stdout;  // stdio: dup2 to 1 of the child; the child moves it before anything can print
};
// `closer` closes the descriptors that this worker sends; pass the same one for all of the worker's lives. If it is
// null, the pair makes its own.
Result<ChannelPair> make_channel_pair(const config::IpcSettings& settings,
                                      std::shared_ptr<PeerCloser> closer = nullptr);

// Makes the worker's end from the descriptors that it inherited, and takes ownership of them (on error, too). For
// stdio it moves descriptors 0 and 1 away, opens /dev/null as 0 and makes 1 a copy of stderr, so that a stray print
// does no harm. Call it before anything can print. It checks the descriptors, and its errors say what was missing. Of
// the settings it uses only `ring_kib`, and only over stdio.
struct InheritedDescriptors {
  int socket = -1;
  int region = -1;  // -1: stdio
  int input = 0;    // stdio; tests pass another descriptor than 0 or 1, which is not moved
  int output = 1;
};
Result<std::unique_ptr<Channel>> open_worker_channel(const InheritedDescriptors& inherited,
                                                     const config::IpcSettings& settings);

}  // namespace bulkhead::ipc
