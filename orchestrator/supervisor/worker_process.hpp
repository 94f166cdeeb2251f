// One process of a worker with its channel, from its start to its end: handshake, messages, heartbeat, and the reason
// of its death. It checks everything that the process says. The receiver decides what follows: the Worker while the
// process serves, the standby pool while it waits.
//
// Stages:   starting -hello-> loading -ready-> serving
//                                     -ready-> standby -promote()-> loading -ready-> serving
// One object stands for one process; a successor is another object.
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
#include "orchestrator/supervisor/cache_folder.hpp"
#include "orchestrator/supervisor/control_groups.hpp"
#include "orchestrator/supervisor/death.hpp"
#include "orchestrator/supervisor/file_mark.hpp"
#include "orchestrator/supervisor/heartbeat.hpp"
#include "orchestrator/supervisor/process.hpp"
#include "orchestrator/supervisor/start_files.hpp"
#include "orchestrator/supervisor/vault.hpp"
#include "orchestrator/supervisor/worker_limits.hpp"

namespace bulkhead::orchestrator {

struct WorkerOptions {
  std::string name;       // unique, and valid in a URL
  std::size_t model = 0;  // index in the router's list of models
  std::string model_file;
  std::string chat_template;  // as in the settings
  std::string device;         // as in the settings; for a split model all of its devices: "0,1"
  std::vector<std::string> devices;  // each of them
  std::string program;
  std::vector<std::string> arguments;   // all but those for the channel and the cache folder
  std::string cache_home;               // workers' cache folders are here; empty: there are none
  std::uint64_t most_cache_bytes = 0;   // limit on the worker's cache folder; 0: none
  ControlGroups* groups = nullptr;      // make a group for each process; null: there are none
  std::uint64_t most_memory_bytes = 0;  // limit of such a group; 0: none
  config::IpcSettings ipc;
  std::chrono::milliseconds heartbeat_timeout{10000};
  std::chrono::milliseconds exit_timeout{15000};
  bool pid_namespace = false;  // each process runs in one of its own, if that can be made
  // The setting isolation.worker_user. Empty if the worker's processes are not confined.
  std::optional<config::WorkerUserMode> user;
  bool vault = false;         // isolation.vault
  bool fallback = true;       // gpu_optimizations.graceful_fallback
  std::uint32_t standby = 0;  // spare processes
  std::uint32_t crash_budget =
      8;  // deaths in a row without a request to blame, until the worker counts as failed
  std::chrono::seconds retry_failed{60};  // then a failed worker is tried again; 0: never
};

class WorkerProcess;

struct Death {
  DeathCause cause = DeathCause::kExit;
  std::string words;
  int signal = 0;               // the signal that ended the process; 0: none did
  bool as_asked = false;        // the daemon asked the process to end, and it did; that is no death
  std::string last_word = {};   // the process's own reason why it can't serve; empty: it gave none
  bool from_outside = false;    // somebody sent SIGKILL or SIGTERM, or a SIGSTOP that made it hang
  std::uint64_t vault = 0;      // the number of the vault that the process was given; 0: none
  bool importing = false;       // the process was given a vault, and had not served yet
  bool vault_unusable = false;  // the process ended because it could not use the vault
  pid_t pid = -1;
  std::optional<std::uint64_t> step = {};  // the last step that it counted; empty: unknown

