// Facts about files that the start of a worker's process needs. A thread examines the files, because that may hang
// for ever on a network mount that hangs. The start then waits, but the event loop does not.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace bulkhead::orchestrator {

// What identifies the model file and the chat template (file_mark.hpp).
struct StartFiles {
  std::string file_mark, template_mark;
};

// The examination of the files for one start. For the event loop's thread.
class StartFilesLook {
 public:
  struct Paths {
    std::string model, chat_template, program;
    bool operator==(const Paths&) const = default;
  };

  // Returns whether a start is waiting for its look. A start that has not called passed() for a second
  // counts as given up.
  bool begun() const;
  // Begins the look, unless it has begun with these paths. Returns true once it has ended; take() then returns its
  // result. After false, ask again after CacheFolder::kAskAgain. `worker` is for the log, which mentions once that a
  // look takes long.
  bool passed(const Paths& paths, const std::string& worker);
  StartFiles take();
  void forget() { look_.reset(); }

 private:
  struct Look;
  std::shared_ptr<Look> look_;
  std::chrono::steady_clock::time_point began_{}, asked_{};
  bool told_ = false;  // the log has said that it takes long
};

}  // namespace bulkhead::orchestrator
