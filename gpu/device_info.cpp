#include "gpu/device_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace bulkhead::gpu {
namespace {

// A CPU device reports an arbitrary heap (2 GiB in Mesa 22.3, without a limit on the sum of allocations), so the
// system's memory counts. Returns bytes; 0: unknown.
std::uint64_t system_memory(const char* key) {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  std::uint64_t kib = 0;
  while (meminfo >> word) {
    if (word == key && meminfo >> kib) return kib * 1024;
  }
  return 0;
}

// Vulkan may add types, so this is a table: a type without a row is kOther.
DeviceKind kind_of(VkPhysicalDeviceType type) {
  struct Row {
    VkPhysicalDeviceType type;
    DeviceKind kind;
  };
  static constexpr Row kRows[] = {
      {VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, DeviceKind::kDiscrete},
      {VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, DeviceKind::kIntegrated},
      {VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU, DeviceKind::kVirtual},
      {VK_PHYSICAL_DEVICE_TYPE_CPU, DeviceKind::kCpu},
  };
  const auto* const row = std::ranges::find(kRows, type, &Row::type);
  return row != std::end(kRows) ? row->kind : DeviceKind::kOther;
}

std::string hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes)
    text += fmt::format("{:02x}", byte);
  return text;
}

struct HeapUse {
  std::uint64_t size = 0;
  std::uint64_t free = 0;
};

HeapUse largest_device_heap(VkPhysicalDevice physical, bool has_memory_budget) {
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
  VkPhysicalDeviceMemoryProperties2 memory{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  if (has_memory_budget) memory.pNext = &budget;
  vkGetPhysicalDeviceMemoryProperties2(physical, &memory);
  HeapUse use;
  for (std::uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = memory.memoryProperties.memoryHeaps[i];
    if ((heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) == 0 || heap.size <= use.size) continue;
    use.size = heap.size;
    // Without a budget: assume that others (a desktop, the driver itself) hold a tenth.
    use.free = heap.size - heap.size / 10;
    if (has_memory_budget) {
      use.free = budget.heapBudget[i] > budget.heapUsage[i]
                     ? budget.heapBudget[i] - budget.heapUsage[i]
                     : 0;
    }
  }
  return use;
}

std::vector<std::string> unmet_requirements(VkPhysicalDevice physical,
                                            const VkPhysicalDeviceLimits& limits,
                                            const VkPhysicalDeviceSubgroupProperties& subgroup) {
  DeviceFeatures has;
  has.chain();
  vkGetPhysicalDeviceFeatures2(physical, &has.base);

  std::vector<std::string> missing;
  const auto need = [&](bool met, const char* words) {
    if (!met) missing.emplace_back(words);
  };
  need(find_queue_families(physical).compute.has_value(), "a compute queue");
  need(has.v12.bufferDeviceAddress, "buffer device addresses (bufferDeviceAddress)");
  need(has.v12.timelineSemaphore, "timeline semaphores (timelineSemaphore)");
  need(has.v13.synchronization2, "synchronization2");
  need(has.v12.scalarBlockLayout, "scalar block layout (scalarBlockLayout)");
  need(has.v11.storageBuffer16BitAccess, "16-bit values in buffers (storageBuffer16BitAccess)");
  need(has.v12.storageBuffer8BitAccess, "8-bit values in buffers (storageBuffer8BitAccess)");
  need(has.v12.shaderFloat16, "16-bit floats in shaders (shaderFloat16)");
  need(has.v12.shaderInt8, "8-bit integers in shaders (shaderInt8)");
  need(has.base.features.shaderInt16, "16-bit integers in shaders (shaderInt16)");
  need(has.base.features.shaderInt64, "64-bit integers in shaders (shaderInt64)");
  need(has.v13.subgroupSizeControl && has.v13.computeFullSubgroups,
       "subgroup size control (subgroupSizeControl, computeFullSubgroups)");
  constexpr VkSubgroupFeatureFlags kOperations =
      VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
      VK_SUBGROUP_FEATURE_BALLOT_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT |
      VK_SUBGROUP_FEATURE_QUAD_BIT;
  need((subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
           (subgroup.supportedOperations & kOperations) == kOperations,
       "subgroup arithmetic, ballot, shuffle and quad operations in compute shaders");
  need(limits.maxComputeWorkGroupInvocations >= std::max(256U, 8 * subgroup.subgroupSize),
       "workgroups of 256 invocations and of eight subgroups");
  need(limits.maxComputeSharedMemorySize >= 16 * 1024, "16 KiB of shared memory");
  return missing;
}

// What a device offers of kMatrixExtension.
struct MatrixOffer {
  VkStructureType type = static_cast<VkStructureType>(1000506001);
  void* next = nullptr;
  std::uint32_t m = 0, n = 0, k = 0;
  std::uint32_t a = 0, b = 0, c = 0, result = 0;  // types of components
  VkBool32 saturating = VK_FALSE;
  std::uint32_t scope = 0;
};
constexpr std::uint32_t kHalfComponents = 0, kFloatComponents = 1, kSubgroupScope = 3;
using MatrixQuery = VkResult(VKAPI_PTR*)(VkPhysicalDevice, std::uint32_t*, MatrixOffer*);

}  // namespace

const char* to_string(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kDiscrete:
      return "discrete";
    case DeviceKind::kIntegrated:
      return "integrated";
    case DeviceKind::kVirtual:
      return "virtual";
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kOther:
      break;
  }
  return "other";
}

