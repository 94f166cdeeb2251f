// Talks to a service manager such as systemd. Reports (sd_notify(3)) that the daemon serves, that the daemon ends,
// and, as long as the event loop runs, that the daemon is alive; NOTIFY_SOCKET names the manager's socket and
// WATCHDOG_USEC says how long a silence may be. Takes the listening socket that the manager hands over
// (sd_listen_fds(3)): LISTEN_FDS says how many descriptors it passed, LISTEN_PID to which process. Does nothing if the
// environment has none of these variables. One thread; a message that can't be sent at once is dropped.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "orchestrator/event_loop.hpp"

namespace bulkhead::orchestrator {

class ServiceManager {
 public:
  // Removes these variables from the environment, because they are not meant for workers.
  explicit ServiceManager(EventLoop& loop);

  // `status` is a line for people who look at the service. The watchdog gets messages from the first call on.
  void ready(const std::string& status);
  void ending(const std::string& status);

  // The descriptors that the manager passed to this process, in its order. They belong to the caller from then on; a
  // second call returns none.
  std::vector<UniqueFd> take_descriptors() { return std::move(passed_); }

 private:
  void send(std::string_view message);
  void feed_watchdog();

  std::vector<UniqueFd> passed_;
  Timer timer_;
  UniqueFd socket_;
  std::string address_;                    // empty: no service manager asks for notifications
  std::chrono::microseconds interval_{0};  // between the watchdog's messages; 0: none are wanted
};

}  // namespace bulkhead::orchestrator
