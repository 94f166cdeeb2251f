// What a service manager such as systemd is told (sd_notify(3)): that the daemon serves, that it is ending,
// and, as long as the event loop runs, that it is alive. Does nothing where nobody asked for it: NOTIFY_SOCKET
// names the socket, WATCHDOG_USEC how long a silence may be. One thread; a message that can't be sent at
// once is dropped.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "config/base/unique_fd.hpp"
#include "orchestrator/event_loop.hpp"

namespace bulkhead::orchestrator {

class ServiceManager {
 public:
  // Takes both variables out of the environment: they are not meant for workers.
  explicit ServiceManager(EventLoop& loop);

  // `status`: a line for whoever looks at the service. From the first call on the watchdog is fed.
  void ready(const std::string& status);
  void ending(const std::string& status);

 private:
  void send(std::string_view message);
  void feed_watchdog();

  Timer timer_;
  UniqueFd socket_;
  std::string address_;                    // empty: there is nobody to tell
  std::chrono::microseconds interval_{0};  // of the watchdog's messages; 0: none are asked for
};

}  // namespace bulkhead::orchestrator