void DeviceFeatures::chain() {
  base.pNext = &v11;
  v11.pNext = &v12;
  v12.pNext = &v13;
  v13.pNext = nullptr;
}

QueueFamilies find_queue_families(VkPhysicalDevice physical) {
  std::uint32_t count = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families.data());

  constexpr VkQueueFlags kMeaningful = VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT |
                                       VK_QUEUE_TRANSFER_BIT | VK_QUEUE_VIDEO_DECODE_BIT_KHR |
                                       /*VK_QUEUE_VIDEO_ENCODE_BIT_KHR*/ 0x40 |
                                       /*VK_QUEUE_OPTICAL_FLOW_BIT_NV*/ 0x100;
  QueueFamilies found;
  for (std::uint32_t i = 0; i < count; ++i) {
    const VkQueueFlags flags = families[i].queueFlags;
    if (!found.compute && (flags & VK_QUEUE_COMPUTE_BIT) != 0) {
      found.compute = i;
      found.compute_timestamp_bits = families[i].timestampValidBits;
    }
    // Video families can also copy, but are not meant for it.
    if (!found.transfer && (flags & kMeaningful) == VK_QUEUE_TRANSFER_BIT) {
      found.transfer = i;
      found.transfer_queues = families[i].queueCount;
      found.transfer_timestamp_bits = families[i].timestampValidBits;
    }
  }
  return found;
}

bool has_extension(VkPhysicalDevice physical, const char* name) {
  std::uint32_t count = 0;
  if (vkEnumerateDeviceExtensionProperties(physical, nullptr, &count, nullptr) != VK_SUCCESS)
    return false;
  std::vector<VkExtensionProperties> extensions(count);
  if (vkEnumerateDeviceExtensionProperties(physical, nullptr, &count, extensions.data()) < 0)
    return false;
  return std::any_of(extensions.begin(), extensions.end(),
                     [&](const VkExtensionProperties& extension) {
                       return std::strcmp(extension.extensionName, name) == 0;
                     });
}

