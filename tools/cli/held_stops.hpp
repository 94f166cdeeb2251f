// Ctrl-Z while a command has changed the terminal's modes: the command restores them before it stops, and changes them
// again when the user lets it go on.
#pragma once

#include <signal.h>

namespace bulkhead::cli {

// While this object lives, SIGTSTP arrives only at a wait with the mask before(), such as that of ppoll(). It does not
// stop the process then; asked() returns true. Use it in a program's only thread, and one at a time.
class HeldStops {
 public:
  HeldStops();
  ~HeldStops();
  HeldStops(const HeldStops&) = delete;
  HeldStops& operator=(const HeldStops&) = delete;

  const sigset_t* before() const { return &mask_before_; }
  // Returns whether the user has asked for a stop since the last call.
  static bool asked();
  // Stops the process. Returns when the user lets it go on.
  void stop() const;

 private:
  void hold() const;

  sigset_t mask_before_{};
  struct sigaction action_before_ {};
};

}  // namespace bulkhead::cli
