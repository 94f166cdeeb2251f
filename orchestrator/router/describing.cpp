// Learns what the files of models hold that are not loaded, one file after the other, so that lists can show it. Each
// file is read once. A thread waits for the process that reads it.
#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "config/base/cache_home.hpp"
#include "config/base/log.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/worker_users.hpp"
#include "config/config.hpp"
#include "orchestrator/router/router.hpp"
#include "orchestrator/supervisor/file_report.hpp"

namespace bulkhead::orchestrator {

namespace {

struct FileLook {
  std::string program;
  std::vector<std::string> arguments;
  std::string id, mark;
  Result<ipc::Ready> report = Error(ErrorCode::kUnavailable, "there was no memory");
};

}  // namespace

const ipc::Ready* ModelInfo::known() const {
  const ipc::Ready* const own = reported();
  return own != nullptr ? own : described.get();
}

std::vector<std::string> Router::describing_arguments(const config::ModelSettings& model) const {
  std::vector<std::string> arguments = {"--model", model.path.empty() ? "builtin" : model.path};
  if (model.context != 0)
    arguments.insert(arguments.end(), {"--context", std::to_string(model.context)});
  if (!model.chat_template.empty())
    arguments.insert(arguments.end(), {"--chat-template", model.chat_template});
  if (settings_.isolation.sandbox == config::SandboxMode::kOn &&
      settings_.isolation.worker_user != config::WorkerUserMode::kOff) {
    const auto user = worker_user(cache_home() + "/describing");
    arguments.insert(arguments.end(),
                     {"--user", user.has_value() ? std::to_string(*user) : worker_users_gap()});
  }
  for (const std::string& assignment : config::worker_assignments(settings_))
    arguments.insert(arguments.end(), {"--set", assignment});
  return arguments;
}

void Router::describe_next() {
  if (describing_ || stopping_) return;
  const auto next = std::ranges::find_if(models_, [](const ModelInfo& model) {
    return !model.retired && !model.loaded && !model.looked_into && model.known() == nullptr;
  });
  if (next == models_.end()) return;
  next->looked_into = true;
  auto look = std::make_shared<FileLook>();
  look->program = worker_program_;
  look->arguments = describing_arguments(next->settings);
  look->id = next->id;
  look->mark = next->file_mark;
  const auto run = [this, looks = looks_, look] {
    try {
      look->report = report_of_file(look->program, look->arguments);
    } catch (const std::exception&) {  // there is no memory
    }
    looks->put([this, look] {
      describing_ = false;
      take_description(look->id, look->mark, look->report);
      describe_next();
    });
  };
  try {
    describing_ = true;
    quiet_thread(run).detach();
  } catch (const std::exception&) {  // the lists show less of this model
    describing_ = false;
  }
}

void Router::take_description(const std::string& id, const std::string& mark,
                              const Result<ipc::Ready>& report) {
  for (ModelInfo& model : models_) {
    // A reload may have put an entry with other settings in the model's place; its file is looked into next.
    if (model.retired || !model.looked_into || model.id != id || model.file_mark != mark) continue;
    if (report.ok())
      model.described = std::make_shared<const ipc::Ready>(*report);
    else if (report.error().code() == ErrorCode::kInvalidArgument)
      spdlog::warn("model {}: can't be served: {}", model.id, report.error().message());
    else
      spdlog::debug("model {}: what its file holds is not known: {}", model.id,
                    report.error().message());
  }
}

}  // namespace bulkhead::orchestrator
