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

// Keys whose values differ, models[] aside, in table order.
std::vector<Change> changes(const Settings& before, const Settings& after);

// `after`, but with the values of `before` where only a restart would change them.
Settings reloaded(const Settings& before, const Settings& after);

// Whether the workers of a model that is configured anew must be replaced.
bool needs_new_workers(const ModelSettings& before, const ModelSettings& after);

}  // namespace bulkhead::config
