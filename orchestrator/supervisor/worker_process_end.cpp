// Follows the end of a process from the first sign of it to its exit, or to the moment when the daemon stops waiting
// for the exit.
#include <signal.h>

#include <exception>

#include "config/base/log.hpp"
#include "ipc/exit_codes.hpp"
#include "orchestrator/supervisor/worker_process.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;

namespace {

// The time between looks for the end of the process's other threads, once its first thread or its channel has ended.
// After some looks the daemon waits for the exit.
constexpr milliseconds kBetweenLooks{1};
constexpr int kMostLooksForTheEnd = 50;
// A dead process can't have left more bytes to be read, whatever the transport, except in its ring.
constexpr std::uint64_t kMostLastBytes = std::uint64_t{20} << 20;
constexpr const char* kBrokeARule = "a process that broke a rule could write to it";

// A process that did not end, after its WorkerProcess was destroyed. This object keeps itself alive.
struct Leftover {
  std::string name;
  WorkerGroup group;  // declared before the process, so that the group is removed after it
  Process process;
  ReadableWatch watch;

  Leftover(EventLoop& loop, std::string of, WorkerGroup its_group, Process its)
      : name(std::move(of)),
        group(std::move(its_group)),
        process(std::move(its)),
        watch(loop, process.exit_fd()) {}

  static void reap_at_its_end(const std::shared_ptr<Leftover>& self) {
    self->watch.wait([self] {
      const pid_t pid = self->process.pid();
      if (!self->process.ended().has_value()) return reap_at_its_end(self);
      tell(self->name, pid);
    });
  }
  static void tell(const std::string& name, pid_t pid) {
    spdlog::info("worker {}: process {}, for which the daemon no longer waited, has ended", name,
                 pid);
  }
};

// The first process of a namespace, after the worker's end. This object keeps itself alive until it has reaped it.
struct FirstOfNamespace {
  Process process;
  ReadableWatch watch;

  FirstOfNamespace(EventLoop& loop, Process its)
      : process(std::move(its)), watch(loop, process.exit_fd()) {}

  static void reap_at_its_end(const std::shared_ptr<FirstOfNamespace>& self) {
    self->watch.wait([self] {
      if (!self->process.ended().has_value()) reap_at_its_end(self);
    });
  }
};

}  // namespace

WorkerProcess::~WorkerProcess() {
  if (!stuck_ || process_.pid() < 0) return;
  exit_watch_.reset();  // it watches the same descriptor
  Leftover::reap_at_its_end(
      std::make_shared<Leftover>(loop_, name_, std::move(group_), std::move(process_)));
}

// Called once the process serves, for the threads that it has then. A thread's end shows the process's death
// earlier than the channel does: the channel closes only when the kernel has unmapped the process's memory.
void WorkerProcess::watch_threads() {
  thread_watches_.clear();
  thread_exits_ = process_.thread_exit_fds();
  for (const UniqueFd& fd : thread_exits_) {
    thread_watches_.push_back(std::make_unique<ReadableWatch>(loop_, fd.get()));
    thread_watches_.back()->wait([this] {
      looks_ = 0;
      look_whether_stopped();
    });
  }
}

// The exit may take long, because a driver unmaps and frees the process's memory, gigabyte by gigabyte. But the end
// of all its threads is known at once.
void WorkerProcess::look_whether_stopped() {
  if (stopped_.has_value() || channel_ == nullptr) return;
  stopped_ = process_.stopped();
  if (!stopped_.has_value()) {
    if (++looks_ <= kMostLooksForTheEnd)
      stop_timer_.start(kBetweenLooks, [this] { look_whether_stopped(); });
    return;
  }
  dying();
  heartbeat_timer_.cancel();
  kill_timer_.cancel();
  channel_watch_.reset();
  receive_last_words();
  const bool killed = stopped_->killed_by(SIGKILL) && kill_cause_.empty() && !asked_to_end_;
  if (killed && fatal_.empty() && stage_ == Stage::kServing) events_->process_stopped(*this);
  // The kernel shows what ended a process only to processes that may trace it; others see the status 0.
  if (kill_cause_.empty() && stopped_->status == 0) return;
  if (kill_cause_.empty()) known_death();
  lost();
}

