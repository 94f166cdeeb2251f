#include "orchestrator/router/router.hpp"

#include <algorithm>
#include <utility>

#include "config/base/log.hpp"

namespace bulkhead::orchestrator {

namespace {

// Returns ": a, b, c", so that the user sees all names at once; if there are many, says where to find them.
std::string names_of(const std::vector<ModelInfo>& models) {
  constexpr std::size_t kMostBytes = 400;
  std::string names;
  for (const ModelInfo& model : models) {
    if (model.retired) continue;
    names += (names.empty() ? ": " : ", ") + model.id;
    if (names.size() > kMostBytes) return " (see /v1/models)";
  }
  return names;
}

}  // namespace

std::string Router::text_of_change(const ModelInfo& retired) {
  return retired.successor
             ? "The model was replaced before this answer was complete; send the request again."
             : "The model was removed before this answer was complete.";
}

// ---- admission ----

bool Router::takes_any_name() const {
  const auto served = std::ranges::count(models_, false, &ModelInfo::retired);
  switch (settings_.server.any_model_name) {
    case config::AnyModelName::kAuto:
      return served == 1;
    case config::AnyModelName::kOn:
      return served > 0;
    case config::AnyModelName::kOff:
      return false;
  }
  return false;
}

Result<std::size_t> Router::admit(std::string_view name, std::size_t count, Failure& failure,
                                  std::string_view key) {
  auto refuse = [&failure](ipc::FailureCode code, std::string message, std::string parameter = "") {
    failure = {code, message, std::move(parameter)};
    return Error(ErrorCode::kUnavailable, std::move(message));
  };
  const ModelInfo* model = nullptr;
  if (!name.empty()) {
    model = find_model(name);
    // No other model answers requests for a model that was removed.
    const bool was_here = std::ranges::any_of(models_, [name](const ModelInfo& each) {
      return each.id == name || each.file_name == name;
    });
    if (model == nullptr && !was_here && takes_any_name())
      model = &*std::ranges::find(models_, false, &ModelInfo::retired);
    if (model == nullptr) {
      return refuse(
          ipc::FailureCode::kUnknownModel,
          fmt::format("The model '{}' does not exist; this server has{}.", name, names_of(models_)),
          "model");
    }
  } else if (std::ranges::count(models_, false, &ModelInfo::retired) == 1) {
    model = &*std::ranges::find(models_, false, &ModelInfo::retired);
  } else {
    return refuse(ipc::FailureCode::kInvalidRequest,
                  "This server has several models; name one" + names_of(models_) + ".", "model");
  }
  if (draining_) return refuse(ipc::FailureCode::kUnavailable, "The server is shutting down.");
  model = &serving(*model);
  if (std::string why = given_up(*model); !why.empty()) {
    look_again(*model);
    return refuse(ipc::FailureCode::kWorkerFailed, std::move(why));
  }
  if (!model->ever_served && !model->on_demand)
    return refuse(ipc::FailureCode::kUnavailable,
                  "The model is still loading; /health shows its progress.");
  if (drained(*model)) {
    return refuse(ipc::FailureCode::kUnavailable, kDrainedText);
  }
  if (count > settings_.server.max_queue) {  // it would never fit, whenever the client tries again
    return refuse(ipc::FailureCode::kInvalidRequest,
                  fmt::format("The request asks for {} answers at once (prompts times 'n'), and "
                              "server.max_queue allows {}.",
                              count, settings_.server.max_queue));
  }
  if (!has_room_for(count, key)) {
    return refuse(
        ipc::FailureCode::kResourceExhausted,
        fmt::format("The request asks for {} answers; {} requests are unfinished, and "
                    "server.max_queue allows {}{}.",
                    count, outstanding(), settings_.server.max_queue,
                    settings_.server.keys.empty() ? "" : ", of which each key has a share"));
  }
  return static_cast<std::size_t>(model - models_.data());
}

void Router::expect(RequestObserver& observer, std::size_t model, std::size_t requests,
                    std::size_t places) {
  if (requests == 0) return;
  coming_[&observer] = Coming{model, std::string(observer.turn_of()), requests, places};
}

void Router::expect_no_more(RequestObserver& observer) {
  if (coming_.erase(&observer) == 0) return;
  look_whether_idle();
  go_on_reloading_later();
}

RequestId Router::start(std::size_t model, Work work, RequestObserver& observer) {
  if (const auto coming = coming_.find(&observer); coming != coming_.end()) {
    model = coming->second.model;  // a reload may have changed it
    if (coming->second.places > 0) --coming->second.places;
    if (--coming->second.requests == 0) coming_.erase(coming);
  }
  model = observer.begun_with_.value_or(model);
  // The request keeps its budget even if the settings change later.
  const std::uint32_t budget = models_[model].settings.reasoning_budget;
  if (auto* submit = std::get_if<ipc::Submit>(&work);
      submit != nullptr && submit->reasoning_budget < 0 && budget > 0)
    submit->reasoning_budget = static_cast<std::int32_t>(budget);
  RequestId id{next_id_++};
  journal_.record(id, std::move(work));
  try {
    active_[id] = Active{model, &observer, std::string(observer.turn_of())};
    waiting_[model].fresh.push(id, active_[id].key);
    models_[model].last_used = ModelInfo::Clock::now();
    const std::string why = why_no_more(model);
    if (!why.empty()) {
      fail(id, {ipc::FailureCode::kUnavailable, why, ""});
      return id;
    }
    dispatch(model);
    if (!models_[model].loaded) go_on_loading_later();
  } catch (...) {  // the observer never learns the id, and may end
    cancel(id);
    journal_.erase(id);
    throw;
  }
  return id;
}

// Returns why no worker of the entry will take the request; empty if one may. Admission asks the same, but an observer
// may start further requests long after it.
std::string Router::why_no_more(std::size_t model) const {
  const ModelInfo& entry = models_[model];
  if (!entry.retired) return drained(entry) ? kDrainedText : "";
  const auto goes_on_here = [](const Worker* worker) { return goes_on(*worker); };
  return std::ranges::any_of(entry.workers, goes_on_here) ? "" : text_of_change(entry);
}

RequestId Router::resume(std::size_t model, JournalEntry entry, RequestObserver& observer) {
  RequestId id{next_id_++};
  JournalEntry& recorded = journal_.record(id, std::move(entry.work));
  recorded.accepted = entry.accepted;
  recorded.prompt_tokens = std::move(entry.prompt_tokens);
  recorded.max_tokens = entry.max_tokens;
  recorded.tokens = std::move(entry.tokens);
  recorded.text = std::move(entry.text);
  recorded.parts = entry.parts;
  recorded.calls = entry.calls;
  recorded.in_call = entry.in_call;
  recorded.made_by = std::move(entry.made_by);
  active_[id] = Active{.model = model,
                       .observer = &observer,
                       .key = std::string(observer.turn_of()),
                       .recovering = true};
  waiting_[model].fresh.push_begun(id);
  dispatch_later(model);
  if (!models_[model].loaded) go_on_loading_later();
  return id;
}

std::string Router::identity(const Worker& worker) const {
  const ipc::Ready& ready = worker.ready();
  const ModelInfo& model = models_[worker.options().model];
  return fmt::format("{} {} {} {} {} {}", model.file_name,
                     content_mark(worker.file_mark(), ready.numerics_id), ready.architecture,
                     ready.vocabulary_size, ready.weight_bytes, ready.numerics_id);
}

std::string Router::identity(RequestId request) const {
  auto active = active_.find(request);
  if (active == active_.end() || active->second.worker == nullptr) return "";
  return identity(*active->second.worker);
}

std::optional<Router::Place> Router::place_of(RequestId request) const {
  const auto active = active_.find(request);
  const JournalEntry* entry = journal_.find(request);
  if (active == active_.end() || entry == nullptr) return std::nullopt;
  return Place{active->second.model, active->second.worker, entry->resubmissions};
}

// ---- to a worker ----

void Router::send(RequestId request, Worker& worker) {
  JournalEntry* entry = journal_.find(request);
  auto active = active_.find(request);
  if (entry == nullptr || active == active_.end()) return;
  if (!entry->made_by.empty()) {
    const std::string here = identity(worker);
    if (entry->made_by != here) {
      return fail(request,
                  {ipc::FailureCode::kNotResumable,
                   fmt::format("The stream can't go on unchanged: the model, or the way it "
                               "is computed, has changed ({} after {}).",
                               here, entry->made_by),
                   ""});
    }
    entry->numerics_id = worker.ready().numerics_id;
    entry->file_mark = worker.file_mark();
  }
  if (!entry->tokens.empty() && entry->numerics_id != worker.ready().numerics_id) {
    return fail(request, {ipc::FailureCode::kWorkerCrashed,
                          fmt::format("The worker died and its successor computes differently ({} "
                                      "after {}): the stream can't go on unchanged.",
                                      worker.ready().numerics_id, entry->numerics_id),
                          ""});
  }
  // That the file is gone proves nothing: the weights may have been kept in another way.
  const std::string& id = worker.ready().numerics_id;
  if (!entry->tokens.empty() && entry->file_mark != "-" && worker.file_mark() != "-" &&
      content_mark(entry->file_mark, id) != content_mark(worker.file_mark(), id)) {
    return fail(request, {ipc::FailureCode::kWorkerCrashed,
                          "The worker died, and its model file has changed: the stream can't go "
                          "on unchanged.",
                          ""});
  }
  active->second.worker = &worker;
  active->second.progressed = false;
  active->second.observer->begun_with_ = active->second.model;
  entry->tokens_when_sent = entry->tokens.size();
  worker.held_bytes += Journal::answer_bytes(*entry);
  Status sent;
  try {
    sent = worker.submit(request, Journal::message(*entry));
  } catch (const std::exception& error) {
    loop_.caught("the sending of a request", error);
    sent = Error(ErrorCode::kInternal,
                 "The server could not send the request to a worker; it may lack memory.");
  }
  if (!sent.ok()) {
    bool too_large = sent.error().code() == ErrorCode::kInvalidArgument;
    fail(request, {too_large ? ipc::FailureCode::kContextExceeded : ipc::FailureCode::kInternal,
                   sent.error().message(), ""});
  }
}

// ---- deaths of workers, and their start ----

void Router::worker_died(Worker& worker, const Death& death, std::vector<Orphan> orphans) {
  if (on_death && !worker.ended_as_asked()) on_death(worker.name(), worker.last_death_cause());
  note_crash(worker, death, orphans);
  take_back(worker, death, orphans);
}

// Requests may move to another worker before the dying worker has exited. The daemon drops that worker's late
// messages, so no request is answered twice.
void Router::worker_lost(Worker& worker, const Death& death, std::vector<Orphan> orphans) {
  spdlog::info(
      "worker {}: {}: its {} unfinished request(s) do not wait for the exit of its process",
      worker.name(), death.words, orphans.size());
  note_crash(worker, death, orphans);
  take_back(worker, death, orphans);
}

void Router::take_back(Worker& worker, const Death& death, const std::vector<Orphan>& orphans) {
  alone_.erase(&worker);
  worker.held_bytes = 0;  // all of the worker's requests go to other workers
  std::size_t model = worker.options().model;
  // The requests return to the front of the queue in their old order; suspects go to their own queue.
  for (auto orphan = orphans.rbegin(); orphan != orphans.rend(); ++orphan) {
    JournalEntry* entry = journal_.find(orphan->request);
    auto active = active_.find(orphan->request);
    if (entry == nullptr || active == active_.end() || active->second.worker != &worker) continue;
    Blame& blame = active->second.blame;
    if (orphan->sent) {
      ++entry->resubmissions;
      active->second.recovering = true;
      if (entry->tokens.size() == entry->tokens_when_sent) {
        blame.died(death);
      } else {
        blame.progressed();
      }
    }
    Waiting& waiting = waiting_[model];
    if (blame.suspect()) {
      waiting.suspects.push_front(orphan->request);
    } else {
      waiting.fresh.put_back(orphan->request);
    }
    active->second.worker = nullptr;
    entry->handed_back = true;
  }
  for (const Orphan& orphan : orphans) {
    const auto active = active_.find(orphan.request);
    if (active == active_.end()) continue;
    const Blame& blame = active->second.blame;
    if (blame.strikes() < std::max(settings_.isolation.max_strikes, 1U)) continue;
    fail(
        orphan.request,
        {ipc::FailureCode::kWorkerCrashed,
         fmt::format("The worker died at each of {} tries in a row to serve this request, the last "
                     "time: {}.",
                     blame.deaths(), death.words),
         ""});
  }
  dispatch_later(model);
}

void Router::standby_died(const Spare& spare) {
  if (on_death) on_death(spare.name(), spare.last_death_cause());
}

void Router::worker_failed(Worker& worker, const std::string& reason) {
  const std::size_t index = worker.options().model;
  // The vaults of unloaded models may have filled the worker's device.
  std::uint64_t dropped = 0;
  for (const std::string& device : worker.options().devices)
    dropped += drop_parked(device, index, UINT64_MAX);
  if (dropped > 0) {
    loop_.post([this, name = worker.name()] {
      if (Worker* again = find_worker(name); again != nullptr && !stopping_) again->restart();
    });
    return;
  }
  let_go_if_failed(index);
  if (const std::string why = given_up(models_[index]); !why.empty())
    refuse_waiting(index, Waiters::kAll, {ipc::FailureCode::kWorkerFailed, why, ""});
  if (was_ready_) return;
  if (start_failure_.empty())
    start_failure_ = fmt::format("model {}: {}", models_[index].id, reason);
  look_whether_started();
}

// The start is over when each model is served or has failed. A failed model does not keep clients from the others. If
// all have failed, the daemon has nothing to do.
void Router::look_whether_started() {
  if (was_ready_) return;
  bool any = false;
  for (const ModelInfo& model : models_) {
    if (model.retired) continue;
    any |= model.on_demand;
    if (model.on_demand) continue;
    const auto in = [](WorkerState state) {
      return [state](const Worker* worker) { return worker->state() == state; };
    };
    const bool serves = std::ranges::any_of(model.workers, in(WorkerState::kReady));
    if (!serves && !std::ranges::all_of(model.workers, in(WorkerState::kFailed))) return;
    any |= serves;
  }
  if (!any) {
    if (on_failed_start) on_failed_start(start_failure_);
    return;
  }
  was_ready_ = true;
  if (!start_failure_.empty()) {
    spdlog::error(
        "serving without what can't be loaded ({}); the daemon tries again from time to time",
        start_failure_);
  }
  if (on_ready) on_ready();
}

void Router::worker_changed(Worker& worker) {
  std::size_t index = worker.options().model;
  if (worker.state() == WorkerState::kReady) {
    ModelInfo& model = models_[index];
    model.ever_served = true;
    worker_became_ready(worker);
    const std::string& own_name = worker.ready().model_name;
    if (model.settings.name.empty() && !own_name.empty() && find_model(own_name) == nullptr)
      model.id = own_name;
    look_whether_started();
  }
  if (!waiting_[index].empty() || worker.drains_again())
    dispatch_later(index);  // some requests may have waited for this worker alone
  // Streams that a worker has handed back wait until an operator restarts one.
  if (!models_[index].retired && drained(models_[index]))
    refuse_waiting(index, Waiters::kNew, {ipc::FailureCode::kUnavailable, kDrainedText, ""});
  go_on_reloading_later();
  go_on_loading_later();
  if (on_change) on_change();
  look_whether_stopped();
}

// ---- the end of a request ----

void Router::forget(RequestId request, AtWorker at_worker) {
  auto found = active_.find(request);
  if (found == active_.end()) return;
  Active active = found->second;
  if (const JournalEntry* entry = journal_.find(request); entry != nullptr && active.worker) {
    std::size_t& held = active.worker->held_bytes;
    held -= std::min(held, Journal::answer_bytes(*entry));
  }
  active_.erase(found);
  journal_.erase(request);
  if (active.worker == nullptr) {
    waiting_[active.model].fresh.erase(request);
    std::erase(waiting_[active.model].suspects, request);
  } else {
    auto alone = alone_.find(active.worker);
    if (alone != alone_.end() && alone->second == request) alone_.erase(alone);
    if (at_worker == AtWorker::kCancel) {
      active.worker->cancel(request);
    } else {
      active.worker->finished(request);
    }
  }
  if (!waiting_[active.model].empty()) dispatch_later(active.model);
  models_[active.model].last_used = ModelInfo::Clock::now();
  go_on_reloading_later();
  go_on_loading_later();
  look_whether_idle();
}

void Router::look_whether_idle() {
  if (draining_ && outstanding() == 0 && idle_) loop_.post(std::exchange(idle_, nullptr));
}

void Router::cancel(RequestId request) {
  failing_.erase(request);
  forget(request, AtWorker::kCancel);
}

void Router::fail(RequestId request, Failure failure) {
  auto found = active_.find(request);
  if (found == active_.end()) return;
  RequestObserver* observer = found->second.observer;
  forget(request, AtWorker::kCancel);
  // This runs in a later turn of the loop, because the observer may be in the middle of start(). If the request was
  // cancelled meanwhile, the observer is gone.
  failing_[request] = observer;
  loop_.post([this, request, failure = std::move(failure)] {
    auto failing = failing_.find(request);
    if (failing == failing_.end()) return;
    RequestObserver* waiting_observer = failing->second;
    failing_.erase(failing);
    waiting_observer->on_failed(request, failure);
  });
}

std::size_t Router::waiting() const {
  std::size_t count = places_to_come();
  for (const Waiting& waiting : waiting_)
    count += waiting.fresh.size() + waiting.suspects.size();
  return count;
}

void Router::begin_drain(std::function<void()> idle) {
  draining_ = true;
  idle_ = std::move(idle);
  look_whether_idle();
}

void Router::stop(std::function<void()> stopped) {
  stopping_ = true;
  stopped_ = std::move(stopped);
  for (auto& worker : workers_)
    worker->stop();
  look_whether_stopped();
}

void Router::look_whether_stopped() {
  if (stopping_ && stopped_ &&
      std::ranges::all_of(workers_, [](const auto& w) { return w->gone(); })) {
    loop_.post(std::exchange(stopped_, nullptr));
  }
}

void Router::kill_workers() {
  for (auto& worker : workers_)
    worker->kill("the daemon ends");
}

}  // namespace bulkhead::orchestrator
