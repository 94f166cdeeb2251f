// Which models have processes: at the start, at first use, by request, and within a bound on memory.
//
// A model that is not loaded has workers without processes. Its requests wait in its queue, like those of a worker that
// is being replaced; the model with the oldest request comes first. With server.device_memory_mb the models of one
// device (however `device` names it) share that much memory. The router makes room for a model in three steps, and
// begins each with the model that was used longest ago:
//   1. it drops the vaults of unloaded models, at once;
//   2. it unloads models that have no request in progress;
//   3. it gives busy models no new requests ("yields"), so that step 2 applies to them later.
// A model that was loaded has a turn of twice the time that its loading took, at most 30 s. The router does not unload
// it for another model before its turn is over. So two models that clients use alternately compute for two thirds of
// the time, or less if loading takes more than 15 s, and each serves all requests that wait for it.
//
// With a bound no process starts that make_room() has not counted. A model whose workers have all failed counts as not
// loaded, and refuses requests. The router tries it again if there is room beside the loaded models; an operator's
// load or restart, or a change of its file, makes room for it. A failed worker of a model that serves keeps its share.
//
// The daemon opens no model file. Until a model has been loaded, the router counts its file's size
// and engine.kv_cache_mb; afterwards it counts the bytes that the model's worker reported.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "config/base/log.hpp"
#include "orchestrator/router/replicas.hpp"
#include "orchestrator/router/router.hpp"
#include "orchestrator/supervisor/device_list.hpp"

