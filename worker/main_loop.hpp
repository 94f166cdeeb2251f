// The loop of a worker once its model is loaded: messages in, steps, messages out, until the daemon
// tells it to stop or is gone.
//
// One thread does all of it. It reads and answers messages while the device computes. With nothing to
// compute it sleeps on the channel and on the tokenizer's thread, and wakes once a second for the
// heartbeat.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "config/base/error.hpp"
#include "config/settings.hpp"
#include "ipc/channel.hpp"
#include "worker/engine/engine.hpp"
#include "worker/main_outbox.hpp"

namespace bulkhead::worker {

class MainLoop {
 public:
  // Called when the daemon promotes this standby; fills in what the second Ready says anew. False:
  // the worker can't serve before its predecessor is gone; the loop calls again when it is.
  using Promoted = std::function<bool(const ipc::Promote&, ipc::Ready&)>;
  // After a Ready whose vault waits to be offered, called now and then until it returns true.
  using OfferAgain = std::function<bool()>;
  // `ready`: what the daemon has been told, and is told again when it promotes a standby.
  MainLoop(ipc::Channel& channel, Outbox& outbox, engine::Engine& engine, ipc::Ready ready,
           Promoted promoted, OfferAgain offer_again, const config::IpcSettings& settings);

  // OK: Shutdown came, or the daemon is gone. An error is the device's, or a broken channel's: the
  // worker can't go on.
  Status run();

 private:
  void receive();
  void handle(ipc::ToWorker message);
  void promote(const ipc::Promote& promote);
  void settle();
  void offer_vault();
  void send_stats(bool busy);
  Status sleep();
  // An end notices that its peer is gone when it goes to sleep on the channel. A busy worker does so
  // for a moment now and then; otherwise it would compute for nobody until the ring is full.
  void look_for_the_end();
  void beat() { channel_.beat(++beats_); }

  using Clock = std::chrono::steady_clock;

  ipc::Channel& channel_;
  Outbox& outbox_;
  engine::Engine& engine_;
  ipc::Ready ready_;
  Promoted promoted_;
  OfferAgain offer_again_;
  bool offering_;
  std::chrono::microseconds spin_;
  Status received_;                      // the first error of receiving
  std::optional<ipc::Promote> waiting_;  // for the end of the predecessor
  bool shutdown_ = false;
  int idle_reports_ = 1;  // reports still due of a worker that does nothing
  std::uint64_t beats_ = 0;
  Clock::time_point stats_sent_{};
  Clock::time_point offered_{};
  Clock::time_point looked_{};
};

}  // namespace bulkhead::worker
