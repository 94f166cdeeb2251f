// What a worker does when one of its processes ends, or can serve no more: it gives the requests
// back, decides what memory a successor may have, and starts a successor or gives up.
#include <algorithm>
#include <exception>
#include <utility>

#include "config/base/log.hpp"
#include "orchestrator/supervisor/worker.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr std::uint32_t kDeathsAtFirstStart = 3;  // then the daemon gives up
constexpr std::uint32_t kKillsAtImport = 3;       // then the worker drops the vault
constexpr std::size_t kMostStuck = 3;  // processes that don't end; the worker starts no further one

}  // namespace

void Worker::process_dying(WorkerProcess& process) {
  if (&process == process_.get()) recovery.noticed();
}

// Gives the requests back at once: another worker need not wait for the exit of this process, but
// this worker's own successor must.
void Worker::process_lost(WorkerProcess& process, const Death& death) {
  if (&process != process_.get()) return;
  // The check runs while the process exits, which takes longer.
  if (process.has_stopped() && state_ != WorkerState::kStopped) cache_.begin(cache_check_);
  if (!serves(state_)) return;
  const std::vector<WorkerEvents::Orphan> orphans = process.unfinished();
  if (orphans.empty()) return;
  events_.worker_lost(*this, death, orphans);
  // The process keeps them until here: if worker_lost() throws, they go back when the process has ended.
  (void)process.take_unfinished();
  given_back_ += orphans.size();
  blame_given_back_ |= std::ranges::any_of(orphans, &WorkerEvents::Orphan::sent);
}

// Lets a spare take over before the process has exited, because the kernel may need half a second
// to free the process's memory. The device may still compute the process's last steps during that
// time, and the vault's directory says where those steps can write (worker/vault/README.md). The
// worker does this only after a kill from outside: a process that ended itself, crashed or was
// killed by this daemon may have given the device other work, too.
void Worker::process_stopped(WorkerProcess& process) {
  if (&process != process_.get() || leaving_ != nullptr || state_ != WorkerState::kReady) return;
  if (!vault_.may_adopt_kv() || !pool_.ready(vault_.epoch())) return;
  const Death& death = process.known_death();
  if (!death.by_others()) return;
  leaving_ = std::move(process_);
  surely_died(process, death);
}

// Counts the process as dead and starts its successor beside it. The successor gets none of the
// process's memory, because the device may continue the process's work as long as that memory
// exists. If the device has no room for the model a second time, the successor ends with that
// error, and the worker starts another one until the crash budget is spent.
void Worker::process_stuck(WorkerProcess& process, const Death& death) {
  if (&process == leaving_.get()) {
    if (state_ == WorkerState::kStopped) return events_.worker_changed(*this);
    // A spare that serves has taken over everything, and needs nothing of this process. A spare that does not serve
    // yet waits for this exit (worker/vault/README.md).
    if (process_ != nullptr && !serves(state_)) {
      leave_in_kernel(std::move(leaving_));
      return process_->kill("took over from a process that does not end");
    }
    if (starts_when_it_is_gone_ && process_ == nullptr) start_process();
    return;
  }
  leave_in_kernel(std::move(process_));
  surely_died(process, death);
}

// Bounds the processes that do not end: each keeps its memory, and the next one may not end either.
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
  recovery.gone();
  if (state_ == WorkerState::kStopped) return events_.worker_changed(*this);
  if (!death.by_others()) {  // the worker had assumed a kill from outside
    spdlog::error("worker {}: the process before it ended in another way than it had seemed: {}",
                  name(), death.words);
    vault_.drop("the process that made it did not end as it had seemed");
    vault_dropped();
    if (process_ != nullptr) process_->kill("took over from a process whose end casts doubt");
  } else if (process_ != nullptr) {
    process_->settle();
  }
}

