// A worker as the daemon sees it: a name that outlives its processes. Starts a process, speaks with
// it over a Channel, checks everything it says, notices its death or its silence, and starts a
// successor. What a request is, and what becomes of one whose worker died, is the events'
// receiver's business (the router).
//
// States:   starting -> loading -> ready <-> draining -> drained
//               ^---- restarting <----- any of them, when the process ends
//           failed: the worker said at its first start that it can't serve; stopped: the daemon is ending.
// One thread. Of the events only worker_changed is ever called from within a call of the router's
// (drain, cancel, stop).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "config/settings.hpp"
#include "ipc/channel.hpp"
#include "ipc/messages.hpp"
#include "orchestrator/event_loop.hpp"
#include "orchestrator/supervisor/death.hpp"
#include "orchestrator/supervisor/process.hpp"
#include "orchestrator/supervisor/recovery.hpp"
#include "orchestrator/supervisor/worker_limits.hpp"

namespace bulkhead::orchestrator {

enum class WorkerState {
  kStarting,
  kLoading,
  kReady,
  kDraining,
  kDrained,
  kRestarting,
  kFailed,
  kStopped
};
const char* to_string(WorkerState state);

class Worker;

// What a worker reports. A Status that is an error means that the message broke a rule: the process
// is killed for it.
class WorkerEvents {
 public:
  virtual ~WorkerEvents() = default;
  virtual void worker_changed(Worker& worker) = 0;  // state, progress
  virtual Status worker_tokens(Worker& worker, const ipc::SequenceTokensView& view,
                               std::span<const ipc::TokenLogprob> logprobs) = 0;
  // Accepted, Finished, Failed, Tokenized or Detokenized, of a request that the worker has.
  virtual Status worker_answer(Worker& worker, ipc::FromWorker&& answer) = 0;
  // The process has ended; its requests are the receiver's again. `sent`: those that it can have
  // seen.
  struct Orphan {
    RequestId request;
    bool sent = false;
  };
  virtual void worker_died(Worker& worker, const std::string& cause,
                           std::vector<Orphan> orphans) = 0;
  // It will never serve: it said so at its first start, or kept dying there.
  virtual void worker_failed(Worker& worker, const std::string& reason) = 0;
};

struct WorkerOptions {
  std::string name;       // unique, fit for a URL
  std::size_t model = 0;  // index among the router's models
  std::string program;
  std::vector<std::string> arguments;  // all but the channel's
  config::IpcSettings ipc;
  std::chrono::milliseconds heartbeat_timeout{10000};
};

class Worker {
 public:
  Worker(EventLoop& loop, WorkerOptions options, WorkerEvents& events);
  ~Worker();

  void start();

  // Work for a worker in state ready (or draining, for requests that it has). Queued in the daemon
  // while the ring is full. kInvalidArgument: the message is larger than the channel can carry.
  Status submit(RequestId request, const ipc::ToWorker& message);
  // Forgets the request; the worker is told if it has seen it.
  void cancel(RequestId request);
  // The request is over on both sides.
  void finished(RequestId request);
  bool has(RequestId request) const { return outstanding_.contains(request); }
  std::size_t outstanding() const { return outstanding_.size(); }

  void drain();    // takes nothing new, finishes what it has
  void restart();  // drain, then a successor
  bool profile();  // asks for the times of a step's kernels, in its stats; false: it is not ready
  void stop();     // ends the process for good: asks it, then kills it
  void kill(const std::string& words, DeathCause cause = DeathCause::kAsked);
  // Any accepted token shows that the worker works: back-off starts anew.
  void token_accepted();

  const WorkerOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  WorkerState state() const { return state_; }
  pid_t pid() const { return process_.pid(); }
  bool ever_ready() const { return ever_ready_; }
  std::uint64_t restarts() const { return restarts_; }
  // Drained, and about to be replaced by a successor that will serve.
  bool returning() const { return restart_after_drain_; }
  // Whether the last process ended because it was told to: no death then.
  bool ended_as_asked() const { return ended_as_asked_; }
  // In words; empty: it never died. The cause counts only where there are words.
  const std::string& last_death() const { return last_death_; }
  DeathCause last_death_cause() const { return last_death_cause_; }
  const ipc::Ready& ready() const { return ready_; }
  const ipc::Progress& progress() const { return progress_; }
  const ipc::Stats& stats() const { return stats_; }
  // Over all processes that this worker had.
  ipc::ChannelStats channel_stats() const;
  struct TokenTraffic {
    std::uint64_t tokens = 0;   // received
    std::uint64_t records = 0;  // that brought them
    std::uint64_t wakeups = 0;  // of the daemon, by this worker's channel

    double tokens_per_record() const { return ratio(tokens, records); }
    double wakeups_per_token() const { return ratio(wakeups, tokens); }

   private:
    static double ratio(std::uint64_t part, std::uint64_t whole) {
      return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
    }
  };
  const TokenTraffic& token_traffic() const { return token_traffic_; }
  std::uint64_t recovered_requests = 0;  // counted by the router
  Recovery recovery;                     // resumed() is the router's to tell
  std::size_t held_bytes = 0;            // of its unfinished answers, counted by the router

 private:
  struct Outgoing {
    RequestId request;
    ipc::ToWorker message;
  };

  void spawn();
  void set_state(WorkerState state);
  void receive();
  Status receive_record(std::span<const std::byte> record);
  Status handle(ipc::FromWorker&& message);
  Status chatter();
  void flush();
  void watch_channel();
  void channel_ended();
  void process_ended();
  void schedule_restart(bool immediately);
  void check_heartbeat();
  void violated(const std::string& rule);
  struct Death {
    DeathCause cause;
    std::string words;
  };
  Death how_it_ended(const Exit& exit) const;
  void begin_heartbeat();
  void look_again();
  bool answers_pings();
  void end_after_drain();

  EventLoop& loop_;
  WorkerOptions options_;
  WorkerEvents& events_;
  WorkerState state_ = WorkerState::kStarting;

  Process process_;
  std::unique_ptr<ipc::Channel> channel_;
  std::unique_ptr<ReadableWatch> channel_watch_, exit_watch_;
  Timer heartbeat_timer_, restart_timer_, kill_timer_;
  std::uint64_t incarnation_ = 0;  // deferred calls of an earlier process come to nothing

  std::deque<Outgoing> outbox_;
  std::unordered_set<RequestId> outstanding_;
  std::unordered_set<RequestId> cancelled_;  // the worker may still speak of them
  ChatterLimit chatter_;

  bool ever_ready_ = false;
  bool restart_after_drain_ = false;
  bool asked_to_end_ = false;
  bool ended_as_asked_ = false;
  std::string kill_cause_;  // why we ended the process, in words; empty: it ended itself
  DeathCause kill_kind_ = DeathCause::kAsked;
  std::string fatal_;  // its last word
  std::uint32_t deaths_without_token_ = 0;
  std::uint64_t restarts_ = 0;
  std::string last_death_;
  DeathCause last_death_cause_ = DeathCause::kSignal;
  std::chrono::steady_clock::time_point last_sign_of_life_;
  std::optional<std::uint64_t> last_beat_;
  std::uint64_t ping_nonce_ = 0;  // of the last ping
  std::uint64_t pong_nonce_ = 0;  // and of the last answer
  std::chrono::steady_clock::time_point pinged_;

  ipc::Ready ready_;
  ipc::Progress progress_;
  ipc::Stats stats_;
  ipc::ChannelStats ended_channels_;  // sums over earlier processes
  TokenTraffic token_traffic_;
};

}  // namespace bulkhead::orchestrator
