// The loop of a worker once its model is loaded. It receives messages, runs steps and sends messages, until the
// daemon tells it to stop or is gone.
//
// One thread does all of this. It reads and answers messages while the device computes. With nothing to compute it
// sleeps on the channel and on the tokenizer's thread, and wakes once a second for the heartbeat.
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
  // Called when the daemon promotes this standby; updates the Ready to be sent again. Returns false if the worker
  // can't serve before its predecessor is gone; the loop then calls it again when that is so.
  using Promoted = std::function<bool(const ipc::Promote&, ipc::Ready&)>;
  // After a Ready whose vault is still to be offered: called now and then until it returns true.
  using OfferAgain = std::function<bool()>;
  // `ready` is the message that the daemon got; the loop sends it again when the daemon promotes a
  // standby.
  MainLoop(ipc::Channel& channel, Outbox& outbox, engine::Engine& engine, ipc::Ready ready,
           Promoted promoted, OfferAgain offer_again, const config::IpcSettings& settings);

  // Returns OK if Shutdown came or the daemon is gone. An error means that the device failed or the channel is
  // broken: the worker can't go on.
  Status run();

 private:
  void receive();
  void handle(ipc::ToWorker message);
  void promote(const ipc::Promote& promote);
  void settle();
  void offer_vault();
  void send_stats(bool busy);
  Status sleep();
  // An end of a channel notices that its peer is gone when it goes to sleep on the channel. A busy worker therefore
  // does so for a moment now and then; otherwise it would compute for nobody until the ring is full.
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
  std::optional<ipc::Promote> waiting_;  // waits for the end of the predecessor
  bool shutdown_ = false;
  int idle_reports_ = 1;  // how many reports an idle worker still has to send
  engine::MemoryFigures memory_reported_;  // what an idle worker has reported, or is about to report
  std::uint64_t beats_ = 0;
  Clock::time_point stats_sent_{};
  Clock::time_point offered_{};
  Clock::time_point looked_{};
};

}  // namespace bulkhead::worker
