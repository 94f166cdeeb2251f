#include "worker/main_outbox.hpp"

#include <thread>

namespace bulkhead::worker {

bool Outbox::try_send(const ipc::FromWorker& message) {
  auto sent = ipc::try_send(channel_, message);
  if (sent.ok()) return *sent;
  status_ = sent.error();
  return false;
}

void Outbox::send(const ipc::FromWorker& message) {
  if (!status_.ok()) return;
  if (kept_.empty() && try_send(message)) return;
  if (status_.ok()) kept_.push_back(message);
}

void Outbox::pump() {
  while (!kept_.empty() && status_.ok() && try_send(kept_.front()))
    kept_.pop_front();
}

void Outbox::drain(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    pump();
    auto flushed = channel_.flush();
    if (!status_.ok() || !flushed.ok() || (kept_.empty() && *flushed)) return;
    if (std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace bulkhead::worker
