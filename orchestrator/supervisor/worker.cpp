#include "orchestrator/supervisor/worker.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "config/base/log.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kBetweenCacheSizes{2000};

}  // namespace

bool serves(WorkerState state) {
  return state == WorkerState::kReady || state == WorkerState::kDraining ||
         state == WorkerState::kDrained;
}

const char* to_string(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kLoading:
      return "loading";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kDrained:
      return "drained";
    case WorkerState::kRestarting:
      return "restarting";
    case WorkerState::kFailed:
      return "failed";
    case WorkerState::kStopped:
      return "stopped";
    case WorkerState::kUnloaded:
      return "unloaded";
  }
  return "unknown";
}

Worker::Worker(EventLoop& loop, WorkerOptions options, WorkerEvents& events)
    : loop_(loop),
      options_(std::move(options)),
      events_(events),
      cache_(options_.cache_home, options_.name),
      pool_(loop, options_, vault_, cache_,
            {.changed = [this] { spares_changed(); },
             .ended = [this](const Spare& spare, const Death& death) { spare_ended(spare, death); },
             .left_in_kernel =
                 [this](std::unique_ptr<WorkerProcess> process) {
                   process->set_events(*this);
                   stuck_.push_back(std::move(process));
                 },
             .may_start = [this] { return may_start(); }}),
      restart_timer_(loop),
      retry_timer_(loop),
      cache_timer_(loop) {
  choose_owner_of_cache();
}

Worker::~Worker() = default;

void Worker::start() {
  start_process();
}

// Whatever the start throws (there is no memory), it is tried again: nothing else would.
void Worker::start_process() {
  constexpr milliseconds kAgain{1000};
  try {
    try_to_start();
  } catch (const std::exception& error) {
    loop_.caught("the start of a worker", error);
    if (state_ == WorkerState::kFailed || state_ == WorkerState::kStopped) return;
    restart_timer_.start(kAgain, [this] { start_process(); });
  }
}

// The processes that are started from now on must be able to write to the folder.
void Worker::choose_owner_of_cache() {
  const bool own = options_.user == config::WorkerUserMode::kAuto;
  cache_.set_owner(own ? CacheFolder::Owner::kWorker : CacheFolder::Owner::kDaemon);
}

// Gives the worker the options of replace(). The worker has yet to show that it can serve with them.
void Worker::become_next() {
  options_ = *std::exchange(next_options_, std::nullopt);
  choose_owner_of_cache();
  ever_ready_ = without_units_ = left_requests_ = false;
  ready_ = {};
  vault_.drop("the worker becomes another one");
}

void Worker::set_state(WorkerState state, Tell tell) {
  if (state_ == state) return;
  state_ = state;
  spdlog::debug("worker {}: {}", name(), to_string(state));
  if (tell == Tell::kNow) events_.worker_changed(*this);
}

// ---- successive processes ----

void Worker::try_to_start() {
  restart_timer_.cancel();
  retry_timer_.cancel();
  if (process_ != nullptr) return;
  // The last steps of the leaving process may still write to the memory that a new process would import.
  starts_when_it_is_gone_ = leaving_ != nullptr && !leaving_->stuck();
  if (starts_when_it_is_gone_) return;
  if (leaving_ != nullptr) leave_in_kernel(std::move(leaving_));
  if (next_options_.has_value()) become_next();
  if (!options_.vault) vault_.drop("isolation.vault is off");
  if (!restarts_again_ && std::exchange(next_is_cold_, false)) {
    vault_.drop("a cold start was asked for");
    cache_.drop("a cold start was asked for");
  }
  if (!looked_at_files())
    return restart_timer_.start(CacheFolder::kAskAgain, [this] { start_process(); });
  watch_cache();
  restart_after_drain_ = unload_after_drain_ = false;
  way_ = Recovery::Way::kLoaded;
  process_ = std::make_unique<WorkerProcess>(loop_, options_, vault_, cache_, name(), false,
                                             static_cast<ProcessEvents&>(*this));
  Status started = process_->start(start_files_.take());
  if (!started.ok()) {
    // The worker is not at fault, and an immediate retry would not help.
    process_.reset();
    last_death_ = "failed start: " + started.error().message();
    last_death_cause_ = DeathCause::kFailedStart;
    spdlog::error("worker {}: {}", name(), last_death_);
    policy_.died({.cause = DeathCause::kFailedStart, .words = last_death_}, false, {});
    if (!ever_ready_ || policy_.spent(options_.crash_budget)) return give_up(last_death_);
    schedule_restart(false);
    events_.worker_changed(*this);
    return;
  }
  set_state(WorkerState::kStarting, Tell::kByCaller);
  events_.worker_changed(*this);
}

