// Signals that stop or end a process, such as Ctrl-Z's, while a command has changed the terminal's modes: the command
// restores them first, and changes them again when the user lets it go on.
#pragma once

#include <signal.h>

#include <initializer_list>
#include <map>

namespace bulkhead::cli {

// While this object lives, the signals arrive only at a wait with the mask before(), such as that of ppoll(). They do
// nothing then but make arrived() return true. Use it in a program's only thread, and one at a time.
class HeldStops {
 public:
  explicit HeldStops(std::initializer_list<int> signals);
  ~HeldStops();
  HeldStops(const HeldStops&) = delete;
  HeldStops& operator=(const HeldStops&) = delete;

  const sigset_t* before() const { return &mask_before_; }
  // Returns whether a signal has arrived since the last call of obey().
  static bool arrived();
  // Lets the signal do what it would have done: ends the process, or stops it and returns when the user lets it go on.
  void obey() const;

 private:
  void hold(int number) const;

  sigset_t mask_before_{};
  std::map<int, struct sigaction> actions_before_;
};

}  // namespace bulkhead::cli
