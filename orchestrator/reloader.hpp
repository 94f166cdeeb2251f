// SIGHUP: reads the settings again and does what a running daemon can do about what changed.
//
// The reading is a thread's: a settings file may be a FIFO that nobody writes, or lie on a network
// mount that hangs, and so may the models. Nothing changes until it is read, and a later SIGHUP reads
// it anew. What is read is refused as a whole, with its reason in the log, where it is wrong, looks cut
// off, or would take away what nobody asked to take away: every model, or the API key.
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
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// Loads the settings as the daemon uses them, with the key of the environment. Returns an error if other machines
// could reach a daemon without a key. If a model is to be on all devices, a process of `worker_program` lists them.
Result<config::Loaded> load_settings(const config::Sources& sources,
                                     const std::string& worker_program);

class Reloader {
 public:
  // All must outlive it. `settings`: as they are in effect.
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

  // Returns at once; what comes of it is in the log.
  void reload();

 private:
  struct Reading;
  struct Mailbox;
  void read(const std::shared_ptr<Reading>& reading);
  void take(std::uint64_t number, Reading& reading);
  void put_into_effect(config::Settings next, const Reading& reading);

  Parts parts_;
  std::shared_ptr<Mailbox> mailbox_;  // where the threads leave what they have read
  Timer patience_;
  std::uint64_t number_ = 0;  // of the last SIGHUP
  std::uint64_t hanging_ = 0;
};

// Why a running daemon with `before` would not take what was loaded; empty: it would.
std::string reload_refusal(const config::Settings& before, const config::Loaded& loaded);

}  // namespace bulkhead::orchestrator
