#include "orchestrator/reloader.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "config/access_key.hpp"
#include "config/base/log.hpp"
#include "config/base/loopback.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/text.hpp"
#include "config/reload.hpp"
#include "orchestrator/router/models_folder.hpp"
#include "orchestrator/supervisor/device_list.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::chrono::seconds kPatience{5};  // after this the log says that the reading takes long
constexpr std::uint64_t kMostHanging = 8;     // threads whose reading does not end

void refused(const std::string& why) {
  spdlog::error("reload refused, everything stays as it is: {}", why);
}

void tell(const char* what, const std::vector<std::string>& names) {
  if (!names.empty()) spdlog::info("reload: {}: {}", what, joined(names));
}

bool is_given(const config::Loaded& loaded, const char* key) {
  return std::ranges::find(loaded.given, key) != loaded.given.end();
}

}  // namespace

// What a thread reads after one SIGHUP.
struct Reloader::Reading {
  config::Sources sources;
  std::string worker_program;
  std::optional<Result<config::Loaded>> loaded;  // none: there was no memory
  ModelFiles files;
};

Result<config::Loaded> load_settings(const config::Sources& sources,
                                     const std::string& worker_program) {
  const char* key = std::getenv("BULKHEAD_API_KEY");
  config::Sources all = sources;
  all.key_given = key != nullptr && *key != '\0';
  BULKHEAD_TRY(config::Loaded loaded, config::load(all));
  config::ServerSettings& server = loaded.settings.server;
  if (all.key_given) {
    server.api_key = key;
    if (const std::string why = config::why_never_sent(key); !why.empty())
      return Error(ErrorCode::kInvalidArgument, "BULKHEAD_API_KEY " + why + ".");
  }
  if (!is_loopback(server.host) && server.api_key.empty()) {
    return Error(
        ErrorCode::kInvalidArgument,
        "server.host is " + server.host +
            ", which other machines can reach, and there is no API key. Set server.api_key or "
            "BULKHEAD_API_KEY, or listen on 127.0.0.1.");
  }
  // The check of the settings knew only the file's api_key, so it could not compare these keys with
  // the environment's.
  for (const std::string& text : server.keys) {
    BULKHEAD_TRY(const config::AccessKey client, config::parse_access_key(text));
    if (client.key != server.api_key) continue;
    return Error(ErrorCode::kInvalidArgument,
                 "server.keys gives " + client.name + " the key that is in BULKHEAD_API_KEY.");
  }
  if (!server.keys.empty() && server.api_key.empty()) {
    return Error(
        ErrorCode::kInvalidArgument,
        "server.keys are clients' keys, and there is no key for the server's operators. Set "
        "server.api_key or BULKHEAD_API_KEY.");
  }
  BULKHEAD_RETURN_IF_ERROR(add_models_of_folder(loaded));
  BULKHEAD_RETURN_IF_ERROR(resolve_all_devices(loaded.settings, worker_program));
  if (const Status found = number_devices(loaded.settings, worker_program); !found.ok())
    loaded.notices.push_back({"server.device_memory_mb", found.error().message()});
  return loaded;
}

std::string reload_refusal(const config::Settings& before, const config::Loaded& loaded) {
  if (!loaded.unfit_for_reload.empty()) {
    const config::Notice& first = loaded.unfit_for_reload.front();
    return first.where + ": " + first.message;
  }
  const config::Settings& after = loaded.settings;
  if (!before.models.empty() && after.models.empty()) {
    return fmt::format(
        "it names no models, and {} are served; to serve the built-in one alone write `models: "
        "[{{path: builtin}}]`",
        before.models.size());
  }
  if (!before.server.api_key.empty() && after.server.api_key.empty() &&
      !is_given(loaded, "server.api_key")) {
    return "it has no server.api_key, and clients need one now; to serve without a key write "
           "`api_key: \"\"`";
  }
  return "";
}

Reloader::Reloader(Parts parts)
    : parts_(parts), mailbox_(std::make_shared<Mailbox>(parts.loop)), patience_(parts.loop) {}

Reloader::~Reloader() {
  mailbox_->close();
}

