// Sends messages to the daemon, in order and without dropping any: at once while the ring has room,
// and from a queue here while it has none. Code that makes messages must look at congested() and
// pause; that bounds the queue.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>

#include "config/base/error.hpp"
#include "ipc/channel.hpp"

namespace bulkhead::worker {

class Outbox {
 public:
  explicit Outbox(ipc::Channel& channel) : channel_(channel) {}

  // Sends or keeps the message. The first failure lasts: status() tells, and everything after it is
  // dropped, because nobody is there to read it.
  void send(const ipc::FromWorker& message);
  // Sends on what was kept, as far as there is room.
  void pump();
  // The same until nothing is left or `timeout` has passed; for a process's last words.
  void drain(std::chrono::milliseconds timeout);

  bool congested() const { return kept_.size() >= kMostKept; }
  bool empty() const { return kept_.empty(); }
  const Status& status() const { return status_; }

 private:
  // A record of each running step and of each new request would be a few; beyond this, steps wait.
  static constexpr std::size_t kMostKept = 32;
  bool try_send(const ipc::FromWorker& message);

  ipc::Channel& channel_;
  std::deque<ipc::FromWorker> kept_;
  Status status_;
};

}  // namespace bulkhead::worker
