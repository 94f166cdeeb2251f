// The router: admits requests, chooses workers, and keeps a request alive when workers die. It keeps each unfinished
// request in the journal. When a worker dies, its requests go to a successor (or to another worker of the model) with
// the tokens accepted so far, and the observer only sees a pause.
//
// If a request was with a worker when it died, and had made no progress since it went there, the request is a
// suspect: it is replayed with no other request beside it that has no token yet, so that a poisoned request can't
// harm others. Each further death of the same kind without a token in between is a strike; at `max_strikes` the
// request fails with an error of its own. blame.hpp defines what counts, and how.
//
// The router does not use HTTP. One thread. Observers are called from the event loop, never from within one of
// their own calls, and may call the router.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "config/settings.hpp"
#include "orchestrator/event_loop.hpp"
#include "orchestrator/journal/journal.hpp"
#include "orchestrator/mailbox.hpp"
#include "orchestrator/router/crash_log.hpp"
#include "orchestrator/router/prefix_routes.hpp"
#include "orchestrator/router/turn_queue.hpp"
#include "orchestrator/supervisor/blame.hpp"
#include "orchestrator/supervisor/worker.hpp"

namespace bulkhead::orchestrator {

struct Failure {
  ipc::FailureCode code = ipc::FailureCode::kInternal;
  std::string message;
  std::string parameter;  // the request's field that is at fault, if there is one
};

// The client of one request. After on_finished, on_failed or on_answer the router calls nothing more for the request.
// If one of these calls throws an exception, on_failed follows, so an observer must not throw once it has ended.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // The router calls this before on_accepted, if a worker ignores parts of the request.
  virtual void on_warnings(RequestId, std::span<const std::string>) {}
  virtual void on_accepted(RequestId, std::span<const ipc::TokenId>) {}
  // The router calls this for a Submit with tell_prompt, between on_accepted and on_tokens, with
  // the prompt's next tokens.
  virtual void on_prompt_tokens(RequestId, std::span<const ipc::TokenLogprob>) {}
  // `view.request` is the request. The journal already holds everything in `view`.
  virtual void on_tokens(const ipc::SequenceTokensView&) {}
  // `finished.text` is the text that the worker had held back. `finished.cached_tokens` is at most the number of the
  // prompt's tokens, and 0 if a worker died while it had the request.
  virtual void on_finished(RequestId, const ipc::Finished&) {}
  virtual void on_failed(RequestId request, const Failure& failure) = 0;
  // The router calls this for work that one message answers.
  virtual void on_answer(RequestId, const ipc::FromWorker&) {}
  // Returns the request's name at the client; empty if it has none.
  virtual std::string request_name() const { return ""; }
  // Returns the name of the client's key, because the router lets keys take turns. Empty if the client has none.
  virtual std::string_view turn_of() const { return {}; }

 private:
  friend class Router;
  // The entry of models_ whose worker was the first to get one of the observer's requests. Workers
  // of that entry compute all of them, so no answer mixes two models.
  std::optional<std::size_t> begun_with_;
};

struct RouterOptions {
  std::string worker_program;
  config::Settings settings;
  ControlGroups* groups =
      nullptr;  // of worker processes; outlives the router. Null: there are none
};

struct ModelInfo {
  using Clock = std::chrono::steady_clock;

  std::string id;
  std::string file_name;   // also accepted as the model's name
  std::string file_mark;   // mark_of()
  std::string draft_mark;  // draft_mark_of()
  std::int64_t created = 0;
  config::ModelSettings settings;
  std::vector<Worker*> workers;
  bool ever_served = false;

  // The model's workers have processes, or will get some. Only loading.cpp uses this flag.
  bool loaded = false;
  // The model is loaded only when a request needs it; requests wait until then. The router sets this flag when it
  // first finds the model unloaded, or unloads it.
  bool on_demand = false;
  bool load_asked = false, unload_asked = false;
  // The model has had its turn, and another model needs the memory: new requests wait until the router has served
  // that other model.
  bool yields = false;
  std::uint64_t file_bytes = 0;
  std::uint64_t memory_bytes = 0;  // bytes that each worker takes on its device; 0: unknown
  Clock::time_point last_used{}, load_began{}, turn_began{};
  Clock::duration load_took{};