namespace bulkhead::orchestrator {

namespace {

using Clock = ModelInfo::Clock;

constexpr std::chrono::milliseconds kShortestTurn{200}, kLongestTurn{30'000};

Clock::time_point end_of_turn(const ModelInfo& model) {
  return model.turn_began +
         std::clamp<Clock::duration>(2 * model.load_took, kShortestTurn, kLongestTurn);
}

// Says whether the worker has no process, and holds no memory but the vault's.
bool rests(const Worker& worker) {
  return worker.state() == WorkerState::kUnloaded || worker.state() == WorkerState::kFailed ||
         worker.state() == WorkerState::kStopped;
}

// Says whether the worker is neither starting nor ending.
bool settled(const Worker& worker) {
  return serves(worker.state()) || rests(worker);
}

}  // namespace

// ---- memory ----

std::uint64_t Router::memory_taken(const std::string& device, std::optional<std::size_t> of) const {
  std::uint64_t bytes = 0;
  for (const auto& worker : workers_) {
    const std::size_t model = worker->options().model;
    if (of && *of != model) continue;
    const bool tried_again = worker->state() == WorkerState::kFailed && models_[model].loaded;
    if (!rests(*worker) || !worker->gone() || tried_again) {
      bytes += part_on(device, worker->options().devices, memory_of(*worker));
    } else if (worker->vault().held()) {
      bytes += part_on(device, worker->options().devices, memory_of(models_[model]));
    }
  }
  return bytes;
}

// Returns the memory that loading the model takes beyond what the model has left in the vault.
std::uint64_t Router::memory_missing(std::size_t model, const std::string& device) const {
  std::uint64_t bytes = 0;
  for (const Worker* worker : models_[model].workers) {
    if (!rests(*worker)) continue;
    const std::uint64_t held = worker->vault().held() ? memory_of(models_[model]) : 0;
    bytes += part_on(device, worker->options().devices, memory_of(*worker) - held);
  }
  return bytes;
}

// Says whether the worker's devices have room for one more worker of a loaded model.
bool Router::fits(const Worker& worker) const {
  if (memory_budget() == 0) return true;
  const std::uint64_t kept = worker.vault().held() ? memory_of(models_[worker.options().model]) : 0;
  const std::vector<std::string>& devices = worker.options().devices;
  const std::uint64_t missing = memory_of(worker) - kept;
  return std::ranges::all_of(devices, [&](const std::string& device) {
    return memory_taken(device) + part_on(device, devices, missing) <= memory_budget();
  });
}

// Drops vaults of unloaded models until `shortage` bytes are free. Returns the bytes that it freed.
std::uint64_t Router::drop_parked(const std::string& device, std::size_t wanting,
                                  std::uint64_t shortage) {
  std::vector<Worker*> parked;
  for (const auto& worker : workers_) {
    if (worker->state() == WorkerState::kUnloaded && worker->vault().held() &&
        is_on(device, worker->options().devices) && worker->options().model != wanting)
      parked.push_back(worker.get());
  }
  std::ranges::sort(parked, {}, [this](const Worker* worker) {
    return models_[worker->options().model].last_used;
  });
  std::uint64_t freed = 0;
  for (Worker* each : parked) {
    if (freed >= shortage) break;
    freed += part_on(device, each->options().devices, memory_of(models_[each->options().model]));
    each->drop_vault("another model needs its memory");
  }
  return freed;
}

// Lists the loaded models whose memory the router may take, the least recently used first.
std::vector<std::size_t> Router::others_on(const std::string& device, std::size_t wanting) const {
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (i == wanting || !models_[i].loaded || models_[i].retired) continue;
    if (!devices_of(i).contains(device)) continue;
    if (!std::ranges::all_of(models_[i].workers, [](const Worker* w) { return settled(*w); }))
      continue;
    others.push_back(i);
  }
  std::ranges::sort(others, {}, [this](std::size_t i) { return models_[i].last_used; });
  return others;
}

void Router::free_memory(const std::string& device, std::size_t wanting, std::uint64_t shortage) {
  std::uint64_t coming = drop_parked(device, wanting, shortage);
  for (const auto& each : workers_) {
    if (each->unloading()) coming += part_on(device, each->options().devices, memory_of(*each));
  }
  const std::vector<std::size_t> others = others_on(device, wanting);
  const Clock::time_point now = Clock::now();
  for (const bool busy : {false, true}) {
    for (const std::size_t i : others) {
      if (coming >= shortage) return;
      if (memory_taken(device, i) == 0 || !models_[i].loaded || in_progress(i) != busy) continue;
      if (const auto end = end_of_turn(models_[i]); end > now) {
        next_turn_ = std::min(next_turn_.value_or(end), end);
        continue;
      }
      coming += memory_taken(device, i);
      if (busy) {
        models_[i].yields = true;
      } else {
        spdlog::info("model {}: is unloaded because another model needs its memory", models_[i].id);
        unload_now(i);
      }
    }
  }
}

// Unloads models that turned out to be larger than the router had counted. A model that is alone on
// its device stays loaded; the router refuses to load it the next time.
void Router::keep_within_budget(const std::string& device) {
  if (memory_taken(device) <= memory_budget()) return;
  const std::vector<std::size_t> loaded = others_on(device, SIZE_MAX);
  for (std::size_t n = 0; n + 1 < loaded.size(); ++n) {
    if (in_progress(loaded[n])) continue;
    if (const auto end = end_of_turn(models_[loaded[n]]); end > Clock::now()) {
      next_turn_ = std::min(next_turn_.value_or(end), end);
      continue;
    }
    spdlog::info("model {}: is unloaded because the models take more than server.device_memory_mb",
                 models_[loaded[n]].id);
    return unload_now(loaded[n]);  // unload_now()'s end calls this function again
  }
}

bool Router::make_room(std::size_t model) {
  if (memory_budget() == 0) return true;
  bool fits = true;
  for (const std::string& device : devices_of(model)) {
    const std::uint64_t wanted = memory_missing(model, device) + memory_taken(device);
    if (wanted <= memory_budget()) continue;
    free_memory(device, model, wanted - memory_budget());
    fits &= memory_missing(model, device) + memory_taken(device) <= memory_budget();
  }
  return fits;
}

// Says whether the model fits without unloading another one; the router may drop vaults of unloaded
// models for it.
bool Router::has_unused_room(std::size_t model) {
  if (memory_budget() == 0) return true;
  return std::ranges::all_of(devices_of(model), [&](const std::string& device) {
    const auto wanted = [&] { return memory_missing(model, device) + memory_taken(device); };
    if (wanted() > memory_budget()) drop_parked(device, model, wanted() - memory_budget());
    return wanted() <= memory_budget();
  });
}

// ---- requests that are with a model ----

// Says whether a worker has seen the request. Such a request goes on with the model that it began
// with.
bool Router::begun(RequestId request) const {
  const JournalEntry* entry = journal_.find(request);
  return entry != nullptr && (entry->accepted || entry->resubmissions > 0);
}

bool Router::in_progress(std::size_t model) {
  return std::ranges::any_of(active_, [&](const auto& item) {
    return item.second.model == model && (item.second.worker != nullptr || begun(item.first));
  });
}

bool Router::holds_back(std::size_t model) const {
  return models_[model].yields || models_[model].unload_asked;
}

bool Router::has_waiting(std::size_t model) const {
  return !waiting_[model].empty();
}

// Returns the number of the model's oldest waiting request; requests are numbered upwards.
std::uint64_t Router::waiting_since(std::size_t model) const {
  std::uint64_t first = models_[model].load_asked ? 0 : UINT64_MAX;
  for (const RequestId request : waiting_[model].all())
    first = std::min(first, request.value);
  return first;
}

// ---- loading and unloading ----

bool Router::begins_loaded(const config::ModelSettings& settings, std::uint64_t bytes) const {
  if (settings.load != config::Load::kStart) return false;
  if (memory_budget() == 0) return true;
  bytes += std::uint64_t{settings_.engine.kv_cache_mb} << 20;
  bytes *= (std::uint64_t{1} + settings_.isolation.standby) * replica_count(settings);
  const std::vector<std::string> devices = numbered(named_devices(settings));
  return std::ranges::all_of(devices, [&](const std::string& device) {
    return memory_taken(device) + part_on(device, devices, bytes) <= memory_budget();
  });
}

void Router::start() {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].retired) continue;
    if (begins_loaded(models_[i].settings, models_[i].file_bytes)) {
      load_now(i);
    } else {
      models_[i].on_demand = true;
    }
  }
  loop_.post([this] { look_whether_started(); });
  go_on_loading_later();
  describe_next();
}

