// The spare processes of one worker. A spare loads the model, warms up, and waits to take over from the process that
// serves. A spare that dies is replaced, with back-off, and given up when its crash budget is spent; no request and
// no other process is affected. If a spare could not use the vault, that does not count as a death: a spare that
// loads the model replaces it.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "orchestrator/event_loop.hpp"
#include "orchestrator/supervisor/restart_policy.hpp"
#include "orchestrator/supervisor/worker_process.hpp"

namespace bulkhead::orchestrator {

class Spare : private ProcessEvents {
 public:
  enum class State { kStarting, kLoading, kStandby, kRestarting, kFailed };

  struct Hooks {
    std::function<void()> changed;  // at each change of state
    // At each end that was not requested, before a successor is started; last_death() is set if it was a death.
    std::function<void(const Spare&, const Death&)> ended;
    // Passes a process that does not end (ProcessEvents::process_stuck) to the receiver.
    std::function<void(std::unique_ptr<WorkerProcess>)> left_in_kernel;
    // Returns whether there may be one more process.
    std::function<bool()> may_start;
  };
  Spare(EventLoop& loop, const WorkerOptions& options, Vault& vault, CacheFolder& cache,
        std::string name, const Hooks& hooks);

  void start_in(std::chrono::milliseconds delay);
  void restart();  // starts a new process, even if the spare has failed
  void go_on();    // continues if it waited for may_start()
  // Returns whether it stands by with this vault's memory (0: with any).
  bool ready(std::uint64_t vault) const;
  // Gives the process away; null if none stands by.
  std::unique_ptr<WorkerProcess> take();
  void leave(const std::string& why);  // ends it for good; asks it first if it can receive messages
  void kill(const std::string& why);   // the same, without asking
  bool gone() const { return leaving_ && process_ == nullptr; }
  bool leaving() const { return leaving_; }

  State state() const { return state_; }
  const std::string& name() const { return name_; }
  const WorkerProcess* process() const { return process_.get(); }  // null between two processes
  const Restarts& restarts() const { return restarts_; }
  const std::string& last_death() const { return last_death_; }  // empty: it never died
  DeathCause last_death_cause() const { return last_death_cause_; }

 private:
  void process_changed(WorkerProcess& process) override;
  Status process_tokens(const ipc::SequenceTokensView&) override;
  Status process_answer(ipc::FromWorker&&) override;
  void process_offered(WorkerProcess&) override {}
  void process_dying(WorkerProcess&) override {}
  void process_lost(WorkerProcess&, const Death&) override {}
  void process_stopped(WorkerProcess&) override {}
  void process_stuck(WorkerProcess& process, const Death& death) override;
  void process_ended(WorkerProcess& process, const Death& death) override;
  void start();
  void try_to_start();
  void go_on_after(const char* what, const std::exception& error);
  void ended(const Death& death);
  void died(const Death& death);
  void set_state(State state);

  EventLoop& loop_;
  const WorkerOptions& options_;
  Vault& vault_;
  CacheFolder& cache_;
  CacheFolder::Check cache_check_;  // for the process that the spare starts next
  StartFilesLook start_files_;      // begins when that check has passed
  std::string name_;
  const Hooks& hooks_;
  State state_ = State::kStarting;
  bool held_up_ = false;  // it failed and waits for may_start()
  std::unique_ptr<WorkerProcess> process_;
  Timer timer_;
  RestartPolicy policy_;
  std::chrono::steady_clock::time_point ready_since_{};
  bool leaving_ = false;
  Restarts restarts_;
  std::string last_death_;
  DeathCause last_death_cause_ = DeathCause::kExit;
};
const char* to_string(Spare::State state);

class StandbyPool {
 public:
  // `options`, `vault` and `cache` must outlive it.
  StandbyPool(EventLoop& loop, const WorkerOptions& options, Vault& vault, CacheFolder& cache,
              Spare::Hooks hooks);

  // Sets the number of spares; missing ones are started after `delay`.
  void keep(std::uint32_t count, std::chrono::milliseconds delay = {});
  // Returns whether a spare stands by that has this vault's memory.
  bool ready(std::uint64_t vault) const;
  // Gives a loaded process to the caller; null if none stands by. keep() replaces it. `vault`: only a process with
  // this memory; 0: with any.
  std::unique_ptr<WorkerProcess> take(std::uint64_t vault = 0);
  void discard(const std::string& why);  // ends all of them; keep() starts others
  // Ends the spares that share memory with the process that has just ended.
  void discard_imported(const std::string& why);
  // Ends the spares that have a process.
  void discard_running(const std::string& why);
  void kill(const std::string& why);
  void go_on();  // may_start() returns true again
  bool gone() const { return spares_.empty(); }
  Spare* find(std::string_view name);
  const std::vector<std::unique_ptr<Spare>>& spares() const { return spares_; }

 private:
  void remove_gone();
  void remove_gone_later();
  std::string free_name() const;

  EventLoop& loop_;
  const WorkerOptions& options_;
  Vault& vault_;
  CacheFolder& cache_;
  const std::function<void()> changed_;
  const Spare::Hooks hooks_;  // for its spares
  std::vector<std::unique_ptr<Spare>> spares_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for deferred calls
};

}  // namespace bulkhead::orchestrator