// This runs in a later turn of the loop, because the caller may be in the middle of its own work.
void WorkerProcess::lost() {
  loop_.post([this, weak = std::weak_ptr(alive_)] {
    if (weak.expired()) return;
    events_->process_lost(*this, told_ ? *told_ : how_it_ended(Exit{CLD_KILLED, SIGKILL}));
  });
}

const Death& WorkerProcess::known_death() {
  if (!told_.has_value()) told_ = how_it_ended(*stopped_);
  return *told_;
}

// SIGKILL does not end a process that waits in the kernel for a driver, and an ended process may wait there while the
// kernel frees it. That may take any time, so its requests do not wait for it.
void WorkerProcess::exit_took_too_long() {
  if (process_.has_ended()) return;  // ended() will be called soon
  receive_last_words();
  if (!told_.has_value()) told_ = how_it_ended(stopped_.value_or(Exit{CLD_KILLED, SIGKILL}));
  Death death = *told_;
  death.words += fmt::format(", and the kernel has not taken the process back for {} ms",
                             options_.exit_timeout.count());
  spdlog::error(
      "worker {}: process {} {}, but the kernel has not taken it back for {} ms "
      "(isolation.exit_timeout_ms); the daemon no longer waits for it, and its device memory is "
      "not "
      "free",
      name_, process_.pid(), stopped_.has_value() ? "has ended" : "was killed",
      options_.exit_timeout.count());
  stuck_ = true;
  close_channel();
  process_.let_go();
  if (death.cause == DeathCause::kProtocolViolation) cache_.drop(kBrokeARule);
  events_->process_stuck(*this, death);
}

void WorkerProcess::close_channel() {
  heartbeat_timer_.cancel();
  kill_timer_.cancel();
  stop_timer_.cancel();
  channel_watch_.reset();
  thread_watches_.clear();
  thread_exits_.clear();
  if (channel_ != nullptr) last_channel_stats_ = channel_->stats();
  channel_.reset();
}

// Runs before anything of the process is forgotten.
Death WorkerProcess::how_it_ended(const Exit& exit) const {
  Death death{.cause = kill_kind_, .words = kill_cause_, .last_word = fatal_};
  death.vault = given_vault_;
  death.importing = given_vault_ != 0 && loading();
  death.from_outside = was_stopped_;
  death.pid = process_.pid();
  if (channel_ != nullptr) death.step = channel_->last_beat();
  if (!kill_cause_.empty()) return death;
  death.as_asked = asked_to_end_;
  const std::string words = describe_exit(exit.code, exit.status);
  const std::optional<std::uint64_t> oom_kills = group_.oom_kills();
  if (exit.killed_by(SIGKILL) &&
      (oom_kills.has_value() ? *oom_kills > 0 : OomKills::of_workers().grew())) {
    death.cause = DeathCause::kOutOfMemory;
    death.words = "out of memory: " + words + " by the kernel's OOM killer";
    if (group_.reached_memory_limit())
      death.words += fmt::format(" at the limit of {} MiB (isolation.worker_memory_mb)",
                                 options_.most_memory_bytes >> 20);
    return death;
  }
  death.words = fatal_.empty() ? words : fatal_ + " (" + words + ")";
  if (exit.exited_with(ipc::kExitDeviceLost)) {
    // The process's message may have found no room, so the exit code alone counts as a sign of a lost device.
    const bool told = fatal_.find("device lost") != std::string::npos;
    death.cause = DeathCause::kDeviceLost;
    if (!told) death.words = "device failure: " + death.words;
    if (fatal_.empty()) death.words += ", and gave no reason";
  } else if (exit.code != CLD_EXITED) {
    death.cause = DeathCause::kSignal;
    death.signal = exit.status;
    // A process can't send itself these signals by mistake.
    death.from_outside = exit.killed_by(SIGKILL) || exit.killed_by(SIGTERM);
  } else if (loading()) {
    death.vault_unusable = death.importing && exit.exited_with(ipc::kExitVaultUnusable);
    death.cause = DeathCause::kFailedStart;
    death.words = "failed start: " + death.words;
  } else {
    death.cause = DeathCause::kExit;
  }
  return death;
}

