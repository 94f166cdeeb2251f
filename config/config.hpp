// Reads Settings from the defaults, a YAML file and --set, in that order, and then checks them as a whole. Not
// thread-safe; the daemon reads settings at its start, and again on SIGHUP (reload.hpp).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::config {

// Something that is allowed but may not do what the user expects (such as a key whose feature this version lacks).
struct Notice {
  std::string where;  // "config/runtime.yaml:12" or "--set"
  std::string message;
};

struct Loaded {
  Settings settings;
  std::vector<Notice> notices;
  std::vector<std::string> given;  // keys that the file or an assignment sets
  // Reasons why SIGHUP must not load this file although a start would: the file looks truncated, or as if it were
  // being written.
  std::vector<Notice> unfit_for_reload;
};

struct Sources {
  std::string file;                      // empty: none
  std::vector<std::string> assignments;  // "key.with.dots=value", applied after the file in order
  bool key_given =
      false;  // the API key comes from the environment: no notice says that it is missing
};

// Loads and validates the settings. Errors name the file and line (or the assignment), the key, what was wrong, and
// the nearest known key. In --set, models[] is written models.0.path=FILE.
Result<Loaded> load(const Sources& sources);

// Applies one "key=value" to the settings without the checks between keys that load() makes.
Status assign(Settings& settings, std::string_view assignment);

// Returns the key of the setting that a command line calls `name`, by its last part or as a whole: "port" gives
// server.port, "max-queue" gives server.max_queue, "log-level" gives log.level. Returns an empty text if no setting or
// several settings match.
std::string key_meant_by(std::string_view name);

// The assignments that the daemon passes to a worker. They turn default Settings into these, in table order, for the
// settings whose row says that a worker reads them. The API key is not among them.
std::vector<std::string> worker_assignments(const Settings& settings);

// Returns the text of config/runtime.yaml: each key with its default and one line of help.
std::string reference_yaml();

// Returns the settings as YAML, without help, for a reader who may not see keys. It writes "(hidden)" for an API key,
// and of each entry in server.keys only the name and the limits.
std::string settings_yaml(const Settings& settings);

}  // namespace bulkhead::config
