// Adds a file that came to server.models_folder after the daemon had read the folder: it becomes a model when a
// client asks to load it. Tries a failed model again whose file has changed since, such as one that was being copied.
// A thread looks at the file, since that may take for ever when the folder is on a network mount that hangs.
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/model_name.hpp"
#include "orchestrator/router/models_folder.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kMostLooks = 8;  // looks that have not ended
// A file that has changed is taken to be complete when it then stays the same for this time.
constexpr std::chrono::seconds kUnchanged{1};

}  // namespace

Router::~Router() {
  looks_->close();
}

void Router::add_from_folder(const std::string& name,
                             std::function<void(Result<std::size_t>)> done) {
  const std::string folder = settings_.server.models_folder;
  const Result<std::string> file = file_in_folder(folder, name);
  if (!file.ok()) return done(file.error());
  if (looking_.size() >= kMostLooks) {
    return done(Error(ErrorCode::kUnavailable,
                      fmt::format("{} earlier looks into {} have not ended.", kMostLooks, folder)));
  }
  const std::uint64_t number = ++last_look_;
  struct Look {
    std::string name, folder, file;
    std::optional<std::string> mark = std::nullopt;  // empty: there is no such file
  };
  auto run = [this, number, looks = looks_, look = std::make_shared<Look>(name, folder, *file)] {
    try {
      std::error_code error;
      look->mark =
          std::filesystem::is_regular_file(look->file, error) ? file_mark_of(look->file) : "";
    } catch (const std::exception&) {  // there is no memory
    }
    looks->put([this, number, look] {
      const auto told = std::move(looking_.extract(number).mapped());
      if (!look->mark.has_value()) {
        return told(Error(ErrorCode::kUnavailable,
                          fmt::format("There was no memory to look at {} with.", look->file)));
      }
      told(look->mark->empty() || stopping_
               ? Error(ErrorCode::kNotFound,
                       fmt::format("The model '{}' does not exist; {} is no file.", look->name,
                                   look->file))
               : Result<std::size_t>(add_file(look->folder, look->file, *look->mark)));
    });
  };
  looking_[number] = std::move(done);
  try {
    quiet_thread(std::move(run)).detach();
  } catch (const std::exception& error) {
    const auto told = std::move(looking_.extract(number).mapped());
    told(Error(ErrorCode::kUnavailable,
               fmt::format("There is no thread to look at {} with: {}.", *file, error.what())));
  }
}

std::size_t Router::add_file(const std::string& folder, const std::string& file,
                             const std::string& mark) {
  // The same names are taken as in add_models_of_folder(): the next SIGHUP must not give the model another name.
  std::set<std::string> names;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const ModelInfo& model = models_[i];
    if (model.retired) continue;
    const std::filesystem::path path = model.settings.path;
    if (path.lexically_normal() == file) return i;
    names.insert({model.id, config::name_of(model.settings)});
    names.insert(model.settings.aliases.begin(), model.settings.aliases.end());
  }
  const std::size_t added = add_model(model_of_file(folder, file, names), {mark, "", ""});
  models_[added].on_demand = true;
  resize(added);
  spdlog::info("model {}: added, from {}", models_[added].id, file);
  describe_next();
  return added;
}

// Checks whether the failed model's file has changed since the last check.
void Router::look_again(const ModelInfo& failed) {
  const std::string& path = failed.settings.path;
  if (looking_again_.size() >= kMostLooks || !looking_again_.insert(path).second) return;
  struct Look {
    config::ModelSettings settings;
    std::string mark = "-";  // of a file that is there and whole
  };
  try {
    auto run = [this, looks = looks_, look = std::make_shared<Look>(failed.settings)] {
      try {
        std::string before = mark_of(look->settings);
        std::this_thread::sleep_for(kUnchanged);
        if (mark_of(look->settings) == before) look->mark = std::move(before);
      } catch (const std::exception&) {  // there is no memory; the next request tries again
      }
      looks->put([this, look] {
        looking_again_.erase(look->settings.path);
        if (look->mark != "-" && !stopping_) try_changed(look->settings.path, look->mark);
      });
    };
    quiet_thread(std::move(run)).detach();
  } catch (const std::exception&) {
    looking_again_.erase(path);  // the next request tries again
  }
}

void Router::try_changed(const std::string& path, const std::string& mark) {
  for (ModelInfo& model : models_) {
    if (model.retired || model.settings.path != path || model.file_mark == mark) continue;
    if (given_up(model).empty()) continue;
    spdlog::info("model {}: is tried again, because its file has changed", model.id);
    model.file_mark = mark;
    model.count_file_bytes();
    for (Worker* worker : model.workers) {
      if (worker->state() == WorkerState::kFailed) restart(*worker, Worker::Start::kWarm);
    }
  }
}

}  // namespace bulkhead::orchestrator
