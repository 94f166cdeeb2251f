// Sends messages to the daemon in order, without dropping any: at once while the ring has room, and from a queue here
// while it has none. Code that makes messages must check congested() and pause; that bounds the queue.
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

  // Sends or queues the message. The first failure is permanent: status() returns it, and everything after it is
  // dropped, because nobody is there to read it.
  void send(const ipc::FromWorker& message);
  // Sends queued messages as long as there is room.
  void pump();
  // The same until the queue is empty or `timeout` has passed; for a process's last messages.
  void drain(std::chrono::milliseconds timeout);

  bool congested() const { return kept_.size() >= kMostKept; }
  bool empty() const { return kept_.empty(); }
  const Status& status() const { return status_; }

 private:
  // The running steps and new requests need only a few records; beyond this number, steps wait.
  static constexpr std::size_t kMostKept = 32;
  bool try_send(const ipc::FromWorker& message);

  ipc::Channel& channel_;
  std::deque<ipc::FromWorker> kept_;
  Status status_;
};

}  // namespace bulkhead::worker
