// What a running daemon can do about changed settings.
#pragma once

#include <string>
#include <vector>

#include "config/settings.hpp"

namespace bulkhead::config {

enum class Reload {
  kNow,      // at once
  kWorkers,  // by replacing the workers
  kRestart,  // when the daemon is started again
};

struct Change {
  std::string key;
  Reload reload = Reload::kNow;
};

// The keys whose values differ, in table order. models[] is left out.
std::vector<Change> changes(const Settings& before, const Settings& after);

// Returns `after` with the values of `before` for the settings that only a restart can change.
Settings reloaded(const Settings& before, const Settings& after);

// The keys of a model's settings whose values differ, in table order.
std::vector<Change> changes(const ModelSettings& before, const ModelSettings& after);

// Returns whether a model's changed settings require new workers.
bool needs_new_workers(const ModelSettings& before, const ModelSettings& after);

}  // namespace bulkhead::config
