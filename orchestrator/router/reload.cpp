// New settings for a running router. An entry of models_ never changes what it computes: a changed model gets a new
// entry, its successor, and the old entry is retired. Workers move from the old entry to the new one, one at a time,
// each when its last sequence is over. A worker that dies on the way comes back as what it was until then, so no
// stream gets tokens of another model.
#include "config/reload.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "config/base/log.hpp"
#include "config/draft_file.hpp"
#include "config/template_path.hpp"
#include "orchestrator/router/replicas.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

namespace {

// Returns the key of an entry of the configuration. Two entries with the same key are the same
// model.
std::string key_of(const config::ModelSettings& settings) {
  return settings.name.empty() ? "file " + settings.path : "name " + settings.name;
}

bool has_file(const config::ModelSettings& settings) {
  return !settings.path.empty() && settings.path != "builtin";
}

std::array<std::string, 3> key_of_files(const config::ModelSettings& settings) {
  return {settings.path, settings.chat_template, settings.draft};
}

// Adds to the report what changes about a model that keeps its workers.
void tell_changes(const ModelInfo& model, const config::ModelSettings& wanted,
                  ReloadReport& report) {
  for (const config::Change& change : config::changes(model.settings, wanted)) {
    if (change.key == "workers") {
      report.resized.push_back(model.id);
    } else {
      report.changed.push_back(model.id + "'s " + change.key);
    }
  }
}

Status readable(const ModelFile& file) {
  if (file.problem.empty()) return {};
  return Error(ErrorCode::kNotFound, file.problem);
}

}  // namespace

std::string mark_of(const config::ModelSettings& settings) {
  return joined_mark(file_mark_of(settings.path), template_mark_of(settings.chat_template));
}

std::string draft_mark_of(const config::ModelSettings& settings) {
  const bool own = settings.draft.empty() || settings.draft == config::kOwnBlock;
  return own ? "" : file_mark_of(settings.draft);
}

ModelFiles look_at_models(const config::Settings& settings) {
  ModelFiles files;
  for (const config::ModelSettings& model : models_of(settings)) {
    ModelFile file{mark_of(model), draft_mark_of(model), ""};
    const auto look = [&file](const std::string& what, const std::string& path) {
      if (::access(path.c_str(), R_OK) != 0)
        file.problem = errno_error(ErrorCode::kNotFound, what + path, errno).message();
    };
    if (config::is_template_path(model.chat_template))
      look("the chat template ", model.chat_template);
    if (config::is_draft_file(model.draft)) look("the draft model ", model.draft);
    if (has_file(model)) look("the model file ", model.path);
    files.emplace(key_of_files(model), std::move(file));
  }
  return files;
}

Result<ReloadReport> Router::reload(const config::Settings& settings, bool replace_workers,
                                    const ModelFiles& files) {
  // A step of the reload. All steps are planned first, and done only if all of them can be.
  struct Step {
    config::ModelSettings settings;
    ModelFile file;
    std::optional<std::size_t> old;
    bool changed = false;
  };
  std::vector<Step> steps;
  std::set<std::size_t> kept;
  for (const config::ModelSettings& wanted : models_of(settings)) {
    Step step{wanted, {}, {}};
    if (const auto file = files.find(key_of_files(wanted)); file != files.end())
      step.file = file->second;
    for (std::size_t i = 0; i < models_.size() && !step.old; ++i) {
      if (!models_[i].retired && !kept.contains(i) && key_of(models_[i].settings) == key_of(wanted))
        step.old = i;
    }
    if (step.old) {
      kept.insert(*step.old);
      const ModelInfo& old = models_[*step.old];
      const std::string& mark = step.file.mark;
      const bool other_file = has_file(wanted) && mark != "-" && mark != old.file_mark;
      const std::string& draft = step.file.draft_mark;
      const bool other_draft = draft != "-" && draft != old.draft_mark;
      step.changed = replace_workers || other_file || other_draft ||
                     config::needs_new_workers(old.settings, wanted);
      if (step.changed) BULKHEAD_RETURN_IF_ERROR(readable(step.file));
    } else {
      BULKHEAD_RETURN_IF_ERROR(readable(step.file));
    }
    steps.push_back(std::move(step));
  }

  settings_ = settings;
  ReloadReport report;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].retired || kept.contains(i)) continue;
    report.removed.push_back(models_[i].id);
    retire(i, std::nullopt);
  }
  for (Step& step : steps) {
    if (!step.old) {
      const std::size_t model = add_model(step.settings, step.file);
      const bool now = begins_loaded(step.settings, models_[model].file_bytes);
      models_[model].on_demand = !now;
      report.added.push_back(models_[model].id);
      resize(model);
      if (now) load_now(model);
    } else if (step.changed) {
      const std::size_t model = add_model(step.settings, step.file);
      ModelInfo& old = models_[*step.old];
      // The successor has the id that clients have, and that they can wait for.
      if (step.settings.name.empty()) models_[model].id = old.id;
      models_[model].ever_served = old.ever_served;
      models_[model].loaded = old.loaded;
      models_[model].on_demand = old.on_demand;
      models_[model].last_used = old.last_used;
      models_[model].unload_asked = std::exchange(old.unload_asked, false);
      // If all workers had failed and nobody has loaded the model since, the router tries it again
      // with its new options.
      models_[model].load_asked =
          std::exchange(old.load_asked, false) || (!old.loaded && !given_up(old).empty());
      report.replaced.push_back(models_[model].id);
      retire(*step.old, model);
    } else {
      ModelInfo& model = models_[*step.old];
      tell_changes(model, step.settings, report);
      model.settings = step.settings;
      for (Worker* worker : model.workers)
        worker->configure(worker_options(*step.old, worker->name(), worker->next_device()));
      resize(*step.old);
    }
  }
  go_on_reloading_later();
  go_on_loading_later();
  describe_next();
  return report;
}

