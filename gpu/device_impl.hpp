// Private parts of Device, which device.cpp and buffer.cpp share.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gpu/device.hpp"
#include "gpu/vulkan_instance.hpp"

namespace bulkhead::gpu {

inline constexpr VkBufferUsageFlags kBufferUsage =
    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
    VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT;

struct Device::Impl {
  std::unique_ptr<Instance> instance;
  VkPhysicalDeviceMemoryProperties memory{};
  VkPhysicalDeviceLimits limits{};
  VkShaderStageFlags required_subgroup_size_stages = 0;
  std::uint32_t timestamp_bits = 0, transfer_timestamp_bits = 0;
  bool has_host_query_reset = false;
  bool has_memory_budget = false;
  bool statistics = false;
  PFN_vkGetMemoryFdKHR get_memory_fd = nullptr;  // null if memory can't be shared
  bool shares_dedicated = false;                 // shared memory must then be dedicated to one buffer

  VkPipelineCache cache = VK_NULL_HANDLE;  // it synchronises itself
  std::string cache_path;                  // empty: not kept
  std::vector<std::byte>
      saved_blob;  // the file's content, so that an unchanged cache is not written again

  std::mutex mutex;                                   // guards everything below
  std::map<std::uint32_t, VkPipelineLayout> layouts;  // by the size of the push constants in bytes
  std::map<KernelSpec, Kernel, MakesAnotherPipeline> kernels;
  std::deque<std::string> names;                         // Kernel::name points into these
  std::set<KernelSpec, MakesAnotherPipeline> compiling;  // what other threads compile now
  std::condition_variable compiled;                      // signalled when one of these is done
};

}  // namespace bulkhead::gpu
