// The number of a model's workers, and their devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "config/settings.hpp"

namespace bulkhead::orchestrator {

inline std::vector<std::string> named_devices(const config::ModelSettings& settings) {
  return settings.devices.empty() ? std::vector{settings.device} : settings.devices;
}

// Returns the devices, as named in the settings, for each share of the model. A device that is named twice has two
// shares. A split model has one share, which is on all devices: "0,1".
inline std::vector<std::string> replica_devices(const config::ModelSettings& settings) {
  if (settings.split == config::Split::kNo) return named_devices(settings);
  std::string all;
  for (const std::string& device : settings.devices)
    all += (all.empty() ? "" : ",") + device;
  return {all};
}

// Returns the devices of a worker whose share of the model is `share`.
inline std::vector<std::string> devices_of_share(const config::ModelSettings& settings,
                                                 const std::string& share) {
  return settings.split == config::Split::kNo ? std::vector{share} : settings.devices;
}

inline bool is_on(const std::string& device, const std::vector<std::string>& devices) {
  return std::ranges::find(devices, device) != devices.end();
}

// Returns how many of a worker's `bytes` on `devices` are on one of them. A split model's layers are distributed by
// the devices' memory; the router does not know it and assumes equal parts.
inline std::uint64_t part_on(const std::string& device, const std::vector<std::string>& devices,
                             std::uint64_t bytes) {
  const auto parts = static_cast<std::uint64_t>(std::ranges::count(devices, device));
  return bytes / std::max<std::size_t>(devices.size(), 1) * parts;
}

inline std::size_t replica_count(const config::ModelSettings& settings) {
  return std::max<std::size_t>(settings.workers, 1) * replica_devices(settings).size();
}

// Returns how many of the workers are on `device`.
inline std::size_t replica_count(const config::ModelSettings& settings, const std::string& device) {
  const std::vector<std::string> devices = replica_devices(settings);
  return std::max<std::size_t>(settings.workers, 1) *
         static_cast<std::size_t>(std::ranges::count(devices, device));
}

// Returns the device for one more worker; `taken` has the devices of the present workers. It is the device with the
// fewest workers relative to its shares; of equal devices it is the first.
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
