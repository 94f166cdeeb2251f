// What a worker does when one of its processes ends, or is as good as ended: whose requests go back,
// what of its memory a successor may have, and whether there is a successor.
#include <algorithm>
#include <utility>

#include "config/base/log.hpp"
#include "orchestrator/supervisor/worker.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr std::uint32_t kDeathsAtFirstStart = 3;  // then the daemon gives up
constexpr std::uint32_t kKillsAtTakeOver = 3;     // then the vault is under suspicion
constexpr std::size_t kMostStuck = 3;  // processes that don't end: no further one is tried

}  // namespace

void Worker::process_dying(WorkerProcess& process) {
  if (&process == process_.get()) recovery.noticed();
}

// Its successor waits for its exit, which may take long, and a peer need not.
void Worker::process_lost(WorkerProcess& process, const Death& death) {
  if (&process != process_.get() || !serves(state_)) return;
  std::vector<WorkerEvents::Orphan> orphans = process.take_unfinished();
  if (orphans.empty()) return;
  given_back_ += orphans.size();
  blame_given_back_ |= std::ranges::any_of(orphans, &WorkerEvents::Orphan::sent);
  events_.worker_lost(*this, death, std::move(orphans));
}

// The kernel can take half a second to take back what it held, and a spare is there. What may go on
// meanwhile is work of its last steps on the device, and the spare knows where they can write: see
// worker/vault/README.md. Only after a kill from outside: who ended itself, crashed or was killed by
// this daemon may have given the device something else to do.
void Worker::process_stopped(WorkerProcess& process) {
  if (&process != process_.get() || leaving_ != nullptr || state_ != WorkerState::kReady) return;
  if (!vault_.keep_kv() || !pool_.ready(vault_.epoch())) return;
  const Death& death = process.known_death();
  if (!death.by_others()) return;
  leaving_ = std::move(process_);
  died(process, death);
}

// It counts as dead, and its successor is started beside it. That one is given nothing of it: what it
// had the device do may go on for as long as it is there. There may be no memory for two; then the
// successor says so, and is tried again until the crash budget is spent.
void Worker::process_stuck(WorkerProcess& process, const Death& death) {
  if (&process == leaving_.get()) {
    if (state_ == WorkerState::kStopped) return events_.worker_changed(*this);
    // A spare serves with what it could take over so far, and needs no more.
    if (starts_when_it_is_gone_ && process_ == nullptr) start_process();
    return;
  }
  leave_in_kernel(std::move(process_));
  died(process, death);
}

// Each has memory of its own, and the next may not end either.
bool Worker::may_start() const {
  const std::size_t leaving = leaving_ != nullptr && leaving_->stuck() ? 1 : 0;
  return stuck_.size() + leaving < kMostStuck;
}

void Worker::leave_in_kernel(std::unique_ptr<WorkerProcess> process) {
  stuck_.push_back(std::move(process));
  if (!vault_.held()) return;
  vault_.drop("a process that has it does not end");
  vault_dropped();
}

void Worker::predecessor_gone(const Death& death) {
  loop_.post([gone = std::shared_ptr(std::move(leaving_))] {});  // it is the caller of this
  recovery.gone();
  if (state_ == WorkerState::kStopped) return events_.worker_changed(*this);
  if (!death.by_others()) {  // it was taken for another end
    spdlog::error("worker {}: the process before it ended otherwise: {}", name(), death.words);
    vault_.drop("the process that made it did not end as it seemed");
    vault_dropped();
    if (process_ != nullptr) process_->kill("took over from a process whose end casts doubt");
  } else if (process_ != nullptr) {
    process_->settle();
  }
  if (std::exchange(starts_when_it_is_gone_, false) && process_ == nullptr) start_process();
}

void Worker::tell_vault_of_end(const Death& death) {
  if (death.as_asked && death.cause != DeathCause::kDeviceLost) return vault_.ended_as_asked();
  const bool held = vault_.held();
  // A spare may have been given an earlier one, which is gone.
  const bool took_over = death.took_over && death.vault == vault_.epoch();
  if (death.vault_unusable) {
    if (took_over) vault_.drop(death.last_word.empty() ? death.words : death.last_word);
  } else {
    vault_.ended(death.cause);
    // It died before it served: of what it was to take over, perhaps, unless somebody killed it.
    if (took_over && (!death.by_others() || ++kills_at_take_over_ >= kKillsAtTakeOver))
      vault_.drop("a process that was taking it over died: " + death.words);
  }
  if (held && !vault_.held()) vault_dropped();
}

// It shares the memory of the process that serves, and computes nothing before it is promoted: KV
// pages are as good as they were. But what was of no use to it, or what it can have spoilt, no
// successor shall be given.
void Worker::spare_ended(const Spare& spare, const Death& death) {
  if (!death.vault_unusable) events_.standby_died(spare);
  discard_readers_of_cache(death);
  const bool had_it = death.vault != 0 && death.vault == vault_.epoch();
  const bool spoilt =
      death.cause == DeathCause::kDeviceLost || death.cause == DeathCause::kProtocolViolation;
  if (had_it && (spoilt || (death.took_over && !death.by_others()))) {
    vault_.drop("a spare: " + (death.last_word.empty() ? death.words : death.last_word));
    vault_dropped();
  }
  // Others that went with it are replaced, too.
  if (serves(state_) && !unload_after_drain_) pool_.keep(options_.standby, kSpareAfterTakeover);
}

