// Finds out what a physical device can do, and which of its features Bulkhead enables.
#pragma once

#include <cstdint>
#include <optional>

#include <vulkan/vulkan.h>

#include "gpu/device.hpp"

namespace bulkhead::gpu {

// The core feature structures, chained by chain().
struct DeviceFeatures {
  VkPhysicalDeviceFeatures2 base{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  VkPhysicalDeviceVulkan11Features v11{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES};
  VkPhysicalDeviceVulkan12Features v12{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
  VkPhysicalDeviceVulkan13Features v13{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
  void chain();  // call it again after a copy, because the chain holds addresses
};

// VK_KHR_cooperative_matrix is newer than Debian 12's headers. These are the parts that we need, with the
// specification's numbers.
inline constexpr const char* kMatrixExtension = "VK_KHR_cooperative_matrix";
struct MatrixFeatures {
  VkStructureType type = static_cast<VkStructureType>(1000506000);
  void* next = nullptr;
  VkBool32 matrices = VK_FALSE;
  VkBool32 robust_buffer_access = VK_FALSE;
};

// Whether our buffers' memory can be exported to another process and imported from one.
struct Sharing {
  bool possible = false;
  bool dedicated = false;  // each such buffer needs a dedicated allocation
};

struct QueueFamilies {
  std::optional<std::uint32_t> compute;
  std::optional<std::uint32_t> transfer;  // a family that does nothing else
  std::uint32_t transfer_queues = 0;
  std::uint32_t compute_timestamp_bits = 0, transfer_timestamp_bits = 0;
};

QueueFamilies find_queue_families(VkPhysicalDevice physical);
bool has_extension(VkPhysicalDevice physical, const char* name);

// Returns whether a subgroup of the device can multiply 16x16 by 16x8 matrices of halves into float32 sums.
bool has_matrix_units(VkInstance instance, VkPhysicalDevice physical);
// Returns how buffers with `usage` can be shared.
Sharing sharing_of(VkPhysicalDevice physical, VkBufferUsageFlags usage);

DeviceInfo describe_device(VkPhysicalDevice physical, std::uint32_t index);
// Returns the features to enable: every feature that kernels may use and this device has. The device must have Vulkan
// 1.3.
DeviceFeatures features_to_enable(VkPhysicalDevice physical);
// Returns the free memory of the largest device-local heap; for a CPU device, the system's free memory.
std::uint64_t free_device_memory(VkPhysicalDevice physical, bool has_memory_budget);

}  // namespace bulkhead::gpu
