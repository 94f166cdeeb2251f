// Chooses one of the machine's devices.
#pragma once

#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device_info.hpp"
#include "gpu/vulkan_instance.hpp"

namespace bulkhead::gpu {

struct Candidate {
  VkPhysicalDevice physical = VK_NULL_HANDLE;
  DeviceInfo info;
};

// Returns all devices, usable or not (DeviceInfo::missing), in the drivers' order.
Result<std::vector<Candidate>> candidates_of(const Instance& instance);

// Returns the usable device that DeviceOptions::selector names. kNotFound lists the devices that exist; kUnsupported
// says what the device lacks.
Result<Candidate> choose(const std::vector<Candidate>& candidates, const std::string& selector);

}  // namespace bulkhead::gpu