  bool has_alias(std::string_view name) const;  // ignores case
  void count_file_bytes();                      // from the marks
  // Returns what a worker reported when it last loaded the model; null if no worker has loaded it.
  const ipc::Ready* reported() const;
  // Returns that, or before any worker has loaded the model, what its file says; null if that is not known either.
  // Names no device then, and knows nothing of the memory. Defined in describing.cpp.
  const ipc::Ready* known() const;

  std::shared_ptr<const ipc::Ready> described;  // what the file says; null: not known
  bool looked_into = false;                     // describing.cpp has read the file, or reads it now

  // A reload removed the entry from the configuration, or replaced it by the `successor` entry. The entry takes no
  // new requests, and its workers end as soon as no request needs them.
  bool retired = false;
  std::optional<std::size_t> successor;
  // The entry's last worker only completes the answers that it has begun. Then it ends.
  bool finishing = false;
};

// What a reload of the configuration did to the models, by name.
struct ReloadReport {
  std::vector<std::string> added, removed, replaced, resized;
  std::vector<std::string> changed;  // other settings that models have without new workers
};

// Returns the models of the settings; if there are none, the built-in model.
std::vector<config::ModelSettings> models_of(const config::Settings& settings);

// Returns the mark of a model's file and of its chat template.
std::string mark_of(const config::ModelSettings& settings);
// Returns the mark of a model's draft model; empty: it has none. It is not part of mark_of(), because no token
// depends on it.
std::string draft_mark_of(const config::ModelSettings& settings);

// The result of examining a model's file, its chat template's and its draft model's. That may hang for ever (a
// network mount that hangs).
struct ModelFile {
  std::string mark;        // mark_of()
  std::string draft_mark;  // draft_mark_of()
  std::string problem;     // the file that can't be read, and why; empty: all can be read
};
using ModelFiles = std::map<std::array<std::string, 3>, ModelFile>;  // by path, template and draft
ModelFiles look_at_models(const config::Settings& settings);

class Router : private WorkerEvents {
 public:
  Router(EventLoop& loop, const RouterOptions& options);
  ~Router() override;

  void start();
  // Called once, when every model has a worker that is ready or has been given up, and at least one is ready.
  std::function<void()> on_ready;
  // Called instead if no model can be served at all: this ends the daemon.
  std::function<void(const std::string& reason)> on_failed_start;
  // Called at every change of a worker's state or loading progress.
  std::function<void()> on_change;
  // Called for each death of a worker's or a spare's process.
  std::function<void(const std::string& name, DeathCause cause)> on_death;

  // Admits `count` requests to a model (empty: the only one) and returns the model's index, or returns an error if it
  // can't now. `key` is RequestObserver::turn_of() of these requests.
  Result<std::size_t> admit(std::string_view model, std::size_t count, Failure& failure,
                            std::string_view key = {});
  // Starts a request that was admitted. The observer must live until its last call or cancel(). An observer may start
  // further requests long after admission; they fail with kUnavailable if the workers that have begun the answer take
  // none any more.
  RequestId start(std::size_t model, Work work, RequestObserver& observer);
  // Announces that the observer will start `requests` requests, which belong to an answer that was admitted to
  // `model`. A worker that has begun the answer is not replaced until they have started. `places` of the requests
  // were admitted, and count as unfinished until they start.
  void expect(RequestObserver& observer, std::size_t model, std::size_t requests,
              std::size_t places);
  // Announces that the observer starts no further requests. Does nothing if it had none to start.
  void expect_no_more(RequestObserver& observer);
  // Continues an accepted request of an earlier daemon, before new ones. A worker whose identity differs from
  // `entry.made_by` does not get the request: it fails then.
  RequestId resume(std::size_t model, JournalEntry entry, RequestObserver& observer);
  struct Place {
    std::size_t model = 0;
    const Worker* worker = nullptr;   // null: it waits
    std::uint32_t resubmissions = 0;  // after deaths of workers
  };
  // Returns where an unfinished request is; empty if the request is over.
  std::optional<Place> place_of(RequestId request) const;
  // Returns how many sequences the model's workers compute at a time, all together.
  std::size_t sequences_at_once(const ModelInfo& model) const;
  // Returns what the tokens of a request that is with a worker depend on, apart from the request: the model's file
  // (name, size, time) and how the worker computes.
  std::string identity(RequestId request) const;
  void cancel(RequestId request);
  const JournalEntry* entry(RequestId request) { return journal_.find(request); }

