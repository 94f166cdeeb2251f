#include "tools/cli/held_stops.hpp"

#include <atomic>

namespace bulkhead::cli {

namespace {

std::atomic<int> arrived_stop{0};  // the signal's number; 0: none

sigset_t only(int number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  return set;
}

}  // namespace

HeldStops::HeldStops(std::initializer_list<int> signals) {
  ::sigprocmask(SIG_BLOCK, nullptr, &mask_before_);
  for (const int number : signals) {
    const sigset_t blocked = only(number);
    ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
    ::sigaction(number, nullptr, &actions_before_[number]);
    hold(number);
  }
}

HeldStops::~HeldStops() {
  for (const auto& [number, action] : actions_before_)
    ::sigaction(number, &action, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

void HeldStops::hold(int number) const {
  // Who started this program may have made it ignore the signal.
  if (actions_before_.at(number).sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = [](int which) { arrived_stop = which; };
  sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

bool HeldStops::arrived() {
  return arrived_stop != 0;
}

void HeldStops::obey() const {
  const int number = arrived_stop.exchange(0);
  const sigset_t unblocked = only(number);
  ::sigaction(number, &actions_before_.at(number), nullptr);
  ::raise(number);
  ::sigprocmask(SIG_UNBLOCK, &unblocked, nullptr);  // the process stops or ends here
  ::sigprocmask(SIG_BLOCK, &unblocked, nullptr);
  hold(number);
}

}  // namespace bulkhead::cli