void Router::load_now(std::size_t model) {
  ModelInfo& info = models_[model];
  info.loaded = true;
  info.load_asked = false;
  info.load_began = info.last_used = Clock::now();
  ++loads_;
  for (Worker* worker : info.workers)
    worker->load();
}

void Router::unload_now(std::size_t model) {
  ModelInfo& info = models_[model];
  if (info.loaded) ++unloads_;  // a model that has failed may have lost its memory before
  info.loaded = info.unload_asked = info.yields = false;
  info.on_demand = true;
  for (Worker* worker : info.workers)
    worker->unload();
  loop_.post(
      [this] { look_whether_started(); });  // this may be the last model that the start waits for
}

// Starts workers that a loaded model lacks: there was no room for them, or a restart of one worker
// loaded the model again.
void Router::load_missing(std::size_t model) {
  if (!models_[model].loaded || models_[model].retired || holds_back(model)) return;
  for (Worker* worker : models_[model].workers) {
    if (worker->state() == WorkerState::kUnloaded && !leaving_.contains(worker) && fits(*worker))
      worker->load();
  }
}

// Gives the memory of a model whose workers have all failed to others, until there is room to try
// the model again.
void Router::let_go_if_failed(std::size_t model) {
  ModelInfo& info = models_[model];
  if (memory_budget() != 0 &&
      std::ranges::all_of(info.workers, [](const Worker* w) { return rests(*w); }))
    info.loaded = false;
}

void Router::restart(Worker& worker, Worker::Start start) {
  if (start == Worker::Start::kCold) worker.start_cold_next();
  ModelInfo& model = models_[worker.options().model];
  if (model.loaded || worker.state() != WorkerState::kFailed) return worker.restart();
  model.load_asked = true;
  go_on_loading_later();
}

// Says whether a failed worker may be tried again. The model may fail again, so no model that works
// makes room for it.
Router::Retry Router::worker_may_retry(Worker& worker) {
  const std::size_t index = worker.options().model;
  if (models_[index].loaded) return Retry::kNow;
  const bool rest = std::ranges::all_of(models_[index].workers, [](auto* w) { return rests(*w); });
  if (!rest || !has_unused_room(index)) {
    spdlog::info("model {}: is not tried again now: there is no room beside the loaded models",
                 models_[index].id);
    return Retry::kNotNow;
  }
  load_now(index);
  return Retry::kByLoad;
}

void Router::worker_became_ready(const Worker& worker) {
  ModelInfo& info = models_[worker.options().model];
  if (!worker.unloading() && !info.loaded) {  // somebody restarted it while it was being unloaded
    info.loaded = true;
    ++loads_;
  }
  const Clock::time_point began = std::exchange(info.load_began, {});
  if (began == Clock::time_point{}) return;  // not the first of its workers since
  info.turn_began = Clock::now();
  info.load_took = info.turn_began - began;
}

void Router::refuse_too_large(std::size_t model) {
  models_[model].load_asked = false;
  refuse_waiting(model, Waiters::kAll,
                 {ipc::FailureCode::kModelTooLarge, why_too_large(model), "model"});
}

