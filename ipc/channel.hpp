// Channel: ordered, reliable records between the daemon and one worker, over shared memory (`shm`) or the worker's
// standard input and a pipe (`stdio`). Both ends are used from one thread each.
//
// Trust: the daemon trusts nothing that comes up. Its end copies each record into private memory before anyone reads
// it (one memcpy, no allocation) and checks every index and length; the worker's end trusts the daemon and works in place.
//
// Waiting: an end is either polled (try_receive) or slept on. To sleep: prepare_sleep(); if it returns true, poll
// wait_fd() for POLLIN (both transports, from any event loop); then finish_sleep(), which also eats the doorbell. No wake-up is
// lost: prepare_sleep() returns false when a record is there already.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "config/settings.hpp"
#include "ipc/messages.hpp"

namespace bulkhead::ipc {

struct ChannelStats {
  std::uint64_t records_sent = 0, records_received = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint64_t full_stalls = 0;       // sends that found no room
  std::uint64_t doorbells_sent = 0;    // wake-ups of the peer
  std::uint64_t sleeps = 0;            // times this end slept
  std::uint64_t max_depth_bytes = 0;   // most bytes seen waiting to be received
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Room for a record of up to `bytes`, 8-byte aligned, to be filled and committed. Empty when the ring is full now
  // (back-pressure: try again later, or wait). kInvalidArgument when `bytes` exceeds max_record_bytes();
  // kUnavailable when the peer is gone.
  virtual Result<std::span<std::byte>> try_reserve(std::size_t bytes) = 0;
  // Sends the first `bytes` of what try_reserve returned.
  virtual Status commit(std::size_t bytes) = 0;

  // The next record, or an empty span when there is none now. Valid until release(). kCorrupt: the peer broke the
  // protocol (say why, end it); kUnavailable: the peer is gone and everything it had sent has been received.
  virtual Result<std::span<const std::byte>> try_receive() = 0;
  virtual void release() = 0;

  virtual int wait_fd() const = 0;
  virtual Result<bool> prepare_sleep() = 0;
  virtual void finish_sleep() = 0;

  // Descriptors to and from the peer (SCM_RIGHTS on the socketpair), never blocking.
  virtual Status send_descriptors(std::span<const int> descriptors, std::uint64_t tag) = 0;
  struct Descriptors {
    std::uint64_t tag = 0;
    std::vector<UniqueFd> fds;
  };
  virtual std::optional<Descriptors> take_descriptors() = 0;

  virtual std::size_t max_record_bytes() const = 0;
  virtual ChannelStats stats() const = 0;

  // Heartbeat (design: a step counter and a monotonic time in the region; over stdio the worker sends pongs).
  // beat() by the worker; last_beat() by the daemon: the peer's counter, unvalidated but bounded.
  virtual void beat(std::uint64_t step) = 0;
  virtual std::optional<std::uint64_t> last_beat() const = 0;
};

// Convenience over Channel, same thread rules: encode and send, waiting while the ring is full for at most `timeout`.
Status send(Channel& channel, const ToWorker& message, std::chrono::milliseconds timeout);
Status send(Channel& channel, const FromWorker& message, std::chrono::milliseconds timeout);
// False when the ring has no room now.
Result<bool> try_send(Channel& channel, const ToWorker& message);
Result<bool> try_send(Channel& channel, const FromWorker& message);
// Waits (spinning `spin`, then asleep) until a record can be received or `timeout` passes: true when there is one.
Result<bool> wait_readable(Channel& channel, std::chrono::microseconds spin, std::chrono::milliseconds timeout);

// What a worker process must inherit. The daemon's end and the descriptors for the child, made together.
struct ChannelPair {
  std::unique_ptr<Channel> daemon;
  UniqueFd worker_socket;   // pass as --channel FD
  UniqueFd worker_region;   // shm: pass as --region FD; stdio: invalid
  UniqueFd worker_stdin;    // stdio: dup2 to 0 of the child
  UniqueFd worker_stdout;   // stdio: dup2 to 1 of the child; the child moves it away before anything can print
};
Result<ChannelPair> make_channel_pair(const config::IpcSettings& settings);

// The worker's end, from what it inherited. For stdio it takes descriptors 0 and 1 for itself and makes 1 a copy of
// stderr. Checks what it was given; errors tell what was missing.
struct InheritedDescriptors {
  int socket = -1;
  int region = -1;  // -1: stdio
};
Result<std::unique_ptr<Channel>> open_worker_channel(const InheritedDescriptors& inherited,
                                                     const config::IpcSettings& settings);

}  // namespace bulkhead::ipc
