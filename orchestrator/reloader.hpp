// SIGHUP: reads the settings again and applies the changes that a running daemon can apply.
//
// A separate thread reads them, because a settings file may be a FIFO that nobody writes, or be on a network mount
// that hangs, and so may the models. Nothing changes until they are read; another SIGHUP during that reads them
// again. The daemon refuses the settings as a whole, and logs the reason, if they are wrong, look truncated, or would
// silently remove every model or the API key.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/api.hpp"
#include "orchestrator/http/resumable.hpp"
#include "orchestrator/http/server.hpp"
#include "orchestrator/mailbox.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// Loads the settings as the daemon uses them, with the key from the environment. Returns an error if other machines
// could reach a daemon without a key. If a model is to be on all devices, a process of `worker_program` lists them.
Result<config::Loaded> load_settings(const config::Sources& sources,
                                     const std::string& worker_program);

class Reloader {
 public:
  // All must outlive the Reloader. `settings` are those in effect.
  struct Parts {
    EventLoop& loop;
    const config::Sources& sources;
    std::string worker_program;
    config::Settings& settings;
    Router& router;
    Server& server;
    Api& api;
    ResumableStreams& streams;
  };
  explicit Reloader(Parts parts);
  ~Reloader();

  // Returns at once; the log shows the result.
  void reload();

 private:
  struct Reading;
  void read(const std::shared_ptr<Reading>& reading);
  void take(std::uint64_t number, Reading& reading);
  void put_into_effect(config::Settings next, const Reading& reading);

  Parts parts_;
  std::shared_ptr<Mailbox> mailbox_;  // where the threads leave what they have read
  Timer patience_;
  std::uint64_t number_ = 0;  // of the last SIGHUP
  std::uint64_t hanging_ = 0;
};

// Returns why a running daemon with the settings `before` would refuse the loaded ones; empty: it would take them.
std::string reload_refusal(const config::Settings& before, const config::Loaded& loaded);

}  // namespace bulkhead::orchestrator
