// The router's models and their workers: makes them from settings, and finds the one that serves a name.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "config/base/cache_home.hpp"
#include "config/base/log.hpp"
#include "config/base/text.hpp"
#include "config/config.hpp"
#include "config/model_name.hpp"
#include "orchestrator/router/replicas.hpp"
#include "orchestrator/router/router.hpp"
#include "orchestrator/supervisor/device_list.hpp"

namespace bulkhead::orchestrator {

namespace {

// Returns a name that a URL's path can hold without escapes.
std::string worker_name(const std::string& model, std::size_t index) {
  std::string name;
  for (char c : model) {
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '.' || c == '_' || c == '-';
    name += plain ? c : '-';
  }
  return name + "-" + std::to_string(index);
}

}  // namespace

Router::Router(EventLoop& loop, const RouterOptions& options)
    : loop_(loop),
      worker_program_(options.worker_program),
      groups_(options.groups),
      settings_(options.settings),
      looks_(std::make_shared<Mailbox>(loop)),
      turn_timer_(loop) {
  for (const config::ModelSettings& settings : models_of(settings_)) {
    const std::size_t model = add_model(settings, {mark_of(settings), draft_mark_of(settings), ""});
    for (std::size_t i = 0; i < replica_count(settings); ++i)
      add_worker(model);
  }
}

std::vector<config::ModelSettings> models_of(const config::Settings& settings) {
  if (!settings.models.empty()) return settings.models;
  return {config::ModelSettings{}};
}

void ModelInfo::count_file_bytes() {
  file_bytes = 0;
  for (const std::string* mark : {&file_mark, &draft_mark})
    file_bytes += std::strtoull(mark->c_str(), nullptr, 10);  // 0 for "-" and ""
}

std::size_t Router::add_model(const config::ModelSettings& settings, const ModelFile& file) {
  ModelInfo model;
  model.settings = settings;
  model.file_name = config::file_name_of(settings.path);
  model.file_mark = file.mark;
  model.draft_mark = file.draft_mark;
  model.id = config::name_of(settings);
  model.created = std::time(nullptr);
  model.count_file_bytes();
  // Takes the place of a removed model, so that reloads do not make the list ever longer.
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].retired || !models_[i].workers.empty() || needed(i)) continue;
    models_[i] = std::move(model);
    return i;
  }
  models_.push_back(std::move(model));
  waiting_.resize(models_.size());
  return models_.size() - 1;
}

// Returns the device on which a further worker of the model belongs.
std::string Router::device_for(std::size_t model) const {
  std::vector<std::string> taken;
  for (Worker* worker : models_[model].workers) {
    if (!leaving_.contains(worker)) taken.push_back(worker->next_device());
  }
  return next_device(models_[model].settings, taken);
}

WorkerOptions Router::worker_options(std::size_t model, std::string name,
                                     std::string device) const {
  const config::ModelSettings& settings = models_[model].settings;
  WorkerOptions worker;
  worker.model = model;
  worker.program = worker_program_;
  worker.model_file = settings.path;
  worker.chat_template = settings.chat_template;
  worker.devices = numbered(devices_of_share(settings, device));
  worker.device = std::move(device);
  worker.arguments = {"--model",  settings.path.empty() ? "builtin" : settings.path,
                      "--device", worker.device,
                      "--name",   name};
  if (settings.split == config::Split::kLayers)
    worker.arguments.insert(worker.arguments.end(), {"--split", "layers"});
  if (settings.context != 0) {
    worker.arguments.insert(worker.arguments.end(),
                            {"--context", std::to_string(settings.context)});
  }
  if (settings_.models.size() > 1 || settings.workers > 1 ||
      !settings_.server.models_folder.empty())
    worker.arguments.push_back("--beside-others");
  if (!settings.cores.empty()) {
    std::string cores;
    for (const std::uint32_t core : settings.cores)
      cores += (cores.empty() ? "" : ",") + std::to_string(core);
    worker.arguments.insert(worker.arguments.end(), {"--cores", cores});
  }
  if (!settings.chat_template.empty())
    worker.arguments.insert(worker.arguments.end(), {"--chat-template", settings.chat_template});
  if (!settings.draft.empty())
    worker.arguments.insert(worker.arguments.end(), {"--draft", settings.draft});
  for (const std::string& assignment : config::worker_assignments(settings_))
    worker.arguments.insert(worker.arguments.end(), {"--set", assignment});
  worker.name = std::move(name);
  worker.cache_home = cache_home();
  worker.most_cache_bytes = std::uint64_t{settings_.isolation.cache_mb} << 20;
  worker.groups = groups_;
  worker.most_memory_bytes = std::uint64_t{settings_.isolation.worker_memory_mb} << 20;
  worker.ipc = settings_.ipc;
  worker.heartbeat_timeout = std::chrono::milliseconds(settings_.isolation.heartbeat_timeout_ms);
  worker.exit_timeout = std::chrono::milliseconds(settings_.isolation.exit_timeout_ms);
  worker.pid_namespace = settings_.isolation.sandbox == config::SandboxMode::kOn &&
                         settings_.isolation.namespaces == config::NamespaceMode::kAuto;
  if (settings_.isolation.sandbox == config::SandboxMode::kOn)
    worker.user = settings_.isolation.worker_user;
  worker.vault = settings_.isolation.vault;
  worker.fallback = settings_.gpu_optimizations.graceful_fallback;
  worker.standby = settings_.isolation.standby;
  worker.crash_budget = settings_.isolation.crash_budget;
  worker.retry_failed = std::chrono::seconds(settings_.isolation.retry_failed_s);
  return worker;
}

