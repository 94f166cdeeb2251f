#include "orchestrator/supervisor/device_list.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "orchestrator/router/replicas.hpp"
#include "orchestrator/supervisor/program_output.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kLongestListing = 64 << 10;  // bytes

// The machine's devices by the texts that settings have named them with.
struct FoundDevices {
  std::mutex mutex;
  std::map<std::string, std::string> numbers;
};
FoundDevices& found_devices() {
  static FoundDevices all;
  return all;
}

bool is_device_number(const std::string& text) {
  constexpr std::size_t kMostDigits = 4;
  return !text.empty() && text.size() <= kMostDigits &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Result<std::vector<std::string>> usable_devices(std::string_view listing) {
  std::vector<std::string> gpus, cpus;
  std::istringstream lines{std::string(listing)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, state;
    words >> number >> kind >> state;
    if (is_device_number(number) && state == "usable")
      (kind == "cpu" ? cpus : gpus).push_back(number);
  }
  std::vector<std::string>& chosen = gpus.empty() ? cpus : gpus;
  if (chosen.empty())
    return Error(ErrorCode::kNotFound, "no device is usable; `bulkhead doctor` says why");
  return std::move(chosen);
}

Status resolve_all_devices(config::Settings& settings, const std::string& worker_program,
                           std::chrono::milliseconds patience) {
  std::vector<std::string> devices;
  for (std::size_t i = 0; i < settings.models.size(); ++i) {
    config::ModelSettings& model = settings.models[i];
    if (std::ranges::count(model.devices, "all") == 0) continue;
    const std::string key = "models." + std::to_string(i) + ".devices: all";
    if (devices.empty()) {
      const Result<std::string> listing =
          output_of(worker_program, {worker_program, "--list-devices"},
                    {patience, kLongestListing, ProgramLimits::Errors::kShown});
      if (!listing.ok())
        return listing.error().within(key + ": " + worker_program + " --list-devices");
      const Result<std::vector<std::string>> usable = usable_devices(*listing);
      if (!usable.ok()) return usable.error().within(key);
      devices = *usable;
    }
    if (model.split == config::Split::kLayers &&
        (devices.size() < 2 || devices.size() > config::kMostStages)) {
      return Error(ErrorCode::kInvalidArgument,
                   key + ": this machine has " + std::to_string(devices.size()) +
                       " usable devices, and models." + std::to_string(i) +
                       ".split shares a model out to 2 to " + std::to_string(config::kMostStages) +
                       " devices; name the devices, or leave out the split");
    }
    if (model.split == config::Split::kNo &&
        devices.size() * model.workers > config::kMostWorkersOfModel) {
      return Error(ErrorCode::kInvalidArgument,
                   key + ": this machine has " + std::to_string(devices.size()) +
                       " devices, and with `workers` for each the model would have more than " +
                       std::to_string(config::kMostWorkersOfModel) + " workers");
    }
    model.devices = devices;
  }
  return {};
}

Status number_devices(const config::Settings& settings, const std::string& worker_program,
                      std::chrono::milliseconds patience) {
  if (settings.server.device_memory_mb == 0) return {};
  std::set<std::string> texts;
  for (const config::ModelSettings& model : settings.models) {
    for (const std::string& text : named_devices(model))
      texts.insert(text);
  }
  // Files that come to the folder later are models on the device of this text.
  if (!settings.server.models_folder.empty()) texts.insert(config::ModelSettings().device);
  if (texts.size() < 2 || std::ranges::all_of(texts, is_device_number)) return {};
  std::vector<std::string> words = {worker_program, "--find-devices"};
  words.insert(words.end(), texts.begin(), texts.end());
  const Result<std::string> found = output_of(
      worker_program, std::move(words), {patience, kLongestListing, ProgramLimits::Errors::kShown});
  const auto unknown = [](const std::string& why) {
    return Error(ErrorCode::kUnavailable,
                 "which devices the models name is not known (" + why +
                     "); each way to name one counts as a device of its own, so name a device in "
                     "the same way everywhere");
  };
  if (!found.ok()) return unknown(found.error().message());
  bool any = false;
  std::istringstream lines(*found);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    std::string number, text;
    parts >> number >> std::ws;
    std::getline(parts, text);
    if (!is_device_number(number) || !texts.contains(text)) continue;
    FoundDevices& all = found_devices();
    const std::lock_guard lock(all.mutex);
    all.numbers[text] = number;
    any = true;
  }
  return any ? Status() : unknown(worker_program + " --find-devices names none");
}

std::vector<std::string> numbered(std::vector<std::string> devices) {
  FoundDevices& all = found_devices();
  const std::lock_guard lock(all.mutex);
  for (std::string& device : devices) {
    if (const auto known = all.numbers.find(device); known != all.numbers.end())
      device = known->second;
  }
  return devices;
}

}  // namespace bulkhead::orchestrator