// The files are looked at last, so that the result belongs to this start.
bool Worker::looked_at_files() {
  return (start_files_.begun() || cache_.passed(cache_check_)) &&
         start_files_.passed({options_.model_file, options_.chat_template, options_.program},
                             name());
}

bool Worker::take_over() {
  if (next_is_cold_) return false;
  // The device may go on with a stuck process's work as long as that process exists, so none of its memory is imported.
  if (leaving_ != nullptr && leaving_->stuck()) leave_in_kernel(std::move(leaving_));
  const bool unsettled = leaving_ != nullptr;
  std::unique_ptr<WorkerProcess> spare = pool_.take(unsettled ? vault_.epoch() : 0);
  if (spare == nullptr) return false;
  restart_timer_.cancel();
  cache_check_.forget();  // the check says nothing about what this process writes
  start_files_.forget();
  starts_when_it_is_gone_ = false;
  restart_after_drain_ = false;
  process_ = std::move(spare);
  process_->set_events(*this);
  restarts_.add(restart_cause());
  ++takeovers_;
  way_ = Recovery::Way::kStandby;
  recovery.greeted();
  process_->promote(name(), unsettled);
  watch_cache();
  set_state(WorkerState::kLoading, Tell::kByCaller);
  events_.worker_changed(*this);
  return true;
}

// The worker may be waiting for a spare that has just become ready.
void Worker::spares_changed() {
  const bool waits = state_ == WorkerState::kRestarting && process_ == nullptr;
  if (ever_ready_ && waits && take_over()) return;
  events_.worker_changed(*this);
}

void Worker::schedule_restart(bool immediately) {
  const milliseconds delay = immediately ? milliseconds(0) : policy_.delay();
  if (delay.count() > 0) {
    spdlog::warn("worker {}: {} deaths without a token in between; next start in {} ms", name(),
                 policy_.deaths(), delay.count());
  }
  set_state(WorkerState::kRestarting, Tell::kByCaller);
  restart_timer_.start(delay, [this] {
    restarts_.add(restart_cause());
    start_process();
  });
}

void Worker::give_up(const std::string& reason) {
  vault_.drop("its worker is given up");  // other workers may need the device's memory
  pool_.discard("their worker is given up");
  starts_when_it_is_gone_ = false;
  set_state(WorkerState::kFailed);
  if (ever_ready_) {
    spdlog::error(
        "worker {}: given up after {} death(s) without a token in between, the last: {}; `bulkhead "
        "workers restart {}` tries again",
        name(), policy_.deaths(), reason, name());
  }
  retry_later();
  events_.worker_failed(*this, reason);
}

// The cause of its death may pass: other programs filled the device, or a file was being replaced. Tries at growing
// intervals cost little.
void Worker::retry_later() {
  if (options_.retry_failed.count() == 0) return;
  constexpr std::uint32_t kMostDoublings = 4;
  retry_timer_.start(options_.retry_failed * (1 << std::min(failed_tries_, kMostDoublings)),
                     [this] {
                       if (state_ != WorkerState::kFailed || process_ != nullptr) return;
                       const WorkerEvents::Retry retry = events_.worker_may_retry(*this);
                       if (retry == WorkerEvents::Retry::kNotNow) return retry_later();
                       ++failed_tries_;
                       if (retry == WorkerEvents::Retry::kByLoad) return;
                       spdlog::info("worker {}: is tried again, though it was given up", name());
                       schedule_restart(true);
                       events_.worker_changed(*this);
                     });
}

