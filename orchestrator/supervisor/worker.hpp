// A worker as the daemon sees it: a name that outlives its processes. One process serves; spares may stand by
// (standby_pool.hpp). When the serving process ends, a spare takes over at once, or a successor is started. The
// receiver of the events (the router) decides what happens to a request whose worker died.
//
// States:   starting -> loading -> ready <-> draining -> drained
//               ^---- restarting <----- any of them, when the process ends; but a drained worker that has no request
//                                       stays drained
//                     loading    <----- the same, when a spare takes over: it is ready in a moment
//           restarting, too: the process that was ready is ending
//           unloaded: it has no process until load(); its vault may be kept. A worker begins in this state.
//           failed: it can't serve (it said so at its first start, or died too often in a row with no request to
//           blame); restart() tries again. stopped: the daemon is ending.
// One thread. Only worker_changed is ever called from within a call of the router's (drain, cancel, stop); the other
// events are not.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orchestrator/event_loop.hpp"
#include "orchestrator/supervisor/cache_folder.hpp"
#include "orchestrator/supervisor/recovery.hpp"
#include "orchestrator/supervisor/restart_policy.hpp"
#include "orchestrator/supervisor/standby_pool.hpp"
#include "orchestrator/supervisor/vault.hpp"
#include "orchestrator/supervisor/worker_process.hpp"

namespace bulkhead::orchestrator {

enum class WorkerState {
  kStarting,
  kLoading,
  kReady,
  kDraining,
  kDrained,
  kRestarting,
  kFailed,
  kStopped,
  kUnloaded
};
const char* to_string(WorkerState state);
// Returns whether a worker in this state has a process that serves its requests.
bool serves(WorkerState state);

class Worker;

// What a worker reports. If a function returns an error, the message broke a rule, and the worker kills the process
// for it.
class WorkerEvents {
 public:
  virtual ~WorkerEvents() = default;
  virtual void worker_changed(Worker& worker) = 0;  // state, progress, spares
  virtual Status worker_tokens(Worker& worker, const ipc::SequenceTokensView& view) = 0;
  // Any message about a request that the worker has, except tokens.
  virtual Status worker_answer(Worker& worker, ipc::FromWorker&& answer) = 0;
  // The process has ended, and the receiver gets its requests back. `sent`: the process may have seen the request.
  using Orphan = WorkerProcess::Unfinished;
  virtual void worker_died(Worker& worker, const Death& death, std::vector<Orphan> orphans) = 0;
  // The process is dead or certain to die, and the kernel has not reclaimed it yet: the receiver already gets its
  // requests back. worker_died() follows, without them. After an exception of worker_died() or of what follows it, the
  // receiver gets the process's requests in this way, and ignores those that it has back already.
  virtual void worker_lost(Worker& worker, const Death& death, std::vector<Orphan> orphans) = 0;
  virtual void standby_died(const Spare& spare) = 0;
  // The worker starts no more processes until restart().
  virtual void worker_failed(Worker& worker, const std::string& reason) = 0;
  // A failed worker asks this before it tries again. kByLoad: the receiver has already called load(). kNotNow: the
  // receiver has no memory for the worker, which asks again later.
  enum class Retry { kNow, kByLoad, kNotNow };
  virtual Retry worker_may_retry(Worker& worker) = 0;
};

class Worker : private ProcessEvents {
 public:
  Worker(EventLoop& loop, WorkerOptions options, WorkerEvents& events);
  ~Worker() override;

  void start();

  // Sends work to a worker in state ready (or draining, for requests that it has). The daemon queues it while the
  // ring is full. kInvalidArgument: the message is larger than the channel can carry.
  Status submit(RequestId request, ipc::ToWorker message);
  // Forgets the request, and tells the process if it has seen the request.
  void cancel(RequestId request);
  // The request is over on both sides.
  void finished(RequestId request);
  std::size_t outstanding() const { return process_ == nullptr ? 0 : process_->outstanding(); }