void Router::retire(std::size_t model, std::optional<std::size_t> successor) {
  models_[model].retired = true;
  models_[model].successor = successor;
  for (Worker* worker : models_[model].workers)  // its last stream may need any of them
    leaving_.erase(worker);
  for (ModelInfo& earlier : models_) {  // models that were being replaced by this one
    if (earlier.retired && earlier.successor == model) earlier.successor = successor;
  }
  if (!models_[model].workers.empty()) return;
  // The old entry was waiting for workers that now go to its successor, so its requests go there, too.
  move_waiting(model, successor);
}

// Says whether the model has fewer workers on the device than its settings ask for. Workers that are leaving
// do not count.
bool Router::lacks_worker_on(std::size_t model, const std::string& device) const {
  return staying_on(model, device) < replica_count(models_[model].settings, device);
}

std::size_t Router::staying_on(std::size_t model, const std::string& device) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(models_[model].workers, [&](Worker* worker) {
        return !leaving_.contains(worker) && worker->next_device() == device;
      }));
}

// Gives each device as many workers as the settings ask for. If a device has too many, workers that
// serve leave last.
void Router::resize(std::size_t model) {
  const config::ModelSettings& settings = models_[model].settings;
  const auto& workers = models_[model].workers;
  for (const bool serving_too : {false, true}) {
    for (auto worker = workers.rbegin(); worker != workers.rend(); ++worker) {
      const std::string& device = (*worker)->next_device();
      if (!serving_too && (*worker)->state() == WorkerState::kReady) continue;
      if (!leaving_.contains(*worker) &&
          staying_on(model, device) > replica_count(settings, device))
        leaving_.insert(*worker);
    }
  }
  const auto lacks_one = [&](const std::string& device) { return lacks_worker_on(model, device); };
  while (std::ranges::any_of(replica_devices(settings), lacks_one)) {
    Worker& worker = add_worker(model);
    if (models_[model].loaded && fits(worker)) worker.load();
  }
}

bool Router::needed(std::size_t model) const {
  const auto of_model = [model](const auto& item) { return item.second.model == model; };
  return std::ranges::any_of(active_, of_model) || std::ranges::any_of(coming_, of_model);
}

// Says whether the model has begun answers whose other requests wait, or have yet to start. No other model may compute
// them.
bool Router::owes_answers(std::size_t model) const {
  const auto begun_here = [model](const RequestObserver* observer) {
    return observer->begun_with_ == model;
  };
  const auto waits = [&](RequestId each) { return begun_here(active_.at(each).observer); };
  const auto comes = [&](const auto& item) { return begun_here(item.first); };
  return std::ranges::any_of(waiting_[model].all(), waits) || std::ranges::any_of(coming_, comes);
}

// Says whether the worker takes requests, now or when its next process is ready: nobody has ended or drained it.
bool Router::goes_on(const Worker& worker) {
  if (worker.drains_again() && !worker.returning()) return false;
  const WorkerState state = worker.state();
  return state == WorkerState::kReady || state == WorkerState::kStarting ||
         state == WorkerState::kLoading || state == WorkerState::kRestarting ||
         state == WorkerState::kUnloaded || worker.returning();
}