void Worker::tell_vault_of_end(const Death& death) {
  if (death.as_asked && death.cause != DeathCause::kDeviceLost) return vault_.next_is_asked_for();
  const bool held = vault_.held();
  // A spare may have been given an earlier vault, which is gone by now.
  const bool importing = death.importing && death.vault == vault_.epoch();
  if (death.vault_unusable) {
    if (importing) vault_.drop(death.last_word.empty() ? death.words : death.last_word);
  } else {
    vault_.ended(death.cause);
    // The process died before it served. Unless a kill from outside ended it, the memory that it
    // took over may be the cause.
    if (importing && (!death.by_others() || ++kills_at_import_ >= kKillsAtImport))
      vault_.drop("a process that was importing it died: " + death.words);
  }
  if (held && !vault_.held()) vault_dropped();
}

// Notes the end of a spare. A spare shares the memory of the process that serves, and computes
// nothing before its promotion, so its end leaves the KV pages as they were. But the worker gives a
// successor no vault that failed the spare, or that the spare may have spoilt.
void Worker::spare_ended(const Spare& spare, const Death& death) {
  if (!death.vault_unusable) events_.standby_died(spare);
  discard_readers_of_cache(death);
  const bool had_it = death.vault != 0 && death.vault == vault_.epoch();
  const bool spoilt =
      death.cause == DeathCause::kDeviceLost || death.cause == DeathCause::kProtocolViolation;
  if (had_it && (spoilt || (death.importing && !death.by_others()))) {
    vault_.drop("a spare: " + (death.last_word.empty() ? death.words : death.last_word));
    vault_dropped();
  }
  // The pool also replaces other spares that ended at the same time.
  if (serves(state_) && !unload_after_drain_) pool_.keep(options_.standby, kSpareAfterTakeover);
}

// Called if a person asked for a restart, and the process ends in another way before it. The next process may open
// another model file. But if requests have begun with the old process's memory, the next process imports that memory
// for them, and the worker restarts once more after they have ended.
void Worker::owe_restart() {
  if (left_requests_ && vault_.held()) {
    drains_again_ = restarts_again_ = true;
  } else {
    vault_.next_is_asked_for();
  }
}

// Ends spares after a process has broken a rule. The daemon has wiped the cache folder by then, but
// a spare that has loaded kernels from the folder would go on with them, and would write them to
// the new folder if no sandbox prevents that.
void Worker::discard_readers_of_cache(const Death& death) {
  if (death.cause != DeathCause::kProtocolViolation) return;
  pool_.discard_running("it may have read what was in the cache folder that is wiped");
}

void Worker::vault_dropped() {
  spdlog::warn("worker {}: the vault is dropped: {}", name(), vault_.last_drop());
  pool_.discard_imported("they share memory that is not trusted any more");
}

void Worker::process_ended(WorkerProcess& process, const Death& death) {
  if (&process == leaving_.get()) {
    destroy_later(loop_, leaving_);
    try {
      predecessor_gone(death);
    } catch (const std::exception& error) {
      loop_.caught("what follows the end of a worker's former process", error);
    }
    const bool starts = std::exchange(starts_when_it_is_gone_, false);
    if (starts && process_ == nullptr && state_ != WorkerState::kStopped) start_process();
    return;
  }
  const auto stuck = std::ranges::find(stuck_, &process, &std::unique_ptr<WorkerProcess>::get);
  if (stuck != stuck_.end()) {
    destroy_later(loop_, *stuck);
    stuck_.erase(stuck);
    if (may_start()) pool_.go_on();
    return;
  }
  destroy_later(loop_, process_);
  surely_died(process, death);
  recovery.gone();
}