  // Returns whether somebody else ended the process. Such an end says nothing about what the process was doing.
  bool by_others() const {
    return from_outside || cause == DeathCause::kAsked || cause == DeathCause::kOutOfMemory;
  }
};

// What a process reports. If a function returns an error, the message broke a rule, and the process is killed for it.
class ProcessEvents {
 public:
  virtual ~ProcessEvents() = default;
  virtual void process_changed(WorkerProcess& process) = 0;  // its stage, or its progress
  // The process serves, and the vault that its Ready had announced has come: ready() describes the vault.
  virtual void process_offered(WorkerProcess& process) = 0;
  virtual Status process_tokens(const ipc::SequenceTokensView& view) = 0;
  // Any message about a request that the process has, except tokens.
  virtual Status process_answer(ipc::FromWorker&& answer) = 0;
  // The first sign of the end: the end of the channel or of the process, or the decision to end the process.
  virtual void process_dying(WorkerProcess& process) = 0;
  // Follows process_dying() in a separate turn: the daemon no longer listens to the process, and has the cause of
  // its end. The receiver can take its requests back (take_unfinished()), perhaps long before the kernel has
  // reclaimed its memory.
  virtual void process_lost(WorkerProcess& process, const Death& death) = 0;
  // Somebody killed the process while it served: none of its threads runs any more, and the daemon has received
  // everything that it had sent. The device may still compute for the process; process_ended() follows when the
  // kernel has reclaimed everything.
  virtual void process_stopped(WorkerProcess& process) = 0;
  // The process's end was seen or decided options.exit_timeout ago, and the kernel has not reclaimed the process: it
  // counts as dead. The device may use its memory as long as the process is there; its channel is closed.
  // process_ended() follows if the process ends after all.
  virtual void process_stuck(WorkerProcess& process, const Death& death) = 0;
  // The process is gone and reaped; the receiver may destroy the object in a separate turn.
  virtual void process_ended(WorkerProcess& process, const Death& death) = 0;
};

// What the channels of all processes of a worker have brought.
struct TokenTraffic {
  std::uint64_t tokens = 0;   // received
  std::uint64_t records = 0;  // records that brought the tokens
  std::uint64_t wakeups = 0;  // how often this worker's channel woke the daemon

  double tokens_per_record() const { return ratio(tokens, records); }
  double wakeups_per_token() const { return ratio(wakeups, tokens); }
  TokenTraffic operator+(const TokenTraffic& other) const {
    return {tokens + other.tokens, records + other.records, wakeups + other.wakeups};
  }

