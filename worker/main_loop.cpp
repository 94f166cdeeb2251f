#include "worker/main_loop.hpp"

#include <poll.h>

#include <cerrno>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "config/base/log.hpp"
#include "config/base/overloaded.hpp"
#include "config/base/worker_figures.hpp"

namespace bulkhead::worker {
namespace {

constexpr std::chrono::milliseconds kStatsInterval{1000};
// A worker that becomes idle, or whose memory figures change while it is idle, sends one report at once and one an
// interval later. The second report's figures about the time since the last report are zero.
constexpr int kIdleReports = 2;
constexpr std::chrono::milliseconds kLookInterval{100};
constexpr std::chrono::milliseconds kOfferInterval{100};
constexpr int kIdleSleep_ms = 1000;  // between heartbeats of an idle worker
// The sleep while the worker waits for the tokenizer's thread, for room in a full ring, or for room to offer the
// vault.
constexpr int kWaitingSleep_ms = 100;

}  // namespace

MainLoop::MainLoop(ipc::Channel& channel, Outbox& outbox, engine::Engine& engine, ipc::Ready ready,
                   Promoted promoted, OfferAgain offer_again, const config::IpcSettings& settings)
    : channel_(channel),
      outbox_(outbox),
      engine_(engine),
      ready_(std::move(ready)),
      promoted_(std::move(promoted)),
      offer_again_(std::move(offer_again)),
      offering_(ready_.vault.state == ipc::VaultState::kWaiting),
      spin_(settings.spin_us),
      memory_reported_(engine.memory_figures()) {}

Status MainLoop::run() {
  for (;;) {
    beat();
    receive();
    offer_vault();
    engine_.poll();
    outbox_.pump();
    for (const Status* status :
         std::initializer_list<const Status*>{&received_, &outbox_.status()}) {
      if (status->ok()) continue;
      if (status->error().code() == ErrorCode::kUnavailable) return {};  // the daemon is gone
      return *status;
    }
    if (shutdown_) return {};
    // While the ring is full no step runs, because this process would have to keep the step's tokens.
    if (!outbox_.congested()) {
      BULKHEAD_TRY(const bool ran, engine_.turn([this] {
        beat();
        receive();
        outbox_.pump();
      }));
      if (ran) {
        send_stats(true);
        look_for_the_end();
        continue;
      }
    }
    send_stats(engine_.outstanding() > 0);
    BULKHEAD_RETURN_IF_ERROR(sleep());
  }
}

void MainLoop::receive() {
  while (received_.ok() && !shutdown_) {
    auto record = channel_.try_receive();
    if (!record.ok()) {
      received_ = record.error();
      return;
    }
    if (record->empty()) return;
    auto message = ipc::decode_to_worker(*record);
    channel_.release();
    if (!message.ok()) {
      received_ = message.error().within("a message of the daemon");
      return;
    }
    handle(*std::move(message));
  }
}

void MainLoop::handle(ipc::ToWorker message) {
  std::visit(Overloaded{
                 [this](ipc::Submit& submit) { engine_.submit(std::move(submit)); },
                 [this](ipc::Cancel& cancel) { engine_.cancel(cancel.request); },
                 [this](ipc::Embed& job) { engine_.embed(std::move(job)); },
                 [this](ipc::Rank& job) { engine_.rank(std::move(job)); },
                 [this](ipc::Ping& ping) { outbox_.send(ipc::Pong{ping.nonce}); },
                 [](ipc::Vault&) {},  // a vault comes before the model is loaded, and the loading code reads it
                 [this](ipc::Drain&) { engine_.drain(); },
                 [this](ipc::Shutdown&) { shutdown_ = true; },
                 [this](ipc::Profile&) {
                   engine_.profile();
                   idle_reports_ = kIdleReports;  // an idle worker's figures go out at once, too
                 },
                 [this](ipc::Promote& word) { promote(word); },
                 [this](ipc::Settled&) { settle(); },
                 // Every other message is an ipc::Question; otherwise this does not compile.
                 [this](auto& question) { engine_.answer(std::move(question)); },
             },
             message);
}

void MainLoop::promote(const ipc::Promote& promote) {
  if (promoted_ && !promoted_(promote, ready_)) {
    waiting_ = promote;
    return;
  }
  outbox_.send(ready_);
  offering_ = ready_.vault.state == ipc::VaultState::kWaiting;
}

void MainLoop::offer_vault() {
  if (!offering_) return;
  const auto now = Clock::now();
  if (now - offered_ < kOfferInterval) return;
  offered_ = now;
  offering_ = !offer_again_();
}

void MainLoop::settle() {
  engine_.settle();
  if (!waiting_.has_value()) return;
  ipc::Promote again = *std::exchange(waiting_, std::nullopt);
  again.unsettled = false;
  promote(again);
}

void MainLoop::send_stats(bool busy) {
  const auto now = Clock::now();
  if (busy) {
    idle_reports_ = kIdleReports;
  } else if (const engine::MemoryFigures memory = engine_.memory_figures();
             std::exchange(memory_reported_, memory) != memory) {
    idle_reports_ = kIdleReports;
  }
  const bool just_idle = !busy && idle_reports_ == kIdleReports;
  const bool due = just_idle || (idle_reports_ > 0 && now - stats_sent_ >= kStatsInterval);
  if (!due || !outbox_.empty()) return;
  if (!busy) --idle_reports_;
  stats_sent_ = now;
  ipc::Stats stats = engine_.stats();
  const ipc::ChannelStats channel = channel_.stats();
  const auto add = [&](FigureName name, std::uint64_t value) {
    stats.counters.push_back({name.text(), static_cast<double>(value)});
  };
  add("channel_records_sent_total", channel.records_sent);
  add("channel_bytes_sent_total", channel.bytes_sent);
  add("channel_full_stalls_total", channel.full_stalls);
  add("channel_doorbells_sent_total", channel.doorbells_sent);
  outbox_.send(stats);
}

void MainLoop::look_for_the_end() {
  const auto now = Clock::now();
  if (now - looked_ < kLookInterval) return;
  looked_ = now;
  auto asleep = channel_.prepare_sleep();
  if (!asleep.ok()) {
    received_ = asleep.error();
  } else if (*asleep) {
    channel_.finish_sleep();
  }
}

Status MainLoop::sleep() {
  // An answer often brings the next request: look for it a little before going to sleep.
  // prepare_sleep() notices what came meanwhile.
  const auto spin_until = Clock::now() + spin_;
  do {
    auto record = channel_.try_receive();
    if (!record.ok() || !record->empty()) return {};  // receive() handles this case
  } while (Clock::now() < spin_until);

  auto asleep = channel_.prepare_sleep();
  if (!asleep.ok()) {
    received_ = asleep.error();
    return {};
  }
  if (!*asleep) return {};
  pollfd waits[2] = {{channel_.wait_fd(), POLLIN, 0}, {engine_.wake_fd(), POLLIN, 0}};
  const bool waiting = engine_.outstanding() > 0 || !outbox_.empty() || offering_;
  const int polled = ::poll(waits, 2, waiting ? kWaitingSleep_ms : kIdleSleep_ms);
  const int error_number = errno;
  channel_.finish_sleep();
  if (polled < 0 && error_number != EINTR) {
    return errno_error(ErrorCode::kInternal, "poll", error_number);
  }
  return {};
}

}  // namespace bulkhead::worker
