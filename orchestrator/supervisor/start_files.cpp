#include "orchestrator/supervisor/start_files.hpp"

#include <atomic>
#include <utility>

#include "config/base/log.hpp"
#include "orchestrator/supervisor/file_mark.hpp"
#include "orchestrator/supervisor/task_thread.hpp"
#include "orchestrator/supervisor/worker_program.hpp"

namespace bulkhead::orchestrator {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLong{5};
constexpr std::chrono::seconds kGivenUp{1};

}  // namespace

struct StartFilesLook::Look {
  Paths paths;
  StartFiles found;
  std::atomic<bool> done = false;  // once true, the event loop may read `found`
  // Each look has its own thread, so that a look that hangs delays no later look.
  std::shared_ptr<TaskThread> thread = std::make_shared<TaskThread>();
};

bool StartFilesLook::begun() const {
  return look_ != nullptr && Clock::now() - asked_ < kGivenUp;
}

bool StartFilesLook::passed(const Paths& paths, const std::string& worker) {
  const auto now = Clock::now();
  if (!begun() || look_->paths != paths) {
    look_ = std::make_shared<Look>();
    look_->paths = paths;
    began_ = now;
    told_ = false;
    look_->thread->add([look = look_] {
      try {
        look->found = {file_mark_of(look->paths.model),
                       template_mark_of(look->paths.chat_template)};
        look_at_program(look->paths.program);
      } catch (const std::exception&) {  // without memory, the file counts as not found
        look->found = {"-", ""};
      }
      look->done = true;
    });
  }
  asked_ = now;
  look_->thread->go_on();
  if (look_->done) return true;
  if (!told_ && now - began_ >= kLong) {
    told_ = true;
    spdlog::warn(
        "worker {}: not started yet: looking at {} takes long; it may be on a network mount that "
        "hangs",
        worker, paths.model);
  }
  return false;
}

StartFiles StartFilesLook::take() {
  return std::move(std::exchange(look_, nullptr)->found);
}

}  // namespace bulkhead::orchestrator