 private:
  static double ratio(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

class WorkerProcess {
 public:
  enum class Stage { kStarting, kLoading, kStandby, kServing };

  // These must outlive this object: `options`; `vault`, from which the process gets memory and to which it offers
  // some; and `cache`, to which it writes. `name` is for the log.
  WorkerProcess(EventLoop& loop, const WorkerOptions& options, Vault& vault, CacheFolder& cache,
                std::string name, bool standby, ProcessEvents& events);
  ~WorkerProcess();  // a stuck process is reaped when it ends after all

  // `files` is what a thread found for this start.
  Status start(StartFiles files);
  void set_events(ProcessEvents& events) { events_ = &events; }
  // Makes a standby serve from now on. `name` is its name in the log from here. `unsettled`: the device may still
  // compute for the process before it, until settle() says that this is over.
  void promote(std::string name, bool unsettled);
  void settle();
  // Returns how the process ended, once all of its threads have ended. process_ended() reports the same, or the truth
  // if that differs.
  const Death& known_death();

  // Sends work; the daemon queues it while the ring is full. kInvalidArgument: the message is larger than the channel
  // can carry.
  Status submit(RequestId request, ipc::ToWorker message);
  void send(const ipc::ToWorker& message);  // sends a message that belongs to no request
  // Forgets the request, and tells the worker if it has seen the request.
  void cancel(RequestId request);
  void finished(RequestId request) { outstanding_.erase(request); }
  bool has(RequestId request) const { return outstanding_.contains(request); }
  std::size_t outstanding() const { return outstanding_.size(); }
  struct Unfinished {
    RequestId request;
    bool sent = false;  // the process may have seen it
  };
  std::vector<Unfinished> unfinished() const;  // sorted by id
  std::vector<Unfinished> take_unfinished();   // the caller gets the requests

  void shut_down();  // asks the process to end, then kills it
  bool asked_to_end() const { return asked_to_end_; }
  void kill(const std::string& words, DeathCause cause = DeathCause::kAsked);
  void kill_unannounced() { process_.kill(); }               // the daemon then sees a crash
  bool stuck() const { return stuck_; }                      // process_stuck() was called
  bool has_stopped() const { return stopped_.has_value(); }  // no thread of it runs any more
  // Returns whether process_dying() was called: the process makes no further progress with any request.
  bool is_dying() const { return dying_; }
  // Returns whether the process may be unable to continue: it has been silent for half of its patience, or has not
  // answered a ping for a while.
  bool in_doubt() const;

  Stage stage() const { return stage_; }
  pid_t pid() const { return process_.pid(); }
  const GroupReport& control_group() const { return group_.report(); }
  // Returns the mark of the model file that this process serves and of the chat template. The template's part is from
  // this process's start. The file's part is from the start of the process that opened the file: this one, or the one
  // that left the file in the vault.
  std::string file_mark() const {
    return joined_mark(imported() ? given_file_mark_ : file_mark_, template_mark_);
  }
  // Returns the number of the vault that the process was given; 0 if there is none.
  std::uint64_t given_vault() const { return given_vault_; }
  bool imported() const {
    return given_vault_ != 0 && ready_.vault.state == ipc::VaultState::kImported;
  }
  const ipc::Ready& ready() const { return ready_; }
  const ipc::Progress& progress() const { return progress_; }
  const ipc::Stats& stats() const { return stats_; }
  ipc::ChannelStats channel_stats() const;
  const TokenTraffic& traffic() const { return traffic_; }

 private:
  struct Outgoing {
    RequestId request;
    ipc::ToWorker message;
  };

  Status begin(StartFiles files);
  void tell_of_end(const Death& death);
  void watch_channel();
  void receive();
  void receive_all();
  void missed(const std::exception& error);
  Status take_record(std::span<const std::byte> record);
  Status receive_record(std::span<const std::byte> record);
  Status handle(ipc::FromWorker&& message);
  Status handle_hello(const ipc::Hello& hello);
  Status handle_ready(ipc::Ready&& ready);
  Status handle_offer(const ipc::VaultOffer& offer);
  bool may_change_slabs() const;
  Status chatter();
  void flush();
  void dying();
  void lost();
  void channel_ended();
  void exit_took_too_long();
  void close_channel();
  void watch_threads();
  void look_whether_stopped();
  void receive_last_words();
  void condemn(const std::string& rule);
  void ended();
  Death how_it_ended(const Exit& exit) const;
  void violated(const std::string& rule);
  // Returns whether the process may send and offer a vault's descriptors now.
  bool may_offer() const;
  bool loading() const { return stage_ == Stage::kStarting || stage_ == Stage::kLoading; }
  void begin_heartbeat();
  void look_again();
  void check_heartbeat();
  // Ends the process if it has too many threads; returns whether it did.
  bool has_too_many_threads();
  bool ended_as_stopped();
  void tell_what_it_did(const std::string& verdict, const Activity& now) const;
  Heartbeat::Phase phase() const;

  EventLoop& loop_;
  const WorkerOptions& options_;
  Vault& vault_;
  CacheFolder& cache_;
  std::uint64_t given_vault_ = 0;
  bool asked_for_vault_ = false;  // the setting at the process's start
  bool offered_vault_ = false;
  std::string name_;
  std::string file_mark_, given_file_mark_, template_mark_;
  ProcessEvents* events_;
  const bool standby_;
  bool promoted_ = false;
  Stage stage_ = Stage::kStarting;

  WorkerGroup group_;  // declared before its process: the group is removed after the process
  Process process_;
  std::unique_ptr<ipc::Channel> channel_;  // null before start() and after the end
  std::unique_ptr<ReadableWatch> channel_watch_, exit_watch_;
  std::vector<UniqueFd> thread_exits_;  // declared before their watches, which are removed first
  std::vector<std::unique_ptr<ReadableWatch>> thread_watches_;
  Timer heartbeat_timer_, kill_timer_, stop_timer_, exit_timer_;
  int looks_ = 0;                // looks whether it has stopped
  std::optional<Exit> stopped_;  // set when it has stopped
  std::optional<Death> told_;
  bool unsettled_ = false;
  bool dying_ = false;
  bool stuck_ = false;
  Heartbeat heartbeat_;
  std::chrono::steady_clock::time_point threads_counted_{};
  std::optional<Activity>
      doubted_;                  // its activity when it had been silent for half of its patience
  std::shared_ptr<bool> alive_;  // deferred calls after the end do nothing

  std::deque<Outgoing> outbox_;
  std::unordered_set<RequestId> outstanding_;
  std::unordered_set<RequestId> cancelled_;  // the worker may still send messages about them
  ChatterLimit chatter_;

  bool asked_to_end_ = false;
  bool asked_to_drain_ = false;
  std::string kill_cause_;  // why the daemon ended it, in words; empty: it ended itself
  DeathCause kill_kind_ = DeathCause::kAsked;
  bool was_stopped_ = false;  // when it was killed for a hang
  std::string fatal_;         // its last message

  ipc::Ready ready_;
  ipc::Progress progress_;
  ipc::Stats stats_;
  ipc::ChannelStats last_channel_stats_;
  TokenTraffic traffic_;
};

ipc::ChannelStats sum(ipc::ChannelStats a, const ipc::ChannelStats& b);

}  // namespace bulkhead::orchestrator