// The folder is wiped already. But a spare that has loaded kernels from it would go on with them, and
// write them to the next one where no sandbox keeps it from that.
void Worker::discard_readers_of_cache(const Death& death) {
  if (death.cause != DeathCause::kProtocolViolation) return;
  pool_.discard_running("it may have read what was in the cache folder that is wiped");
}

void Worker::vault_dropped() {
  spdlog::warn("worker {}: the vault is dropped: {}", name(), vault_.last_drop());
  pool_.discard_imported("they share memory that nobody trusts any more");
}

void Worker::process_ended(WorkerProcess& process, const Death& death) {
  if (&process == leaving_.get()) return predecessor_gone(death);
  const auto stuck = std::ranges::find(stuck_, &process, &std::unique_ptr<WorkerProcess>::get);
  if (stuck != stuck_.end()) {
    loop_.post([gone = std::shared_ptr(std::move(*stuck))] {});  // it is the caller of this
    stuck_.erase(stuck);
    if (may_start()) pool_.go_on();
    return;
  }
  loop_.post([gone = std::shared_ptr(std::move(process_))] {});  // it is the caller of this
  died(process, death);
  recovery.gone();
}

void Worker::died(WorkerProcess& process, const Death& death) {
  std::vector<WorkerEvents::Orphan> orphans = process.unfinished();
  const std::size_t unfinished = orphans.size() + std::exchange(given_back_, 0);
  const bool to_blame = std::exchange(blame_given_back_, false) ||
                        std::ranges::any_of(orphans, &WorkerEvents::Orphan::sent);
  ended_channels_ = sum(ended_channels_, process.channel_stats());
  ended_traffic_ = ended_traffic_ + process.traffic();
  if (state_ == WorkerState::kStopped) {
    events_.worker_changed(*this);
    return;
  }

  tell_vault_of_end(death);
  discard_readers_of_cache(death);
  // With requests it comes back for them: whoever wants it unloaded asks again when they are over.
  if (std::exchange(unload_after_drain_, false) && unfinished == 0) {
    ended_as_asked_ = death.as_asked || death.cause == DeathCause::kAsked;
    if (!ended_as_asked_) {
      last_death_ = death.words;
      last_death_cause_ = death.cause;
    }
    events_.worker_died(*this, death, std::move(orphans));
    return unloaded();
  }
  if (death.vault_unusable) {  // no death, but a cold start
    state_ = WorkerState::kRestarting;
    if (take_over()) return;
    schedule_restart(true);
    events_.worker_changed(*this);
    return;
  }
  const bool at_first_start = !ever_ready_;
  ended_as_asked_ = death.as_asked;
  if (death.as_asked) {
    recovery.ended_as_asked();
    spdlog::info("worker {}: ended as asked", name());
  } else {
    recovery.ended(unfinished);
    last_death_ = death.words;
    last_death_cause_ = death.cause;
    spdlog::error("worker {}: died: {}; {} unfinished request(s)", name(), death.words, unfinished);
    if (death.cause != DeathCause::kAsked) {
      const bool was_ready = serves(state_);
      policy_.died(death, to_blame,
                   was_ready ? steady_clock::now() - ready_since_ : steady_clock::duration::zero());
    }
  }
  if (at_first_start && !death.as_asked &&
      (!death.last_word.empty() || policy_.deaths() >= kDeathsAtFirstStart)) {
    state_ = WorkerState::kFailed;
    retry_later();
    events_.worker_died(*this, death, std::move(orphans));
    events_.worker_changed(*this);
    events_.worker_failed(*this, death.last_word.empty() ? death.words : death.last_word);
    return;
  }
  if (at_first_start) try_without_units(death);
  state_ = WorkerState::kRestarting;
  events_.worker_died(*this, death, std::move(orphans));
  if (state_ != WorkerState::kRestarting) return;  // stopped from within
  // Before a spare takes over: it would die of the same, and so on without an end.
  if (!death.as_asked && policy_.spent(options_.crash_budget)) return give_up(death.words);
  if (take_over()) return;
  if (!death.as_asked && !may_start()) {
    spdlog::error("worker {}: {} processes of it have not ended: no further one is tried", name(),
                  kMostStuck);
    return give_up(death.words);
  }
  schedule_restart(death.as_asked);
  events_.worker_changed(*this);
}

void Worker::leave_units_out() {
  // The worker heeds the last of several settings.
  options_.arguments.insert(options_.arguments.end(), {"--set", "engine.matrix_units=off"});
}

// A driver's compiler that crashes or hangs does so at each start. What asks most of it are kernels
// for matrix units: the last try before the daemon gives up goes without them. Nobody has had a
// token of it, so nobody sees another one.
void Worker::try_without_units(const Death& death) {
  const bool its_own = death.cause == DeathCause::kSignal || death.cause == DeathCause::kHang ||
                       death.cause == DeathCause::kDeviceLost;
  if (!options_.fallback || without_units_ || death.by_others() || !its_own ||
      policy_.deaths() + 1 < kDeathsAtFirstStart) {
    return;
  }
  without_units_ = true;
  leave_units_out();
  spdlog::warn(
      "worker {}: it has never been ready; the next try goes without the device's matrix units "
      "(engine.matrix_units=off), which is slower: a driver may fail to compile kernels for them",
      name());
}

}  // namespace bulkhead::orchestrator