  bool drain();    // takes no new requests, finishes those that it has; false: it is not ready
  void restart();  // drains, then starts a new successor; its spares are replaced, too
  // kCold: the process loads the model, computes prompts and compiles kernels again, and uses nothing that was kept.
  enum class Start : std::uint8_t { kWarm, kCold };
  void start_cold_next() { next_is_cold_ = true; }  // for the next process, whenever it starts
  // Uses new options: spares and limits at once, the others from the next process on.
  void configure(WorkerOptions options);
  // Restarts the worker with other options, perhaps for another model. The worker must have no request.
  void replace(WorkerOptions options);
  // Ends the worker's processes once it has no request; it starts none before load(). The state is then kUnloaded.
  // The vault keeps the device memory until drop_vault().
  void unload();
  // Starts a worker that is unloaded or has failed. Its first process counts as a first start.
  void load();
  void drop_vault(const std::string& reason);
  bool profile();  // requests the times of a step's kernels in its stats; false: it is not ready
  void stop();     // ends the processes for good: asks them, then kills them
  void kill(const std::string& words);  // kills all processes at once
  // Sends SIGKILL to the process that serves, as anybody could: the worker notices the death and recovers from it as
  // from a crash. Returns false if no process serves.
  bool kill_process();
  // Any accepted token shows that the worker works: back-off and crash budget are reset.
  void token_accepted() { policy_.reset(); }

  const WorkerOptions& options() const { return options_; }
  // Returns the device of the worker's next process.
  const std::string& next_device() const {
    return (next_options_ ? *next_options_ : options_).device;
  }
  const std::string& name() const { return options_.name; }
  // kReady means that the worker can take requests: its process is not ending.
  WorkerState state() const {
    const bool leaves = process_ != nullptr && process_->is_dying();
    return state_ == WorkerState::kReady && leaves ? WorkerState::kRestarting : state_;
  }
  // Returns whether another worker is preferable although this one is ready.
  bool in_doubt() const { return process_ != nullptr && process_->in_doubt(); }
  pid_t pid() const { return process_ == nullptr ? -1 : process_->pid(); }
  // Returns whether all processes are gone after stop().
  bool gone() const {
    return process_ == nullptr && (leaving_ == nullptr || leaving_->stuck()) && pool_.gone();
  }
  bool ever_ready() const { return ever_ready_; }
  const Restarts& restarts() const { return restarts_; }  // successors of either kind
  std::uint64_t takeovers() const { return takeovers_; }  // how many of them were spares
  StandbyPool& pool() { return pool_; }
  const StandbyPool& pool() const { return pool_; }
  const Vault& vault() const { return vault_; }
  // Returns whether the worker drains, and a successor that will serve is about to replace it.
  bool returning() const { return restart_after_drain_ || restarts_again_; }
  // Returns whether the process died while the worker was draining, and a new process comes for the requests that were
  // left. The receiver gives the new process only these requests, and then calls drain() again. If the first drain was
  // for a restart, the second one ends in a restart, too.
  bool drains_again() const { return drains_again_; }
  // Returns whether unload() was called and the process still exists.
  bool unloading() const { return unload_after_drain_; }
  // Returns whether the last process ended because the daemon asked for it, which is no death.
  bool ended_as_asked() const { return ended_as_asked_; }
  // Returns the last death in words; empty if there was none. The cause counts only if there are words.
  const std::string& last_death() const { return last_death_; }
  DeathCause last_death_cause() const { return last_death_cause_; }
  // Returns why the next process is, or the last one was, started.
  DeathCause restart_cause() const {
    return ended_as_asked_ || last_death_.empty() ? DeathCause::kAsked : last_death_cause_;
  }
  const ipc::Ready& ready() const { return ready_; }
  // Returns which limits apply to the control group of the process that serves or loads.
  GroupReport control_group() const {
    return process_ == nullptr ? GroupReport{false, "no process runs"} : process_->control_group();
  }
  // Returns the mark of the model file that the last ready process had loaded.
  const std::string& file_mark() const { return file_mark_; }
  const ipc::Progress& progress() const;
  const ipc::Stats& stats() const;
  // Returns the figure with that name from stats(); 0 if the worker has not reported it.
  double reported(std::string_view figure) const;
  // These are sums over all processes that served.
  ipc::ChannelStats channel_stats() const;
  TokenTraffic token_traffic() const;
  std::uint64_t recovered_requests = 0;  // counted by the router
  Recovery recovery;                     // the router calls resumed()
  std::size_t held_bytes = 0;            // bytes of its unfinished answers, counted by the router

