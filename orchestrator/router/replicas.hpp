// The number of a model's workers, and their devices.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "config/settings.hpp"

namespace bulkhead::orchestrator {

// Returns the devices as the settings name them. A device that is named twice has two shares.
inline std::vector<std::string> replica_devices(const config::ModelSettings& settings) {
  return settings.devices.empty() ? std::vector{settings.device} : settings.devices;
}

inline std::size_t replica_count(const config::ModelSettings& settings) {
  return std::max<std::size_t>(settings.workers, 1) *
         std::max<std::size_t>(settings.devices.size(), 1);
}

// Returns how many of the workers are on `device`.
inline std::size_t replica_count(const config::ModelSettings& settings, const std::string& device) {
  const std::vector<std::string> devices = replica_devices(settings);
  return std::max<std::size_t>(settings.workers, 1) *
         static_cast<std::size_t>(std::ranges::count(devices, device));
}

// Returns the device for one more worker, where `taken` names the devices of the workers that exist. It is the
// device that has the fewest workers for its shares; of equal devices it is the first.
inline std::string next_device(const config::ModelSettings& settings,
                               const std::vector<std::string>& taken) {
  const std::vector<std::string> devices = replica_devices(settings);
  const auto workers_of_a_share = [&](const std::string& device) {
    return static_cast<double>(std::ranges::count(taken, device)) /
           static_cast<double>(std::ranges::count(devices, device));
  };
  return *std::ranges::min_element(devices, {}, workers_of_a_share);
}

}  // namespace bulkhead::orchestrator