void Reloader::reload() {
  spdlog::info("SIGHUP: reading the settings again");
  if (parts_.router.draining()) return refused("the daemon is ending");
  if (!parts_.router.was_ready()) return refused("its models are still loading");
  if (hanging_ >= kMostHanging) {
    return refused(
        fmt::format("{} earlier readings of {} have not ended", hanging_, parts_.sources.file));
  }
  auto reading = std::make_shared<Reading>();
  reading->sources = parts_.sources;
  reading->worker_program = parts_.worker_program;
  read(reading);
}

void Reloader::read(const std::shared_ptr<Reading>& reading) {
  const std::uint64_t number = ++number_;
  ++hanging_;
  patience_.start(kPatience, [this] {
    spdlog::warn(
        "reload: {} is not read yet, after {} s; nothing changes until it is. Another SIGHUP reads "
        "it anew",
        parts_.sources.file, kPatience.count());
  });
  auto run = [this, number, reading, mailbox = mailbox_] {
    try {
      reading->loaded = load_settings(reading->sources, reading->worker_program);
      if (reading->loaded->ok()) reading->files = look_at_models((*reading->loaded)->settings);
    } catch (const std::exception&) {  // there is no memory
      reading->loaded.reset();
    }
    mailbox->put([this, number, reading] { take(number, *reading); });
  };
  try {
    quiet_thread(std::move(run)).detach();
  } catch (const std::exception& error) {
    --hanging_;
    patience_.cancel();
    refused(std::string("no thread to read the settings with: ") + error.what());
  }
}

void Reloader::take(std::uint64_t number, Reading& reading) {
  parts_.loop.doing("taking over new settings");
  --hanging_;
  if (number != number_) return;  // a later SIGHUP has started another reading
  patience_.cancel();
  if (!reading.loaded.has_value()) return refused("there was no memory to read the settings with");
  const Result<config::Loaded>& loaded = *reading.loaded;
  if (!loaded.ok()) return refused(loaded.error().message());
  if (parts_.router.draining()) return refused("the daemon is ending");
  for (const config::Notice& notice : loaded->notices)
    spdlog::warn("{}: {}", notice.where, notice.message);
  if (const std::string why = reload_refusal(parts_.settings, *loaded); !why.empty())
    return refused(why);
  config::Settings next = config::reloaded(parts_.settings, loaded->settings);
  if (!is_loopback(next.server.host) && next.server.api_key.empty())
    return refused("the daemon listens on " + next.server.host + ", so it needs an API key");
  put_into_effect(std::move(next), reading);
}

void Reloader::put_into_effect(config::Settings next, const Reading& reading) {
  std::vector<std::string> at_once, by_workers, after_restart;
  for (const config::Change& change :
       config::changes(parts_.settings, (*reading.loaded)->settings)) {
    (change.reload == config::Reload::kNow       ? at_once
     : change.reload == config::Reload::kWorkers ? by_workers
                                                 : after_restart)
        .push_back(change.key);
  }
  Result<ReloadReport> models = parts_.router.reload(next, !by_workers.empty(), reading.files);
  if (!models.ok()) return refused(models.error().message());

  config::Settings& settings = parts_.settings;
  settings = std::move(next);
  log::set_level(settings.log.level);
  parts_.server.set_limits(std::size_t{settings.server.max_body_mb} << 20,
                           std::size_t{settings.server.max_memory_mb} << 20);
  parts_.api.configure(settings.server);
  parts_.streams.configure(ResumableStreams::options_of(settings));
  at_once.insert(at_once.end(), models->changed.begin(), models->changed.end());
  tell("in effect now", at_once);
  tell("in effect with new workers, which are started", by_workers);
  tell("models added", models->added);
  tell("models removed, each ends with its last request", models->removed);
  tell("models whose workers are replaced", models->replaced);
  tell("models with another number of workers", models->resized);
  if (!after_restart.empty()) {
    spdlog::warn("reload: only in effect when the daemon is started again: {}",
                 joined(after_restart));
  }
  if (at_once.empty() && by_workers.empty() && after_restart.empty() && models->added.empty() &&
      models->removed.empty() && models->replaced.empty() && models->resized.empty())
    spdlog::info("reload: nothing has changed");
}

}  // namespace bulkhead::orchestrator
