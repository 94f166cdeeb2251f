// A worker's life once its model is loaded: messages in, steps, messages out, until it is told to
// stop or nobody is there to tell it.
//
// One thread does all of it. While the device computes, messages are read and answered; while
// nothing is to be computed, it sleeps on the channel and on the tokenizer's thread. Idle, it wakes
// once a second for the heartbeat.
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
  // Called when the daemon promotes this standby; fills in what is news in the second Ready. False:
  // it can't serve before its predecessor is gone, and is called again when it is.
  using Promoted = std::function<bool(const ipc::Promote&, ipc::Ready&)>;
  // Called after a Ready that tells of a vault which is waiting to be offered, now and then until it
  // says true: there is nothing more to be done.
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
  // The end of the channel shows when one goes to sleep on it; a busy worker does that for a moment
  // now and then, or it would compute for nobody until the ring is full.
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