  // Refuses new requests from now on; calls `idle` when the last one is over.
  void begin_drain(std::function<void()> idle);
  // Ends all workers; calls `stopped` when the last process is gone.
  void stop(std::function<void()> stopped);
  // Kills all workers at once, without asking them to end.
  void kill_workers();

  // Applies new settings while everything runs. New models are started. Removed models end when their sequences have
  // ended. Changed models (their file, device or context, or anything with `replace_workers`) get new workers one
  // after the other, each when its last sequence is over. A stream never moves between an old and a new worker.
  // Returns an error, with nothing changed, if a new or changed model has no readable file. `files` must be for these
  // settings.
  Result<ReloadReport> reload(const config::Settings& settings, bool replace_workers,
                              const ModelFiles& files);

  // load() loads a model as soon as its device has the memory. unload() unloads a model when its last request is
  // over; requests that come until then wait, and load it again. `name` is as for find_model(). Both return the
  // model's index, and do nothing if there is nothing to do.
  Result<std::size_t> load(const std::string& name);
  Result<std::size_t> unload(const std::string& name);
  // Adds a GGUF file of server.models_folder as a model that is not loaded, unless it is a model already. `name` is
  // the file's path, or its path in the folder, with or without ".gguf". `done` gets the model's index, or kNotFound,
  // or kUnavailable if earlier looks into the folder hang. It may hang for ever.
  void add_from_folder(const std::string& name, std::function<void(Result<std::size_t>)> done);
  // Restarts the worker as Worker::restart() does. A failed worker whose model is not loaded starts once the device
  // has memory for the model.
  void restart(Worker& worker, Worker::Start start);
  // Returns the model's state: loaded, loading, waiting (for memory, or until it is unloaded),
  // unloading, unloaded, drained or failed.
  const char* state_of(const ModelInfo& model) const;
  // Returns the bytes that each of the model's workers takes on its device, as far as known.
  std::uint64_t memory_of(const ModelInfo& model) const;
  std::uint64_t loads() const { return loads_; }      // of models that were not loaded
  std::uint64_t unloads() const { return unloads_; }  // on request, and to make room

