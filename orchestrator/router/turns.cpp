// Chooses the worker that gets a request. Where clients have keys (server.keys), it also chooses the key whose
// request is next, so that each key gets the same share of a model that has more requests than it can compute.
//
// Without keys the router gives a worker all requests at once, because the worker knows best when it can begin one.
// With keys the router gives a worker as many requests as the worker computes at a time, and some more to prepare
// meanwhile. The other requests wait in the router, which takes them in turns between the keys (turn_queue.hpp). The
// keys share the queue's places (server.max_queue) likewise: each key has an even share for itself, and also takes
// places that the other keys leave free.
#include <algorithm>
#include <utility>

#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

namespace {

// Returns how many sequences the worker computes at a time. If the setting leaves that to the worker, the worker's
// figures say how many; the daemon bounds the number, since it does not trust the worker.
std::size_t batch_of(const Worker& worker, std::size_t setting) {
  constexpr double kUntold = 16, kMost = 1024;
  if (setting != 0) return setting;
  const double told = worker.reported("max_batch");
  return static_cast<std::size_t>(told >= 1 ? std::min(told, kMost) : kUntold);
}

// A worker that has the beginning of a request in its cache may have this many requests more than another worker.
// A system prompt that all requests share must not bring all of them to one device.
constexpr std::size_t kMostAhead = 4;

}  // namespace

std::size_t Router::sequences_at_once(const ModelInfo& model) const {
  std::size_t all = 0;
  for (const Worker* worker : model.workers)
    all += batch_of(*worker, settings_.engine.max_batch);
  return all;
}

// Says whether the worker has all that it computes at a time, and a quarter of that to prepare meanwhile.
bool Router::has_enough(const Worker& worker) const {
  if (settings_.server.keys.empty()) return false;
  const std::size_t batch = batch_of(worker, settings_.engine.max_batch);
  return worker.outstanding() >= batch + std::max<std::size_t>(batch / 4, 1);
}

// Says whether the device has to compute for the request. A request that takes no turn costs a
// worker little.
bool Router::takes_turns(RequestId request) {
  const JournalEntry* entry = journal_.find(request);
  if (entry == nullptr) return false;
  const auto* submit = std::get_if<ipc::Submit>(&entry->work);
  return (submit != nullptr && !submit->count_only) ||
         std::holds_alternative<ipc::Embed>(entry->work) ||
         std::holds_alternative<ipc::Rank>(entry->work);
}

// Says whether the worker can be given requests now; with kNew, requests that no worker has had. A worker that drains
// again takes only requests that it had before.
bool Router::takes_more(const Worker& worker, Waiters which) const {
  if (which == Waiters::kNew && worker.drains_again()) return false;
  return worker.state() == WorkerState::kReady && !alone_.contains(&worker);
}

bool Router::is_new(RequestId request) const {
  const JournalEntry* entry = journal_.find(request);
  return !begun(request) && (entry == nullptr || !entry->handed_back);
}

// Says whether the worker computes the request's next tokens in the way in which its first ones were computed. A
// model's workers may be on devices of different kinds (models[].devices), which compute different tokens.
bool Router::goes_on_alike(const JournalEntry& entry, const Worker& worker) const {
  if (!entry.made_by.empty()) return entry.made_by == identity(worker);
  return entry.tokens.empty() || entry.numerics_id == worker.ready().numerics_id;
}

// Says whether the request must wait: no worker can go on with it now, but one that perhaps can is starting, or is
// busy with a suspect. Any other worker would fail the request.
bool Router::awaits_its_kind(RequestId request, std::size_t model) {
  const JournalEntry* entry = journal_.find(request);
  if (entry == nullptr || (entry->tokens.empty() && entry->made_by.empty())) return false;
  bool one_comes = false;
  for (const Worker* worker : models_[model].workers) {
    // The router does not know how a worker computes before the worker has served.
    if (worker->ever_ready() && !goes_on_alike(*entry, *worker)) continue;
    if (takes_more(*worker, Waiters::kAll)) return false;
    const WorkerState state = worker->state();
    one_comes |= state == WorkerState::kStarting || state == WorkerState::kLoading ||
                 state == WorkerState::kRestarting || state == WorkerState::kReady ||
                 worker->returning();
  }
  return one_comes;
}

// Returns the worker with the least to do among those that can go on with the request. If there is none, the
// function returns a worker that can't, and send() tells the client why. Null: no worker is ready.
Worker* Router::worker_for(RequestId request, std::size_t model) {
  const Waiters which = is_new(request) ? Waiters::kNew : Waiters::kAll;
  Worker* alike = least_loaded(model, which, journal_.find(request));
  return alike != nullptr ? alike : least_loaded(model, which);
}

// Returns the worker that was last given a prompt with the same beginning, if that worker could begin with the
// request at once; otherwise returns `least`.
Worker& Router::with_prefix(RequestId request, std::size_t model, Worker& least) {
  const JournalEntry* entry = journal_.find(request);
  if (entry == nullptr || models_[model].workers.size() < 2) return least;
  const std::vector<std::uint64_t> blocks = prefix_blocks(entry->work);
  if (blocks.empty() || !takes_turns(request)) return least;
  const std::string holder = prefix_routes_.holder_of(model, blocks);
  Worker* chosen = &least;
  for (Worker* worker : models_[model].workers) {
    const bool serves =
        takes_more(*worker, Waiters::kNew) && !worker->in_doubt() && goes_on_alike(*entry, *worker);
    const bool has_time = worker->outstanding() < batch_of(*worker, settings_.engine.max_batch) &&
                          worker->outstanding() <= least.outstanding() + kMostAhead;
    if (worker->name() == holder && serves && has_time) chosen = worker;
  }
  prefix_routes_.note(model, blocks, chosen->name());
  return *chosen;
}