void Router::go_on_loading_later() {
  if (stopping_ || std::exchange(loading_later_, true)) return;
  loop_.post([this] {
    loading_later_ = false;
    if (!stopping_) go_on_loading();
  });
}

void Router::go_on_loading() {
  learn_memory();
  next_turn_.reset();
  std::vector<std::size_t> yielded, wanting;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (std::exchange(models_[i].yields, false)) yielded.push_back(i);
    if (models_[i].unload_asked && !in_progress(i)) unload_now(i);
    const bool wanted = models_[i].load_asked || has_waiting(i);
    if (!models_[i].loaded && !models_[i].workers.empty() && wanted) wanting.push_back(i);
  }
  std::ranges::sort(wanting, {}, [this](std::size_t i) { return waiting_since(i); });
  std::set<std::string> spoken_for;  // devices of models whose turn it is
  for (const std::size_t model : wanting) {
    if (too_large(model)) {
      refuse_too_large(model);
      continue;
    }
    const std::set<std::string> devices = devices_of(model);
    const auto is_taken = [&](const std::string& device) { return spoken_for.contains(device); };
    const bool first = std::ranges::none_of(devices, is_taken);
    const bool can_start =
        std::ranges::all_of(models_[model].workers, [](const Worker* w) { return rests(*w); });
    if (first && make_room(model) && can_start) {
      load_now(model);
    } else {
      spoken_for.insert(devices.begin(), devices.end());
    }
  }
  if (spoken_for.empty()) {
    for (std::size_t i = 0; i < models_.size(); ++i)
      load_missing(i);
  }
  if (memory_budget() != 0) {
    std::set<std::string> devices;
    for (const auto& worker : workers_)
      devices.insert(worker->options().devices.begin(), worker->options().devices.end());
    for (const std::string& device : devices) {
      if (!spoken_for.contains(device)) keep_within_budget(device);
    }
  }
  for (const std::size_t model : yielded) {
    if (!holds_back(model)) dispatch_later(model);
  }
  turn_timer_.cancel();
  if (!next_turn_) return;
  const auto left = std::chrono::ceil<std::chrono::microseconds>(*next_turn_ - Clock::now());
  turn_timer_.start(std::max(left, std::chrono::microseconds(1)), [this] { go_on_loading(); });
}

// ---- by request ----

Result<std::size_t> Router::index_of(const std::string& name) const {
  const ModelInfo* found = find_model(name);
  if (found == nullptr)
    return Error(ErrorCode::kNotFound, fmt::format("The model '{}' does not exist.", name));
  return static_cast<std::size_t>(found - models_.data());
}

Result<std::size_t> Router::load(const std::string& name) {
  BULKHEAD_TRY(const std::size_t index, index_of(name));
  ModelInfo& model = models_[index];
  if (!model.loaded && too_large(index)) {
    return Error(ErrorCode::kResourceExhausted, why_too_large(index));
  }
  model.unload_asked = false;
  if (!model.loaded) {
    model.load_asked = true;
    go_on_loading_later();
  }
  for (Worker* worker : model.workers) {
    if (model.loaded && worker->state() == WorkerState::kFailed) worker->load();
  }
  dispatch_later(index);
  return index;
}

Result<std::size_t> Router::unload(const std::string& name) {
  BULKHEAD_TRY(const std::size_t index, index_of(name));
  models_[index].load_asked = false;
  if (models_[index].loaded || !given_up(models_[index]).empty()) {
    models_[index].unload_asked = true;
    go_on_loading_later();
  }
  return index;
}

const char* Router::state_of(const ModelInfo& model) const {
  const auto index = static_cast<std::size_t>(&model - models_.data());
  if (!model.loaded && model.load_asked) return "waiting";
  if (!given_up(model).empty()) return "failed";
  if (!model.loaded) {
    if (has_waiting(index)) return "waiting";
    return std::ranges::all_of(model.workers, [](const Worker* w) { return rests(*w); })
               ? "unloaded"
               : "unloading";
  }
  if (model.unload_asked) return "unloading";
  const ModelInfo& serves = serving(model);
  if (std::ranges::any_of(serves.workers,
                          [](const Worker* w) { return w->state() == WorkerState::kReady; }))
    return "loaded";
  const bool drained =
      !model.workers.empty() && std::ranges::all_of(model.workers, [](const Worker* w) {
        return !w->returning() &&
               (w->state() == WorkerState::kDraining || w->state() == WorkerState::kDrained);
      });
  return drained ? "drained" : "loading";
}

}  // namespace bulkhead::orchestrator