void Worker::process_changed(WorkerProcess& process) {
  if (&process != process_.get() || state_ == WorkerState::kStopped) return;
  if (process.stage() != WorkerProcess::Stage::kServing) {
    if (state_ == WorkerState::kLoading) return events_.worker_changed(*this);  // its progress
    recovery.greeted();
    return set_state(WorkerState::kLoading);
  }
  ever_ready_ = true;
  ready_ = process.ready();
  file_mark_ = process.file_mark();
  ready_since_ = steady_clock::now();
  left_requests_ = false;
  kills_at_import_ = 0;
  failed_tries_ = 0;
  if (process.imported()) {
    if (process.given_vault() == vault_.epoch()) {
      vault_.imported(ready_.vault);
    } else {
      vault_.drop("a spare serves that has other memory");
    }
    if (way_ == Recovery::Way::kLoaded) way_ = Recovery::Way::kImported;
    spdlog::info("worker {}: has weights ({} ms) and {} KV pages ({:.1f} ms) of its predecessor",
                 name(), ready_.vault.import_microseconds / 1000, ready_.vault.pages_adopted,
                 static_cast<double>(ready_.vault.adopt_microseconds) / 1000);
  }
  if (options_.vault && !ready_.vault.reason.empty())
    spdlog::warn("worker {}: vault: {}", name(), ready_.vault.reason);
  // Since this process started, no process that has seen a request has had the cache folder.
  if (way_ != Recovery::Way::kStandby && leaving_ == nullptr && stuck_.empty()) cache_.seal();
  recovery.ready(way_);
  set_state(WorkerState::kReady);
  const bool took_over = way_ == Recovery::Way::kStandby;
  pool_.keep(options_.standby, took_over ? kSpareAfterTakeover : milliseconds(0));
}

// Ends a process that fills the disk, because it could go on filling the files that it has open. If a spare fills
// the disk, the worker's process ends, too, because both write to one folder.
void Worker::watch_cache() {
  cache_timer_.start(kBetweenCacheSizes, [this] {
    if (process_ == nullptr) return;  // the next process's start begins this timer anew
    watch_cache();                    // first, because what follows may find no memory
    const std::uint64_t most = options_.most_cache_bytes;
    if (const std::string excess = most == 0 ? "" : cache_.excess(most); !excess.empty())
      process_->kill("too much in its cache folder: " + excess, DeathCause::kProtocolViolation);
  });
}

void Worker::process_offered(WorkerProcess& process) {
  if (&process != process_.get()) return;
  ready_.vault = process.ready().vault;
  spdlog::info("worker {}: its memory is held for a successor now", name());
}

Status Worker::process_tokens(const ipc::SequenceTokensView& view) {
  return events_.worker_tokens(*this, view);
}

Status Worker::process_answer(ipc::FromWorker&& answer) {
  return events_.worker_answer(*this, std::move(answer));
}

// ---- work ----

Status Worker::submit(RequestId request, ipc::ToWorker message) {
  if (process_ == nullptr)
    return Error(ErrorCode::kUnavailable, "worker " + name() + " is not running");
  return process_->submit(request, std::move(message));
}

void Worker::cancel(RequestId request) {
  if (process_ != nullptr) process_->cancel(request);
  end_after_drain();
}

void Worker::finished(RequestId request) {
  if (process_ != nullptr) process_->finished(request);
  end_after_drain();
}

bool Worker::profile() {
  if (state() != WorkerState::kReady) return false;
  process_->send(ipc::Profile{});
  return true;
}

// ---- ending and starting again ----

bool Worker::drain() {
  if (state_ == WorkerState::kDraining || state_ == WorkerState::kDrained) return true;
  if (state_ != WorkerState::kReady) return false;
  drains_again_ = false;
  restart_after_drain_ |= std::exchange(restarts_again_, false);
  set_state(WorkerState::kDraining);
  process_->send(ipc::Drain{});
  end_after_drain();
  return true;
}

void Worker::unload() {
  if (state_ == WorkerState::kStopped || state_ == WorkerState::kUnloaded) return;
  restart_timer_.cancel();
  retry_timer_.cancel();
  starts_when_it_is_gone_ = restart_after_drain_ = drains_again_ = restarts_again_ = false;
  unload_after_drain_ = process_ != nullptr;
  pool_.keep(0);
  if (process_ == nullptr) return unloaded();
  if (!serves(state_)) return process_->kill("unloaded by request while loading");
  if (state_ == WorkerState::kReady) {
    drain();
  } else {
    end_after_drain();
  }
}