// Returns how many requests were admitted and have yet to start; with `key`, how many of that key.
std::size_t Router::places_to_come(std::optional<std::string_view> key) const {
  std::size_t places = 0;
  for (const auto& [observer, coming] : coming_) {
    if (!key || coming.key == *key) places += coming.places;
  }
  return places;
}

bool Router::has_room_for(std::size_t count, std::string_view key) const {
  const std::size_t places = settings_.server.max_queue;
  if (outstanding() + count <= places) return true;
  if (settings_.server.keys.empty()) return false;
  const std::size_t share = places / (settings_.server.keys.size() + 1);  // operators have one
  const auto has = static_cast<std::size_t>(
      std::ranges::count_if(active_, [key](const auto& item) { return item.second.key == key; }));
  return has + places_to_come(key) + count <= share;
}

// Fails the model's waiting requests with `why`; no worker computes a request that waits for its
// turn.
void Router::refuse_waiting(std::size_t model, Waiters which, const Failure& why) {
  for (const RequestId request : waiting_[model].all()) {
    if (which == Waiters::kAll || is_new(request)) fail(request, why);
  }
}

// Moves the requests of a model that has no workers any more to its successor. Without a successor they fail, and so
// do those whose answer this model has begun: its workers were ended before they could compute them.
void Router::move_waiting(std::size_t model, std::optional<std::size_t> successor) {
  for (auto& [observer, coming] : coming_) {
    if (successor && coming.model == model && !observer->begun_with_) coming.model = *successor;
  }
  if (waiting_[model].empty()) return;
  std::vector<RequestId> stranded = std::exchange(waiting_[model], {}).all();
  std::ranges::sort(stranded, {}, &RequestId::value);
  for (const RequestId request : stranded) {
    Active& active = active_.at(request);
    if (!successor) {
      fail(request, {ipc::FailureCode::kUnavailable, "The model has been removed.", ""});
      continue;
    }
    if (active.observer->begun_with_.has_value()) {
      fail(request, {ipc::FailureCode::kUnavailable, text_of_change(models_[model]), ""});
      continue;
    }
    active.model = *successor;
    waiting_[*successor].fresh.push(request, active.key);
  }
  if (!successor) return;
  dispatch_later(*successor);
  go_on_loading_later();
}

// Returns the worker with the least to do among those that can be given such requests, and can go on with `entry`.
Worker* Router::least_loaded(std::size_t model, Waiters which, const JournalEntry* entry) const {
  Worker* best = nullptr;
  for (Worker* worker : models_[model].workers) {
    if (!takes_more(*worker, which)) continue;
    if (entry != nullptr && !goes_on_alike(*entry, *worker)) continue;
    const auto rank = [](const Worker& each) {
      return std::pair(each.in_doubt(), each.outstanding());
    };
    if (best == nullptr || rank(*worker) < rank(*best)) best = worker;
  }
  return best;
}

void Router::dispatch(std::size_t model) {
  send_waiting(model);
  drain_again(model);
  go_on_reloading_later();
}

// Drains workers that an operator had drained, and that came back for the requests that they had.
void Router::drain_again(std::size_t model) {
  std::vector<Worker*> workers = models_[model].workers;
  std::erase_if(workers, [](const Worker* worker) { return !worker->drains_again(); });
  if (workers.empty()) return;
  const bool needed =
      std::ranges::any_of(waiting_[model].all(), [this](RequestId each) { return !is_new(each); });
  if (needed) return;
  for (Worker* worker : workers)
    worker->drain();
}

// Says whether the model's workers may get the waiting request now. `for_new` is the one that new requests would go to.
bool Router::may_be_sent(RequestId request, std::size_t model, const Worker* for_new) {
  if (!is_new(request)) return !awaits_its_kind(request, model);
  if (for_new == nullptr || holds_back(model)) return false;
  if (!takes_turns(request)) return true;
  if (models_[model].finishing && !active_.at(request).observer->begun_with_) return false;
  return !has_enough(*for_new);
}

void Router::send_waiting(std::size_t model) {
  Waiting& waiting = waiting_[model];
  // Suspects come first. A suspect is sent only when its worker has no other request without a token: a request that
  // has a token can't get a strike, so a death then points at the suspect. The suspect waits only for the others'
  // prefill, not for their whole streams.
  while (!waiting.suspects.empty() && !awaits_its_kind(waiting.suspects.front(), model)) {
    Worker* worker = worker_for(waiting.suspects.front(), model);
    if (worker == nullptr) return;
    bool others_without_token = std::ranges::any_of(active_, [worker](const auto& item) {
      return item.second.worker == worker && !item.second.progressed;
    });
    if (others_without_token) return;  // dispatch runs again when they make progress
    RequestId request = waiting.suspects.front();
    waiting.suspects.pop_front();
    send(request, *worker);
    const auto sent = active_.find(request);  // the request may have failed instead
    if (sent != active_.end() && sent->second.worker == worker) alone_[worker] = request;
  }
  while (!waiting.fresh.empty()) {
    if (least_loaded(model, Waiters::kAll) == nullptr) return;
    const Worker* for_new = least_loaded(model, Waiters::kNew);
    const auto next =
        waiting.fresh.take([&](RequestId each) { return may_be_sent(each, model, for_new); });
    if (!next) break;
    send(*next, with_prefix(*next, model, *worker_for(*next, model)));
  }
}

void Router::dispatch_later(std::size_t model) {
  loop_.post([this, model] { dispatch(model); });
}

}  // namespace bulkhead::orchestrator