bool has_matrix_units(VkInstance instance, VkPhysicalDevice physical) {
  if (!has_extension(physical, kMatrixExtension)) return false;
  MatrixFeatures features;
  VkPhysicalDeviceFeatures2 all{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &features, {}};
  vkGetPhysicalDeviceFeatures2(physical, &all);
  const auto query = reinterpret_cast<MatrixQuery>(
      vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
  if (features.matrices != VK_TRUE || query == nullptr) return false;
  std::uint32_t count = 0;
  if (query(physical, &count, nullptr) != VK_SUCCESS) return false;
  std::vector<MatrixOffer> offers(count);
  if (query(physical, &count, offers.data()) < 0) return false;
  return std::any_of(offers.begin(), offers.end(), [](const MatrixOffer& offer) {
    return offer.m == 16 && offer.n == 8 && offer.k == 16 && offer.a == kHalfComponents &&
           offer.b == kHalfComponents && offer.c == kFloatComponents &&
           offer.result == kFloatComponents && offer.scope == kSubgroupScope;
  });
}

Sharing sharing_of(VkPhysicalDevice physical, VkBufferUsageFlags usage) {
  if (!has_extension(physical, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME)) return {};
  VkPhysicalDeviceExternalBufferInfo asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO};
  asked.usage = usage;
  asked.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
  VkExternalBufferProperties answer{VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
  vkGetPhysicalDeviceExternalBufferProperties(physical, &asked, &answer);
  const VkExternalMemoryFeatureFlags can = answer.externalMemoryProperties.externalMemoryFeatures;
  constexpr VkExternalMemoryFeatureFlags kBoth =
      VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
  return {(can & kBoth) == kBoth, (can & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) != 0};
}

DeviceInfo describe_device(VkPhysicalDevice physical, std::uint32_t index) {
  VkPhysicalDeviceMaintenance4Properties maintenance4{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES};
  VkPhysicalDeviceSubgroupSizeControlProperties sizes{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
  sizes.pNext = &maintenance4;
  VkPhysicalDeviceMaintenance3Properties maintenance3{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
  VkPhysicalDeviceSubgroupProperties subgroup{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  subgroup.pNext = &maintenance3;
  VkPhysicalDeviceDriverProperties driver{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
  driver.pNext = &subgroup;
  VkPhysicalDeviceIDProperties id{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
  id.pNext = &driver;

  VkPhysicalDeviceProperties plain{};
  vkGetPhysicalDeviceProperties(physical, &plain);
  const bool is_1_3 = plain.apiVersion >= VK_API_VERSION_1_3;
  if (is_1_3) maintenance3.pNext = &sizes;

  DeviceInfo info;
  info.index = index;
  info.name = plain.deviceName;
  info.kind = kind_of(plain.deviceType);
  info.vendor_id = plain.vendorID;
  info.device_id = plain.deviceID;
  info.api_version =
      fmt::format("{}.{}.{}", VK_API_VERSION_MAJOR(plain.apiVersion),
                  VK_API_VERSION_MINOR(plain.apiVersion), VK_API_VERSION_PATCH(plain.apiVersion));
  info.shared_memory_bytes = plain.limits.maxComputeSharedMemorySize;
  info.max_workgroup_invocations = plain.limits.maxComputeWorkGroupInvocations;
  info.timestamp_period_ns = plain.limits.timestampPeriod;
  info.has_transfer_queue = find_queue_families(physical).transfer.has_value();

  if (plain.apiVersion >= VK_API_VERSION_1_2) {
    VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    properties.pNext = &id;
    vkGetPhysicalDeviceProperties2(physical, &properties);
    info.driver = fmt::format("{} {}", driver.driverName, driver.driverInfo);
    info.uuid = hex(id.deviceUUID);
    info.driver_uuid = hex(id.driverUUID);
    info.subgroup_size = subgroup.subgroupSize;
    info.min_subgroup_size = is_1_3 ? sizes.minSubgroupSize : subgroup.subgroupSize;
    info.max_subgroup_size = is_1_3 ? sizes.maxSubgroupSize : subgroup.subgroupSize;
    info.max_allocation_bytes = maintenance3.maxMemoryAllocationSize;
    if (is_1_3)
      info.max_allocation_bytes = std::min(info.max_allocation_bytes, maintenance4.maxBufferSize);
  }

  const bool has_budget = has_extension(physical, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  info.device_memory_bytes = largest_device_heap(physical, has_budget).size;
  if (info.kind == DeviceKind::kCpu) {
    if (const std::uint64_t total = system_memory("MemTotal:"); total > 0)
      info.device_memory_bytes = total;
  }
  info.free_memory_bytes = free_device_memory(physical, has_budget);

  if (is_1_3) {
    info.missing = unmet_requirements(physical, plain.limits, subgroup);
  } else {
    info.missing.push_back(fmt::format("Vulkan 1.3 (its driver offers {})", info.api_version));
  }
  return info;
}

DeviceFeatures features_to_enable(VkPhysicalDevice physical) {
  DeviceFeatures has;
  has.chain();
  vkGetPhysicalDeviceFeatures2(physical, &has.base);

  DeviceFeatures want;
  want.base.features.shaderInt16 = has.base.features.shaderInt16;
  want.base.features.shaderInt64 = has.base.features.shaderInt64;
  want.v11.storageBuffer16BitAccess = has.v11.storageBuffer16BitAccess;
  want.v12.storageBuffer8BitAccess = has.v12.storageBuffer8BitAccess;
  want.v12.shaderFloat16 = has.v12.shaderFloat16;
  want.v12.shaderInt8 = has.v12.shaderInt8;
  want.v12.shaderSubgroupExtendedTypes = has.v12.shaderSubgroupExtendedTypes;
  want.v12.subgroupBroadcastDynamicId = has.v12.subgroupBroadcastDynamicId;
  want.v12.scalarBlockLayout = has.v12.scalarBlockLayout;
  want.v12.bufferDeviceAddress = has.v12.bufferDeviceAddress;
  want.v12.timelineSemaphore = has.v12.timelineSemaphore;
  want.v12.vulkanMemoryModel = has.v12.vulkanMemoryModel;
  want.v12.vulkanMemoryModelDeviceScope = has.v12.vulkanMemoryModelDeviceScope;
  want.v12.hostQueryReset = has.v12.hostQueryReset;
  want.v13.subgroupSizeControl = has.v13.subgroupSizeControl;
  want.v13.computeFullSubgroups = has.v13.computeFullSubgroups;
  want.v13.synchronization2 = has.v13.synchronization2;
  want.v13.maintenance4 = has.v13.maintenance4;
  want.v13.shaderIntegerDotProduct = has.v13.shaderIntegerDotProduct;
  want.v13.shaderZeroInitializeWorkgroupMemory = has.v13.shaderZeroInitializeWorkgroupMemory;
  want.v13.pipelineCreationCacheControl = has.v13.pipelineCreationCacheControl;
  want.chain();
  return want;
}

std::uint64_t free_device_memory(VkPhysicalDevice physical, bool has_memory_budget) {
  VkPhysicalDeviceProperties properties{};
  vkGetPhysicalDeviceProperties(physical, &properties);
  if (properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU) {
    if (const std::uint64_t available = system_memory("MemAvailable:"); available > 0)
      return available;
  }
  return largest_device_heap(physical, has_memory_budget).free;
}

}  // namespace bulkhead::gpu
