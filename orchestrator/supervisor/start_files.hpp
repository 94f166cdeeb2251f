// What the start of a worker's process must know of files. A thread looks at them: on a network mount that hangs a
// look may take for ever. The start waits for it then, and the event loop does not.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace bulkhead::orchestrator {

// What stands for the model file and the chat template (file_mark.hpp).
struct StartFiles {
  std::string file_mark, template_mark;
};

// The look at the files of one start. For the event loop's thread.
class StartFilesLook {
 public:
  struct Paths {
    std::string model, chat_template, program;
    bool operator==(const Paths&) const = default;
  };

  // Says whether a start is waiting for its look. A start that has not asked for a second was given up.
  bool begun() const;
  // Begins the look, unless it has begun at these paths. Returns true once it has ended; take() then returns what it
  // found. After false, ask again after CacheFolder::kAskAgain. `worker` is for the log, which tells once of a look
  // that takes long.
  bool passed(const Paths& paths, const std::string& worker);
  StartFiles take();
  void forget() { look_.reset(); }

 private:
  struct Look;
  std::shared_ptr<Look> look_;
  std::chrono::steady_clock::time_point began_{}, asked_{};
  bool told_ = false;  // that it takes long
};

}  // namespace bulkhead::orchestrator