  bool draining() const { return draining_; }
  bool was_ready() const { return was_ready_; }
  // Returns whether every model that is not loaded on demand has a worker that serves.
  bool ready() const;
  // Returns the number of unfinished requests. Those that were admitted and have yet to start are among them.
  std::size_t outstanding() const { return active_.size() + places_to_come(); }
  std::size_t waiting() const;  // unfinished requests that no worker has now
  const CrashLog& crashes() const { return crashes_; }
  const config::Settings& settings() const {
    return settings_;
  }  // the settings since the last reload
  const Journal& journal() const { return journal_; }
  // All models by index, retired ones included.
  const std::vector<ModelInfo>& models() const { return models_; }
  // Returns the entry whose workers take new requests for the model. That is the model's own entry or, while the
  // model has no worker yet, the entry of the model that it replaces.
  const ModelInfo& serving(const ModelInfo& model) const;
  // Returns why the daemon has given up all workers of the model; empty if it has not.
  std::string given_up(const ModelInfo& model) const;
  // Returns whether nobody serves the model because operators have drained all of its workers.
  bool drained(const ModelInfo& model) const;
  static constexpr const char* kDrainedText =
      "All workers of this model are drained; restart one to go on.";
  // Finds a model by its name or its file's name. Ignores case unless another name fits better, and Ollama's tag
  // ":latest". Null if the name is unknown.
  const ModelInfo* find_model(std::string_view name) const;
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }
  Worker* find_worker(std::string_view name);
  Spare* find_spare(std::string_view name);

 private:
  struct Active {
    std::size_t model = 0;
    RequestObserver* observer = nullptr;
    std::string key = {};      // RequestObserver::turn_of()
    Worker* worker = nullptr;  // null: the request waits
    bool progressed = false;   // a token or its end has come since it went to this worker
    bool recovering = false;   // resubmitted, and nothing has come for it yet
    Blame blame = {};
  };
  // The requests that an observer has yet to start: see expect().
  struct Coming {
    std::size_t model = 0;
    std::string key = {};  // RequestObserver::turn_of()
    std::size_t requests = 0;
    std::size_t places = 0;
  };
  struct Waiting {
    TurnQueue fresh;                 // new requests, and those that had made progress
    std::deque<RequestId> suspects;  // replayed one at a time, alone

    bool empty() const { return fresh.empty() && suspects.empty(); }
    std::vector<RequestId> all() const {
      std::vector<RequestId> requests = fresh.all();
      requests.insert(requests.end(), suspects.begin(), suspects.end());
      return requests;
    }
  };

  // answers.cpp
  Status worker_tokens(Worker& worker, const ipc::SequenceTokensView& view) override;
  Status worker_answer(Worker& worker, ipc::FromWorker&& answer) override;
  Status failing_alone(RequestId request, const std::function<Status()>& take);
  Status take_tokens(Worker& worker, const ipc::SequenceTokensView& view);
  Status take_answer(Worker& worker, RequestId request, ipc::FromWorker&& answer);
  void progressed(RequestId request, Active& active, Worker& worker);

  void worker_changed(Worker& worker) override;
  void worker_died(Worker& worker, const Death& death, std::vector<Orphan> orphans) override;
  void worker_lost(Worker& worker, const Death& death, std::vector<Orphan> orphans) override;
  void standby_died(const Spare& spare) override;
  void worker_failed(Worker& worker, const std::string& reason) override;
  Retry worker_may_retry(Worker& worker) override;

  // crashes.cpp
  void note_crash(const Worker& worker, const Death& death, const std::vector<Orphan>& orphans);

  void look_whether_started();
  void look_whether_stopped();
  bool takes_any_name() const;  // server.any_model_name
  bool will_serve(const ModelInfo& model) const;
  // models.cpp
  const ModelInfo* model_called(std::string_view name) const;
  std::size_t add_model(const config::ModelSettings& settings, const ModelFile& file);
  Worker& add_worker(std::size_t model);
  std::string device_for(std::size_t model) const;
  WorkerOptions worker_options(std::size_t model, std::string name, std::string device) const;

  // adding.cpp
  std::size_t add_file(const std::string& folder, const std::string& file, const std::string& mark);
  void look_again(const ModelInfo& failed);
  void try_changed(const std::string& path, const std::string& mark);

  // describing.cpp
  std::vector<std::string> describing_arguments(const config::ModelSettings& model) const;
  void describe_next();
  void note_held_look(const std::string& id);
  void take_description(const std::string& id, const std::string& mark,
                        const Result<ipc::Ready>& report);

  // loading.cpp
  bool begins_loaded(const config::ModelSettings& settings, std::uint64_t bytes) const;
  Result<std::size_t> index_of(const std::string& name) const;
  void go_on_loading();
  void go_on_loading_later();
  void load_now(std::size_t model);
  void unload_now(std::size_t model);
  void load_missing(std::size_t model);
  void let_go_if_failed(std::size_t model);
  void worker_became_ready(const Worker& worker);
  bool make_room(std::size_t model);
  bool has_unused_room(std::size_t model);
  void free_memory(const std::string& device, std::size_t wanting, std::uint64_t shortage);
  std::uint64_t drop_parked(const std::string& device, std::size_t wanting, std::uint64_t shortage);
  std::vector<std::size_t> others_on(const std::string& device, std::size_t wanting) const;
  void keep_within_budget(const std::string& device);
  void refuse_too_large(std::size_t model);
  bool fits(const Worker& worker) const;
  std::uint64_t memory_taken(const std::string& device, std::optional<std::size_t> of = {}) const;
  std::uint64_t memory_missing(std::size_t model, const std::string& device) const;
  bool begun(RequestId request) const;
  bool in_progress(std::size_t model);
  bool holds_back(std::size_t model) const;
  bool has_waiting(std::size_t model) const;
  std::uint64_t waiting_since(std::size_t model) const;

  // device_memory.cpp
  std::uint64_t memory_budget() const;
  std::uint64_t memory_of(const Worker& worker) const;  // includes its spares
  void learn_memory();
  std::set<std::string> devices_of(std::size_t model) const;
  std::uint64_t memory_wanted(std::size_t model, const std::string& device) const;
  bool too_large(std::size_t model) const;
  std::string why_too_large(std::size_t model) const;

  // reload.cpp
  void retire(std::size_t model, std::optional<std::size_t> successor);
  void resize(std::size_t model);
  std::size_t staying_on(std::size_t model, const std::string& device) const;
  bool lacks_worker_on(std::size_t model, const std::string& device) const;
  Worker* next_to_move(const std::vector<Worker*>& workers, std::size_t successor) const;
  void go_on_reloading();
  void go_on_reloading_later();
  void go_on_with(std::size_t retired);
  bool needed(std::size_t model) const;
  bool owes_answers(std::size_t model) const;
  void end(Worker& worker);

  // turns.cpp
  bool has_enough(const Worker& worker) const;
  enum class Waiters { kAll, kNew };  // kNew: leaves out requests that a worker has handed back
  bool takes_more(const Worker& worker, Waiters which) const;
  bool is_new(RequestId request) const;
  bool goes_on_alike(const JournalEntry& entry, const Worker& worker) const;
  bool awaits_its_kind(RequestId request, std::size_t model);
  Worker* worker_for(RequestId request, std::size_t model);
  Worker& with_prefix(RequestId request, std::size_t model, Worker& least);
  bool takes_turns(RequestId request);
  std::size_t places_to_come(std::optional<std::string_view> key = {}) const;
  bool has_room_for(std::size_t count, std::string_view key) const;
  void refuse_waiting(std::size_t model, Waiters which, const Failure& why);
  void move_waiting(std::size_t model, std::optional<std::size_t> successor);
  void dispatch(std::size_t model);
  void send_waiting(std::size_t model);
  void drain_again(std::size_t model);
  void dispatch_later(std::size_t model);
  bool may_be_sent(RequestId request, std::size_t model, const Worker* for_new);
  Worker* least_loaded(std::size_t model, Waiters which, const JournalEntry* entry = nullptr) const;

  static bool goes_on(const Worker& worker);
  static std::string text_of_change(const ModelInfo& retired);
  std::string why_no_more(std::size_t model) const;
  void send(RequestId request, Worker& worker);
  void take_back(Worker& worker, const Death& death, const std::vector<Orphan>& orphans);
  std::string identity(const Worker& worker) const;
  enum class AtWorker : std::uint8_t { kEnded, kCancel };
  // Removes the request from the journal, the queues and its worker's list. The caller notifies the observer. With
  // kCancel the worker may still compute the request, so the router sends that worker a cancellation. With kEnded the
  // worker has ended the request.
  void forget(RequestId request, AtWorker at_worker);
  void look_whether_idle();
  void fail(RequestId request, Failure failure);

  EventLoop& loop_;
  std::string worker_program_;
  ControlGroups* groups_;
  config::Settings settings_;
  std::vector<ModelInfo> models_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Waiting> waiting_;  // by model
  std::unordered_map<const Worker*, RequestId>
      alone_;  // workers that have only one suspect and nothing else
  std::map<RequestId, Active> active_;
  std::map<RequestObserver*, Coming> coming_;
  std::unordered_map<RequestId, RequestObserver*> failing_;  // to be told in the next turn
  std::set<Worker*> leaving_;  // their model continues with fewer workers
  std::set<Worker*> ending_;   // removed when their processes are gone
  bool reloading_later_ = false;
  bool loading_later_ = false;
  std::shared_ptr<Mailbox> looks_;  // where threads leave what they found
  std::map<std::uint64_t, std::function<void(Result<std::size_t>)>>
      looking_;  // called when a look has ended
  std::uint64_t last_look_ = 0;
  std::set<std::string> looking_again_;  // paths of failed models whose files a thread looks at
  bool describing_ = false;              // a thread waits for what a file holds
  std::uint32_t held_looks_ = 0;         // processes that read files and do not end when killed
  Timer turn_timer_;                     // fires when the next turn ends that somebody waits for
  std::optional<ModelInfo::Clock::time_point> next_turn_;
  std::uint64_t loads_ = 0, unloads_ = 0;
  CrashLog crashes_;
  PrefixRoutes prefix_routes_;
  Journal journal_;
  std::uint64_t next_id_ = 1;
  bool was_ready_ = false;
  std::string start_failure_;  // of the first model that could not be served, before on_ready
  bool draining_ = false;
  bool stopping_ = false;
  std::function<void()> idle_, stopped_;
};

}  // namespace bulkhead::orchestrator
