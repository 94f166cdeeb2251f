// Learns what the files of models hold that are not loaded, one file after the other, so that lists can show it. Each
// file is read once. A thread waits for the process that reads it.
#include <algorithm>
#include <cstdint>
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
#include "orchestrator/supervisor/program_output.hpp"

namespace bulkhead::orchestrator {

namespace {

// A process that reads a file on a network mount that hangs may not end even when it is killed. While there are this
// many, no other file is looked into.
constexpr std::uint32_t kMostHeldLooks = 2;

struct FileLook {
  std::string program;
  std::vector<std::string> arguments;
  std::string id, mark;
  Result<ipc::Ready> report = Error(ErrorCode::kUnavailable, "there was no memory");
  pid_t left_behind = 0;
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
  if (describing_ || stopping_ || held_looks_ >= kMostHeldLooks) return;
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
      look->report = report_of_file(look->program, look->arguments, &look->left_behind);
    } catch (const std::exception&) {  // there is no memory
    }
    looks->put([this, look] {
      describing_ = false;
      take_description(look->id, look->mark, look->report);
      if (look->left_behind != 0) note_held_look(look->id);
      describe_next();
    });
    if (look->left_behind == 0) return;
    wait_for_end(look->left_behind);
    looks->put([this] {
      --held_looks_;
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

void Router::note_held_look(const std::string& id) {
  if (++held_looks_ < kMostHeldLooks) return;
  spdlog::warn(
      "model {}: the process that reads its file does not end, though it was killed; it may be on "
      "a network mount that hangs; there are {} such processes, so no other file is read for the "
      "lists of models until one of them ends",
      id, held_looks_);
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
