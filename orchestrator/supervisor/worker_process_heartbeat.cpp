// Watches whether a process lives: when the daemon pings it, when its silence counts as a hang, and what it did
// meanwhile.
#include <cstdlib>
#include <exception>

#include "config/base/log.hpp"
#include "orchestrator/supervisor/worker_process.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Heartbeat::Phase WorkerProcess::phase() const {
  if (loading()) return Heartbeat::Phase::kLoading;
  return outstanding_.empty() ? Heartbeat::Phase::kIdle : Heartbeat::Phase::kBusy;
}

bool WorkerProcess::in_doubt() const {
  return doubted_.has_value() ||
         (outstanding_.empty() && heartbeat_.waits_for_answer(steady_clock::now()));
}

void WorkerProcess::begin_heartbeat() {
  heartbeat_.begin(steady_clock::now());
  look_again();
}

void WorkerProcess::look_again() {
  heartbeat_timer_.start(Heartbeat::next_look(phase(), options_.heartbeat_timeout), [this] {
    try {
      check_heartbeat();
    } catch (const std::exception& error) {  // without the next look no hang would be noticed
      loop_.caught("a look at a worker's heartbeat", error);
      look_again();
    }
  });
}

void WorkerProcess::check_heartbeat() {
  if (channel_ == nullptr || !kill_cause_.empty() || asked_to_end_ || stopped_.has_value()) return;
  if (has_too_many_threads()) return;
  const Heartbeat::Verdict verdict =
      heartbeat_.look(steady_clock::now(), phase(), channel_->last_beat(), outbox_.empty(),
                      options_.heartbeat_timeout);
  if (!verdict.hang.empty()) {
    if (const std::optional<Activity> now = process_.activity(); now.has_value()) {
      was_stopped_ = now->stopped();
      tell_what_it_did(verdict.hang, *now);
      // A process that waits for a busy CPU does not hang.
      const bool starved = doubted_.has_value() && Activity::was_starved(*doubted_, *now);
      if (starved && heartbeat_.wait_longer(steady_clock::now())) {
        spdlog::warn("worker {}: its threads waited for a CPU meanwhile: it is given more time",
                     name_);
        doubted_.reset();
        return look_again();
      }
    }
    return kill(verdict.hang, DeathCause::kHang);
  }
  if (verdict.overdue && ended_as_stopped()) return;
  if (!verdict.doubtful) {
    doubted_.reset();
  } else if (!doubted_.has_value()) {
    doubted_ = process_.activity();
  }
  if (verdict.ping.has_value()) send(ipc::Ping{*verdict.ping});
  look_again();
}

bool WorkerProcess::has_too_many_threads() {
  const auto now = steady_clock::now();
  if (now - threads_counted_ < kBetweenThreadCounts) return false;
  threads_counted_ = now;
  const std::size_t threads = process_.threads();
  if (threads <= kMostThreads) return false;
  violated(fmt::format("{} threads, and {} are allowed", threads, kMostThreads));
  return true;
}

// Kills a process that is stopped while it loads. A driver may take long to compile a kernel, but a
// stopped process makes no progress.
bool WorkerProcess::ended_as_stopped() {
  const std::optional<Activity> now = process_.activity();
  if (!now.has_value() || !now->stopped()) return false;
  was_stopped_ = true;
  kill(fmt::format("hang: stopped for {} ms while loading", options_.heartbeat_timeout.count()),
       DeathCause::kHang);
  return true;
}

// Logs whether the process was stopped, waited for something, or computed all the time. Without
// this line a machine that is too slow for isolation.heartbeat_timeout_ms would look like a hang.
void WorkerProcess::tell_what_it_did(const std::string& verdict, const Activity& now) const {
  const char* state = now.stopped()      ? "stopped"
                      : now.state == 'R' ? "running"
                      : now.state == 'D' ? "in the kernel"
                                         : "waiting";
  const milliseconds computed =
      doubted_.has_value() ? now.computed - doubted_->computed : milliseconds(0);
  double load[1] = {0};
  (void)::getloadavg(load, 1);
  spdlog::warn(
      "worker {}: {}: process {} is {}, and has computed for {} ms in the second half of that "
      "time; "
      "the machine's load average is {:.1f}",
      name_, verdict, process_.pid(), state, computed.count(), load[0]);
}

}  // namespace bulkhead::orchestrator