Worker& Router::add_worker(std::size_t model) {
  std::string name;
  std::size_t number = 0;
  do {
    name = worker_name(models_[model].id, number++);
  } while (find_worker(name) != nullptr);
  workers_.push_back(
      std::make_unique<Worker>(loop_, worker_options(model, std::move(name), device_for(model)),
                               static_cast<WorkerEvents&>(*this)));
  models_[model].workers.push_back(workers_.back().get());
  return *workers_.back();
}

// ---- who is there ----

const ipc::Ready* ModelInfo::reported() const {
  for (const Worker* worker : workers) {
    if (!worker->ready().architecture.empty()) return &worker->ready();
  }
  return nullptr;
}

bool ModelInfo::has_alias(std::string_view name) const {
  return std::ranges::any_of(
      settings.aliases, [name](const std::string& alias) { return lower(alias) == lower(name); });
}

const ModelInfo* Router::find_model(std::string_view name) const {
  // Ollama's clients append the tag that is meant where a name has none.
  constexpr std::string_view kTag = ":latest";
  const ModelInfo* found = model_called(name);
  if (found != nullptr || name.size() <= kTag.size() || !name.ends_with(kTag)) return found;
  return model_called(name.substr(0, name.size() - kTag.size()));
}

const ModelInfo* Router::model_called(std::string_view name) const {
  for (const ModelInfo& model : models_) {
    if (!model.retired && model.id == name) return &model;
  }
  for (const ModelInfo& model : models_) {
    if (!model.retired && (model.file_name == name || model.has_alias(name))) return &model;
  }
  const std::string wanted = lower(name);
  for (const ModelInfo& model : models_) {
    if (model.retired) continue;
    if (lower(model.id) == wanted || lower(model.file_name) == wanted || model.has_alias(wanted))
      return &model;
  }
  return nullptr;
}

Worker* Router::find_worker(std::string_view name) {
  for (auto& worker : workers_) {
    if (worker->name() == name) return worker.get();
  }
  return nullptr;
}

Spare* Router::find_spare(std::string_view name) {
  for (auto& worker : workers_) {
    if (Spare* spare = worker->pool().find(name)) return spare;
  }
  return nullptr;
}

const ModelInfo& Router::serving(const ModelInfo& model) const {
  const auto serves = [](const ModelInfo& entry) {
    return std::ranges::any_of(entry.workers,
                               [](const Worker* w) { return w->state() == WorkerState::kReady; });
  };
  if (serves(model)) return model;
  const auto index = static_cast<std::size_t>(&model - models_.data());
  const auto predecessor = std::ranges::find_if(models_, [&](const ModelInfo& other) {
    return other.retired && other.successor == index && serves(other);
  });
  return predecessor == models_.end() ? model : *predecessor;
}

bool Router::ready() const {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].retired || models_[i].on_demand) continue;
    const ModelInfo& entry = serving(models_[i]);
    if (std::ranges::none_of(entry.workers,
                             [](const Worker* w) { return w->state() == WorkerState::kReady; }))
      return false;
  }
  return true;
}

bool Router::will_serve(const ModelInfo& model) const {
  const auto index = static_cast<std::size_t>(&model - models_.data());
  const bool gets_more = std::ranges::any_of(models_, [index](const ModelInfo& other) {
    return other.retired && other.successor == index && !other.workers.empty();
  });
  return (gets_more && model.workers.empty()) ||
         std::ranges::any_of(model.workers, [](const Worker* worker) {
           // A drained worker comes back only for the requests that it had.
           if (worker->drains_again() && !worker->returning()) return false;
           const WorkerState state = worker->state();
           return state == WorkerState::kStarting || state == WorkerState::kLoading ||
                  state == WorkerState::kReady || state == WorkerState::kRestarting ||
                  state == WorkerState::kDraining || state == WorkerState::kUnloaded ||
                  worker->returning() || worker->unloading();
         });
}

bool Router::drained(const ModelInfo& model) const {
  return !will_serve(model) && model.ever_served && given_up(model).empty();
}

std::string Router::given_up(const ModelInfo& model) const {
  if (will_serve(model)) return "";
  for (const Worker* worker : model.workers) {
    if (worker->state() != WorkerState::kFailed) continue;
    return fmt::format(
        "The model has no worker: {} has been given up ({}). `bulkhead workers restart {}` tries "
        "again.",
        worker->name(), worker->last_death(), worker->name());
  }
  return "";
}

}  // namespace bulkhead::orchestrator