// Whatever died() throws (there is no memory), the requests go back and a successor is started: nothing else would.
void Worker::surely_died(WorkerProcess& process, const Death& death) {
  try {
    const bool is_reaped = process.pid() < 0;
    if (is_reaped && state_ != WorkerState::kStopped) cache_.begin(cache_check_);
    return died(process, death);
  } catch (const std::exception& error) {
    loop_.caught("what follows the end of a worker's process", error);
  }
  // The receiver ignores those that it has already.
  std::vector<WorkerEvents::Orphan> orphans = process.take_unfinished();
  const bool over = state_ == WorkerState::kStopped || state_ == WorkerState::kFailed ||
                    state_ == WorkerState::kUnloaded ||
                    (state_ == WorkerState::kDrained && orphans.empty());
  if (!over && process_ == nullptr && !restart_timer_.running()) schedule_restart(false);
  if (!orphans.empty()) events_.worker_lost(*this, death, std::move(orphans));
}

void Worker::note_end(const Death& death, std::size_t unfinished, bool to_blame) {
  ended_as_asked_ = death.as_asked;
  if (death.as_asked) return spdlog::info("worker {}: ended as asked", name());
  last_death_ = death.words;
  last_death_cause_ = death.cause;
  spdlog::error("worker {}: died: {}; {} unfinished request(s)", name(), death.words, unfinished);
  if (death.cause == DeathCause::kAsked) return;
  const bool was_ready = serves(state_);
  policy_.died(death, to_blame,
               was_ready ? steady_clock::now() - ready_since_ : steady_clock::duration::zero());
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
  left_requests_ |= unfinished > 0;
  if (restart_after_drain_ && !death.as_asked) owe_restart();
  discard_readers_of_cache(death);
  // If the process had requests, the worker starts again for them; the router unloads it when they
  // are over.
  if (std::exchange(unload_after_drain_, false) && unfinished == 0) {
    ended_as_asked_ = death.as_asked || death.cause == DeathCause::kAsked;
    if (!ended_as_asked_) {
      last_death_ = death.words;
      last_death_cause_ = death.cause;
    }
    recovery.forget_end();
    events_.worker_died(*this, death, std::move(orphans));
    return unloaded();
  }
  if (death.vault_unusable) {  // a cold start, and no death
    recovery.forget_end();
    set_state(WorkerState::kRestarting, Tell::kByCaller);
    if (take_over()) return;
    schedule_restart(true);
    events_.worker_changed(*this);
    return;
  }
  const bool at_first_start = !ever_ready_;
  // A drained worker serves only the requests that it had. Without any, it has no process until restart().
  const bool drains = (state_ == WorkerState::kDraining || state_ == WorkerState::kDrained) &&
                      !restart_after_drain_;
  const bool rests = drains && unfinished == 0;
  note_end(death, unfinished, to_blame);
  if (death.as_asked || rests) {
    recovery.forget_end();
  } else {
    recovery.ended(unfinished);
  }
  if (rests) {
    set_state(WorkerState::kDrained, Tell::kByCaller);
    events_.worker_died(*this, death, std::move(orphans));
    events_.worker_changed(*this);
    return;
  }
  drains_again_ |= drains;
  if (at_first_start && !death.as_asked &&
      (!death.last_word.empty() || policy_.deaths() >= kDeathsAtFirstStart)) {
    set_state(WorkerState::kFailed, Tell::kByCaller);
    retry_later();
    events_.worker_died(*this, death, std::move(orphans));
    events_.worker_changed(*this);
    events_.worker_failed(*this, death.last_word.empty() ? death.words : death.last_word);
    return;
  }
  if (at_first_start) try_without_units(death);
  set_state(WorkerState::kRestarting, Tell::kByCaller);
  events_.worker_died(*this, death, std::move(orphans));
  if (state_ != WorkerState::kRestarting) return;  // a receiver has stopped the worker
  // This check comes before a spare takes over: the spare would die of the same cause, and so would
  // the next.
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
  // The worker's process heeds the last of several settings.
  options_.arguments.insert(options_.arguments.end(), {"--set", "engine.matrix_units=off"});
}

// Leaves matrix units out of the last try before the daemon gives up. A driver's compiler that
// crashes or hangs does so at each start, and kernels for matrix units ask most of it. No client
// has had a token of this worker, so no client sees a token change.
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
