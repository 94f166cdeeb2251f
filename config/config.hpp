// Where Settings come from: defaults, a YAML file, --set, in that order, checked as a whole at the
// end. Not thread-safe; settings are read at start, and again on SIGHUP (reload.hpp).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::config {

// Something that is allowed but will not do what its reader may expect (a key whose feature this
// version lacks).
struct Notice {
  std::string where;  // "config/runtime.yaml:12" or "--set"
  std::string message;
};

struct Loaded {
  Settings settings;
  std::vector<Notice> notices;
  std::vector<std::string> given;  // keys that the file or an assignment sets
  // Why a daemon that runs does not take the file by SIGHUP, though one that starts would: it looks as
  // if it were cut off, or being written.
  std::vector<Notice> unfit_for_reload;
};

struct Sources {
  std::string file;                      // empty: none
  std::vector<std::string> assignments;  // "key.with.dots=value", applied after the file in order
};

// Loads and validates. Errors name the file and line (or the assignment), the key, what was wrong
// and the nearest known key. models[] in --set is written models.0.path=FILE.
Result<Loaded> load(const Sources& sources);

// Applies one "key=value" to settings without the cross-checks of load().
Status assign(Settings& settings, std::string_view assignment);

// The setting whose key's last part is `name` ("port", "max-queue": server.port, server.max_queue);
// empty: there is none, or there are several.
std::string key_ending_in(std::string_view name);

// What the daemon hands a worker: the assignments that turn default Settings into these, in table
// order, of the settings whose row says that a worker reads them. The API key is none of them.
std::vector<std::string> worker_assignments(const Settings& settings);

// The text of config/runtime.yaml: each key with its default and one line on it.
std::string reference_yaml();

// Returns the settings as YAML, without help, for a reader who may not see keys. It writes "(hidden)" for an API key,
// and of each entry in server.keys only the name and the limits.
std::string settings_yaml(const Settings& settings);

}  // namespace bulkhead::config