void Router::end(Worker& worker) {
  leaving_.erase(&worker);
  ending_.insert(&worker);
  worker.stop();
}

void Router::go_on_reloading_later() {
  const bool reloading = !leaving_.empty() || !ending_.empty() ||
                         std::ranges::any_of(models_, [](const ModelInfo& model) {
                           return model.retired && !model.workers.empty();
                         });
  if (!reloading || stopping_ || std::exchange(reloading_later_, true)) return;
  loop_.post([this] {
    reloading_later_ = false;
    if (!stopping_) go_on_reloading();
  });
}

void Router::go_on_reloading() {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].retired) go_on_with(i);
  }
  for (Worker* worker : std::set<Worker*>(leaving_)) {
    worker->drain();
    if (worker->outstanding() > 0) continue;
    std::erase(models_[worker->options().model].workers, worker);
    end(*worker);
  }
  for (Worker* worker : std::set<Worker*>(ending_)) {
    if (!worker->gone()) continue;
    ending_.erase(worker);
    alone_.erase(worker);
    std::erase_if(workers_, [worker](const auto& each) { return each.get() == worker; });
  }
}

// Returns the worker that moves to the successor next. A worker that drains already comes first, then one that
// stays on its device. A worker that goes to another device comes last, when that device's old worker has freed
// its memory.
Worker* Router::next_to_move(const std::vector<Worker*>& workers, std::size_t successor) const {
  const auto drains = [](const Worker* worker) {
    return worker->state() == WorkerState::kDraining || worker->state() == WorkerState::kDrained;
  };
  const auto stays_there = [&](const Worker* worker) {
    return lacks_worker_on(successor, worker->next_device());
  };
  auto next = std::ranges::find_if(workers, drains);
  if (next == workers.end()) next = std::ranges::find_if(workers, stays_there);
  return next == workers.end() ? workers.front() : *next;
}

void Router::go_on_with(std::size_t retired) {
  const std::optional<std::size_t> successor = models_[retired].successor;
  while (!models_[retired].workers.empty()) {
    // A stream that lost its worker needs a worker of the same kind. Requests of answers that no worker has begun move
    // to the successor with the last worker; without a successor the last worker serves them before it goes.
    const auto must_stay = [&](RequestId each) { return !successor || begun(each); };
    if (std::ranges::any_of(waiting_[retired].all(), must_stay)) return;
    auto& workers = models_[retired].workers;
    if (!successor) {
      const bool more_come = std::ranges::any_of(
          coming_, [retired](const auto& item) { return item.second.model == retired; });
      if (more_come && std::ranges::any_of(workers, [](const Worker* w) { return goes_on(*w); }))
        return;
      for (Worker* worker : workers)
        worker->drain();
      if (needed(retired)) return;
      for (Worker* worker : std::exchange(workers, {}))
        end(*worker);
      return;
    }
    // Workers move one at a time, so that the others serve meanwhile.
    for (const Worker* worker : models_[*successor].workers) {
      const WorkerState state = worker->state();
      if (worker->returning() || state == WorkerState::kStarting ||
          state == WorkerState::kLoading || state == WorkerState::kRestarting ||
          state == WorkerState::kFailed)
        return;
    }
    Worker* worker = next_to_move(workers, *successor);
    // The last worker first computes what is left of the answers that its model has begun.
    const bool last = std::ranges::none_of(
        workers, [worker](const Worker* each) { return each != worker && goes_on(*each); });
    models_[retired].finishing = last;
    if (last && goes_on(*worker) && owes_answers(retired)) return;
    worker->drain();
    if (worker->outstanding() > 0) return;
    std::erase(workers, worker);
    ModelInfo& model = models_[*successor];
    if (model.workers.size() < replica_count(model.settings)) {
      const std::string own = worker->next_device();
      const std::string device = lacks_worker_on(*successor, own) ? own : device_for(*successor);
      model.workers.push_back(worker);
      leaving_.erase(worker);
      worker->replace(worker_options(*successor, worker->name(), device));
      if (model.loaded) {
        worker->load();
      } else {
        worker->unload();
      }
    } else {
      end(*worker);
    }
  }
  move_waiting(retired, successor);
  // If workers are on their way here, a worker that started beside them might find no room on the device.
  const bool more_come = std::ranges::any_of(models_, [&](const ModelInfo& other) {
    return other.retired && other.successor == successor && !other.workers.empty();
  });
  if (successor && !more_come) resize(*successor);
}

}  // namespace bulkhead::orchestrator
