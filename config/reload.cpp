#include "config/reload.hpp"

#include <algorithm>

#include "config/settings_table.hpp"

namespace bulkhead::config {

namespace {

template <typename Table, typename Values>
std::vector<Change> changes_in(const Table& table, const Values& before, const Values& after) {
  std::vector<Change> all;
  for (const auto& setting : table) {
    if (text_of(setting, before) != text_of(setting, after))
      all.push_back({setting.key, setting.reload});
  }
  return all;
}

}  // namespace

std::vector<Change> changes(const Settings& before, const Settings& after) {
  return changes_in(settings_table(), before, after);
}

std::vector<Change> changes(const ModelSettings& before, const ModelSettings& after) {
  return changes_in(model_settings_table(), before, after);
}

Settings reloaded(const Settings& before, const Settings& after) {
  Settings merged = after;
  for (const Setting& setting : settings_table()) {
    if (setting.reload != Reload::kRestart) continue;
    // A value's own text form is always valid for its field.
    (void)store(setting, merged, {{text_of(setting, before)}, false});
  }
  return merged;
}

bool needs_new_workers(const ModelSettings& before, const ModelSettings& after) {
  return std::ranges::any_of(changes(before, after), [](const Change& change) {
    return change.reload == Reload::kWorkers;
  });
}

}  // namespace bulkhead::config
