#include "tools/cli/held_stops.hpp"

#include <atomic>

namespace bulkhead::cli {

namespace {

std::atomic<bool> stop_asked{false};

sigset_t only_stops() {
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGTSTP);
  return stops;
}

}  // namespace

HeldStops::HeldStops() {
  const sigset_t stops = only_stops();
  ::sigprocmask(SIG_BLOCK, &stops, &mask_before_);
  ::sigaction(SIGTSTP, nullptr, &action_before_);
  hold();
}

HeldStops::~HeldStops() {
  ::sigaction(SIGTSTP, &action_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

void HeldStops::hold() const {
  // Who started this program may have made it ignore the signal.
  if (action_before_.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = true; };
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGTSTP, &action, nullptr);
}

bool HeldStops::asked() {
  return stop_asked.exchange(false);
}

void HeldStops::stop() const {
  const sigset_t stops = only_stops();
  ::sigaction(SIGTSTP, &action_before_, nullptr);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stops, nullptr);  // the process stops here
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
  hold();
}

}  // namespace bulkhead::cli
