#include "config/reload.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "config/settings_table.hpp"

namespace bulkhead::config {

namespace {

Reload reload_of(std::string_view key) {
  // The socket is bound, the journal open, the rings made: none of these changes its shape.
  static constexpr std::array<std::string_view, 8> kRestart = {
      "server.host",  "server.port", "ipc.transport", "ipc.region",
      "ipc.ring_kib", "ipc.spin_us", "log.format",    "isolation.journal_path"};
  // Workers read these once, when they start.
  static constexpr std::array<std::string_view, 5> kWorkers = {
      "gpu_optimizations.", "engine.", "ipc.flush_", "isolation.vault", "isolation.sandbox"};
  if (std::ranges::find(kRestart, key) != kRestart.end()) return Reload::kRestart;
  const bool workers = std::ranges::any_of(
      kWorkers, [key](std::string_view beginning) { return key.starts_with(beginning); });
  return workers ? Reload::kWorkers : Reload::kNow;
}

}  // namespace

std::vector<Change> changes(const Settings& before, const Settings& after) {
  std::vector<Change> all;
  for (const Setting& setting : settings_table()) {
    if (text_of(setting, before) != text_of(setting, after))
      all.push_back({setting.key, reload_of(setting.key)});
  }
  return all;
}

Settings reloaded(const Settings& before, const Settings& after) {
  Settings merged = after;
  for (const Setting& setting : settings_table()) {
    if (reload_of(setting.key) != Reload::kRestart) continue;
    // A value's own text is always good for it.
    (void)store(setting, merged, {{text_of(setting, before)}, false});
  }
  return merged;
}

}  // namespace bulkhead::config
