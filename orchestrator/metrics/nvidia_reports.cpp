// The rules for what the process that watches NVIDIA's devices may say.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>

#include "ipc/device_watch.hpp"
#include "orchestrator/metrics/nvidia_watch.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kMostDevices = 64, kMostXids = 256;

std::optional<std::array<std::string_view, 4>> four_words(std::string_view line) {
  std::array<std::string_view, 4> words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t end = line.find(' ');
    if ((end == std::string_view::npos) != (i + 1 == words.size())) return std::nullopt;
    words[i] = line.substr(0, end);
    if (words[i].empty()) return std::nullopt;
    if (end != std::string_view::npos) line.remove_prefix(end + 1);
  }
  return words;
}

// Accepts digits only, so no sign, no infinity and no fraction. 2^53 is more than any figure here may be.
std::optional<double> number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > (1ULL << 53))
    return std::nullopt;
  return static_cast<double>(value);
}

bool is_address(std::string_view text) {
  return text.size() <= 32 && text.find_first_not_of("0123456789abcdef:.") == std::string::npos;
}

template <typename Words>
bool is_one_of(const Words& words, std::string_view word) {
  return std::ranges::find(words, word) != std::ranges::end(words);
}

}  // namespace

bool NvidiaReports::take(std::string_view line) {
  const auto words = line.size() <= ipc::kLongestWatchLine ? four_words(line) : std::nullopt;
  if (!words) return false;
  const std::string_view kind = (*words)[0], address = (*words)[1], word = (*words)[2],
                         text = (*words)[3];
  const std::optional<double> value = number_of(text);
  if (!value) return false;
  if (kind == "failed") {
    failure_ = word;
    std::ranges::replace(failure_, '~', ' ');
    return true;
  }
  if (kind == "end") {
    last_ = std::exchange(now_, {});
    ended_ = true;
    return true;
  }
  if (!is_address(address)) return false;
  const Key key{address, word};
  if (kind == "xid") {
    const bool known = xids_.contains(key);
    if (*value != 1 || !number_of(word) || word.size() > 4 || (!known && xids_.size() >= kMostXids))
      return false;
    ++xids_[key];
    return true;
  }
  const auto note = [&](std::map<Key, double>& figures, std::span<const std::string_view> allowed,
                        double most) {
    if (!is_one_of(allowed, word) || *value > most) return false;
    figures[key] = *value;
    return figures.size() <= kMostDevices * allowed.size();
  };
  static constexpr std::array<std::string_view, 2> kMemory = {"used", "total"};
  if (kind == "temperature") return note(now_.temperatures, ipc::kSensors, 300);
  if (kind == "slowed") return note(now_.slowed, ipc::kSlowedBy, 1);
  if (kind == "memory") return note(now_.memory, kMemory, 1ULL << 53);
  return false;
}

void NvidiaReports::forget() {
  now_ = last_ = {};
  failure_.clear();
  ended_ = false;
}

void NvidiaReports::append_to(std::vector<DaemonFigure>& figures, bool xids) const {
  for (const auto& [key, degrees] : last_.temperatures) {
    figures.push_back({"bulkhead_device_temperature_celsius", "Temperature of a device", degrees,
                       false, "device", key.first, "sensor", key.second});
  }
  // Under load many devices are at their power limit. That is no fault, so it has a reason of its own.
  std::map<std::string, double> throttled;
  for (const auto& [key, is_so] : last_.slowed) {
    figures.push_back({"bulkhead_device_slowed",
                       "1 while this reason makes a device run slower than it could", is_so, false,
                       "device", key.first, "reason", key.second});
    double& any = throttled[key.first];
    if (key.second != "power_limit" && key.second != "sync_boost") any = std::max(any, is_so);
  }
  for (const auto& [device, is_so] : throttled) {
    figures.push_back({"bulkhead_device_throttled",
                       "1 while a device runs slower than it could: heat, power or current", is_so,
                       false, "device", device});
  }
  for (const auto& [key, bytes] : last_.memory) {
    const bool used = key.second == "used";
    figures.push_back({used ? "bulkhead_device_memory_used_bytes" : "bulkhead_device_memory_bytes",
                       used ? "Memory of a device in use, by all processes" : "Memory of a device",
                       bytes, false, "device", key.first});
  }
  if (!xids) return;
  for (const auto& [key, count] : xids_) {
    // The kernel's log names the device without its function, and so does the counter of what is read there.
    figures.push_back({"bulkhead_device_xid_errors_total",
                       "Xid errors that NVIDIA's driver reported", count, true, "device",
                       key.first.substr(0, key.first.find('.')), "xid", key.second});
  }
}

}  // namespace bulkhead::orchestrator