 private:
  // While a process that has just taken over replays requests, a new spare waits for this time, so that its loading
  // does not slow down the replay.
  static constexpr std::chrono::milliseconds kSpareAfterTakeover{1000};

  void process_changed(WorkerProcess& process) override;
  Status process_tokens(const ipc::SequenceTokensView& view) override;
  Status process_answer(ipc::FromWorker&& answer) override;
  void process_offered(WorkerProcess& process) override;
  void process_dying(WorkerProcess& process) override;
  void process_lost(WorkerProcess& process, const Death& death) override;
  void process_stopped(WorkerProcess& process) override;
  void process_stuck(WorkerProcess& process, const Death& death) override;
  void process_ended(WorkerProcess& process, const Death& death) override;

  void surely_died(WorkerProcess& process, const Death& death);
  void died(WorkerProcess& process, const Death& death);
  void note_end(const Death& death, std::size_t unfinished, bool to_blame);
  void predecessor_gone(const Death& death);
  void leave_in_kernel(std::unique_ptr<WorkerProcess> process);
  bool may_start() const;
  void tell_vault_of_end(const Death& death);
  void owe_restart();
  void spare_ended(const Spare& spare, const Death& death);
  void vault_dropped();
  void discard_readers_of_cache(const Death& death);
  void start_process();
  void try_to_start();
  bool take_over();
  void spares_changed();
  void schedule_restart(bool immediately);
  void try_without_units(const Death& death);
  void leave_units_out();
  void give_up(const std::string& reason);
  void retry_later();
  void watch_cache();
  bool looked_at_files();
  void end_after_drain();
  void unloaded();
  void become_next();
  void choose_owner_of_cache();
  // Which function reports a change to the receiver: set_state(), at once, or its caller, which first has more to do
  // or to report.
  enum class Tell { kNow, kByCaller };
  // No other function assigns state_.
  void set_state(WorkerState state, Tell tell = Tell::kNow);

  EventLoop& loop_;
  WorkerOptions options_;
  WorkerEvents& events_;
  WorkerState state_ = WorkerState::kUnloaded;

  Vault vault_;                             // must outlive the processes that get memory from it
  CacheFolder cache_;                       // must outlive the processes that write to it
  CacheFolder::Check cache_check_;          // for the next process; begins when no process runs
  StartFilesLook start_files_;              // begins when that check has passed
  std::uint32_t kills_at_import_ = 0;       // in a row
  std::unique_ptr<WorkerProcess> process_;  // null between two
  // An earlier process that has stopped but whose exit is not complete; another one already serves.
  std::unique_ptr<WorkerProcess> leaving_;
  bool starts_when_it_is_gone_ = false;
  // Earlier processes for which nobody waits, including spares.
  std::vector<std::unique_ptr<WorkerProcess>> stuck_;
  // How many requests the dying process had, and whether it had seen one.
  std::size_t given_back_ = 0;
  bool blame_given_back_ = false;
  StandbyPool pool_;
  Timer restart_timer_;
  Timer retry_timer_;               // for a failed worker
  Timer cache_timer_;               // fires when the cache folder is to be measured again
  std::uint32_t failed_tries_ = 0;  // since it was last ready
  RestartPolicy policy_;
  std::optional<WorkerOptions> next_options_;   // used when the process that serves has ended
  Recovery::Way way_ = Recovery::Way::kLoaded;  // for the process that serves
  std::chrono::steady_clock::time_point ready_since_{};

  bool ever_ready_ = false;
  bool without_units_ = false;  // try_without_units()
  bool restart_after_drain_ = false;
  bool unload_after_drain_ = false;
  bool drains_again_ = false;
  bool restarts_again_ = false;  // owe_restart()
  bool left_requests_ = false;   // a process died with requests, and none was ready since
  bool next_is_cold_ = false;    // start_cold_next()
  bool ended_as_asked_ = false;
  Restarts restarts_;
  std::uint64_t takeovers_ = 0;
  std::string last_death_;
  DeathCause last_death_cause_ = DeathCause::kSignal;

  std::string file_mark_;
  ipc::Ready ready_;                  // from the last process that was ready
  ipc::ChannelStats ended_channels_;  // sums over earlier processes
  TokenTraffic ended_traffic_;
};

}  // namespace bulkhead::orchestrator