// Reads what the process sent before it died: the daemon accepts those tokens, and the client gets them. A process
// that the worker has started may still write, so the reading is bounded.
void WorkerProcess::receive_last_words() {
  const std::uint64_t most_bytes = kMostLastBytes + std::uint64_t{options_.ipc.ring_kib} * 1024;
  std::uint64_t bytes = 0;
  for (int i = 0; channel_ != nullptr && i < 65536 && bytes < most_bytes && kill_cause_.empty();
       ++i) {
    auto record = channel_->try_receive();
    if (!record.ok() && record.error().code() == ErrorCode::kCorrupt)
      return condemn(record.error().message());
    if (!record.ok() || record->empty()) break;
    bytes += record->size();
    Status handled = take_record(*record);
    channel_->release();
    if (!handled.ok()) return condemn(handled.error().message());
  }
}

// Marks a process that has already ended as one that broke a rule; that decides what a successor may be given.
void WorkerProcess::condemn(const std::string& rule) {
  kill_cause_ = "protocol violation: " + rule;
  kill_kind_ = DeathCause::kProtocolViolation;
}

// Without memory, what the process sent last is lost, and the words about its end are few; but the worker learns of the
// end in any case, because nothing else would start a successor.
void WorkerProcess::ended() {
  try {
    events_->process_dying(*this);
    receive_last_words();
  } catch (const std::exception& error) {
    loop_.caught("the reading of a worker's last messages", error);
  }
  const pid_t process_pid = process_.pid();  // there is no number once the process is reaped
  std::optional<Exit> exit = process_.ended();
  if (!exit.has_value()) {  // a spurious wake-up
    exit_watch_->wait([this] { ended(); });
    return;
  }
  Death death;
  try {
    const bool known = told_.has_value() && (stuck_ || exit->killed_by(SIGKILL));
    death = known ? *told_ : how_it_ended(*exit);
  } catch (const std::exception& error) {
    loop_.caught("the words about a worker's end", error);
    const bool lost_device = exit->exited_with(ipc::kExitDeviceLost);
    death.cause = !kill_cause_.empty() ? kill_kind_
                  : lost_device        ? DeathCause::kDeviceLost
                                       : DeathCause::kExit;
    death.words = "it has ended";  // short enough to need no memory
  }
  close_channel();
  exit_timer_.cancel();
  exit_watch_.reset();
  try {
    if (stuck_) Leftover::tell(name_, process_pid);
    if (Process first = process_.take_first_of_namespace(); first.exit_fd() >= 0)
      FirstOfNamespace::reap_at_its_end(
          std::make_shared<FirstOfNamespace>(loop_, std::move(first)));
  } catch (const std::exception& error) {  // that process has been killed and reaped here
    loop_.caught("the watch of a namespace's first process", error);
  }
  process_ = Process();
  group_ = WorkerGroup();
  alive_.reset();
  tell_of_end(death);
}

void WorkerProcess::tell_of_end(const Death& death) {
  constexpr milliseconds kAgain{100};
  try {
    // This happens before a successor can start.
    if (death.cause == DeathCause::kProtocolViolation && !stuck_) cache_.drop(kBrokeARule);
    events_->process_ended(*this, death);
  } catch (const std::exception& error) {
    loop_.caught("what follows the end of a worker's process", error);
    exit_timer_.start(kAgain, [this, death] { tell_of_end(death); });
  }
}

}  // namespace bulkhead::orchestrator