void Worker::unloaded() {
  if (next_options_.has_value()) become_next();
  if (!options_.vault) vault_.drop("isolation.vault is off");
  spdlog::info("worker {}: unloaded{}", name(),
               vault_.held() ? "; what it had on the device is held while there is room" : "");
  set_state(WorkerState::kUnloaded);
}

void Worker::load() {
  if (state_ == WorkerState::kFailed) return restart();
  if (state_ != WorkerState::kUnloaded) return;
  policy_.reset();
  ever_ready_ = false;
  set_state(WorkerState::kStarting, Tell::kByCaller);
  start_process();
}

void Worker::drop_vault(const std::string& reason) {
  if (!vault_.held()) return;
  vault_.drop(reason);
  vault_dropped();
}

void Worker::restart() {
  if (state_ == WorkerState::kStopped) return;
  if (state_ == WorkerState::kUnloaded) {
    if (next_options_.has_value()) become_next();
    return;  // the worker's next process begins anew anyway
  }
  unload_after_drain_ = drains_again_ = restarts_again_ = false;
  if (process_ != nullptr && process_->asked_to_end()) {
    restart_after_drain_ = true;  // unload() may have asked the process to end
    return;
  }
  policy_.reset();
  pool_.discard(
      "their worker is restarted");  // the spares may have loaded what is not wanted any more
  if (state_ == WorkerState::kRestarting || state_ == WorkerState::kFailed || process_ == nullptr) {
    owe_restart();
    schedule_restart(true);
    events_.worker_changed(*this);
    return;
  }
  if (!serves(state_)) return process_->kill("restarted by request while loading");
  restart_after_drain_ = true;
  if (state_ == WorkerState::kReady) {
    drain();
  } else {
    end_after_drain();
  }
}

void Worker::configure(WorkerOptions options) {
  if (next_options_
          .has_value()) {  // the worker is being replaced, so these arguments are for its successor
    next_options_ = std::move(options);
    return;
  }
  options_ = std::move(options);
  choose_owner_of_cache();
  if (without_units_) leave_units_out();
  if (serves(state_) && !unload_after_drain_) pool_.keep(options_.standby);
}

void Worker::replace(WorkerOptions options) {
  options_.model = options.model;
  next_options_ = std::move(options);
  restart();
}

void Worker::end_after_drain() {
  if (state_ != WorkerState::kDraining && state_ != WorkerState::kDrained) return;
  if (process_ == nullptr || process_->outstanding() > 0) return;
  set_state(WorkerState::kDrained);
  if (restart_after_drain_ || unload_after_drain_) process_->shut_down();
}

void Worker::stop() {
  restart_timer_.cancel();
  retry_timer_.cancel();
  cache_timer_.cancel();
  const bool asks = serves(state_);
  set_state(WorkerState::kStopped);
  pool_.keep(0);
  if (process_ == nullptr) return;
  if (asks) return process_->shut_down();
  process_->kill("stopped while loading");  // a process that loads reads no messages
}

void Worker::kill(const std::string& words) {
  if (process_ != nullptr) process_->kill(words);
  pool_.kill(words);
}

bool Worker::kill_process() {
  if (!serves(state_) || process_ == nullptr || process_->is_dying()) return false;
  process_->kill_unannounced();
  return true;
}

const ipc::Progress& Worker::progress() const {
  static const ipc::Progress kNone;
  return process_ == nullptr ? kNone : process_->progress();
}
const ipc::Stats& Worker::stats() const {
  static const ipc::Stats kNone;
  return process_ == nullptr ? kNone : process_->stats();
}

double Worker::reported(std::string_view figure) const {
  const std::vector<ipc::Counter>& counters = stats().counters;
  const auto found = std::ranges::find(counters, figure, &ipc::Counter::name);
  return found == counters.end() ? 0.0 : found->value;
}

ipc::ChannelStats Worker::channel_stats() const {
  return process_ == nullptr ? ended_channels_ : sum(ended_channels_, process_->channel_stats());
}

TokenTraffic Worker::token_traffic() const {
  return process_ == nullptr ? ended_traffic_ : ended_traffic_ + process_->traffic();
}

}  // namespace bulkhead::orchestrator
