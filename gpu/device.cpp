#include "gpu/device.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "config/base/log.hpp"
#include "gpu/device_impl.hpp"
#include "gpu/device_info.hpp"
#include "gpu/pipeline_cache.hpp"

namespace bulkhead::gpu {
namespace {

// Vulkan promises 128 bytes of push constants everywhere.
constexpr std::uint32_t kMaxPushBytes = 128;

struct Candidate {
  VkPhysicalDevice physical = VK_NULL_HANDLE;
  DeviceInfo info;
};

std::string lower(std::string text) {
  for (char& c : text)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string listing(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& candidate : candidates) {
    text += fmt::format("{}{}: {} ({}){}", text.empty() ? "" : "; ", candidate.info.index,
                        candidate.info.name, to_string(candidate.info.kind),
                        candidate.info.missing.empty() ? "" : " [unusable]");
  }
  return text;
}

int rank(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kDiscrete:
      return 0;
    case DeviceKind::kIntegrated:
      return 1;
    case DeviceKind::kVirtual:
      return 2;
    case DeviceKind::kOther:
      return 3;
    case DeviceKind::kCpu:
      break;
  }
  return 4;
}

// Best rank first among the usable; the driver's order among equals.
const Candidate* best_of(const std::vector<Candidate>& candidates, bool cpu_only) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.info.missing.empty()) continue;
    if (cpu_only && candidate.info.kind != DeviceKind::kCpu) continue;
    if (best == nullptr || rank(candidate.info.kind) < rank(best->info.kind)) best = &candidate;
  }
  return best;
}

Result<Candidate> choose(const std::vector<Candidate>& candidates, const std::string& selector) {
  const std::string wanted = lower(selector);
  const Candidate* chosen = nullptr;
  if (wanted.empty() || wanted == "auto" || wanted == "cpu") {
    chosen = best_of(candidates, wanted == "cpu");
    if (chosen == nullptr) {
      for (const Candidate& candidate : candidates) {
        if (wanted != "cpu" || candidate.info.kind == DeviceKind::kCpu) chosen = &candidate;
      }
    }
    if (chosen == nullptr) {
      return Error(ErrorCode::kNotFound,
                   fmt::format("device 'cpu': there is no CPU device (apt-get install "
                               "mesa-vulkan-drivers); there is {}",
                               listing(candidates)));
    }
  } else {
    std::uint32_t index = 0;
    const auto [end, failed] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), index);
    const bool is_index = failed == std::errc() && end == wanted.data() + wanted.size();
    for (const Candidate& candidate : candidates) {
      const bool matches = is_index ? candidate.info.index == index
                                    : lower(candidate.info.name).find(wanted) != std::string::npos;
      // Among devices of one name a usable one.
      if (matches && (chosen == nullptr ||
                      (!chosen->info.missing.empty() && candidate.info.missing.empty()))) {
        chosen = &candidate;
      }
    }
    if (chosen == nullptr) {
      return Error(
          ErrorCode::kNotFound,
          fmt::format(
              "device '{}': no such device; write auto, cpu, an index or part of a name: {}",
              selector, listing(candidates)));
    }
  }
  if (!chosen->info.missing.empty()) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("device {} ({}) lacks what Bulkhead needs: {}", chosen->info.index,
                             chosen->info.name, joined(chosen->info.missing)));
  }
  return *chosen;
}

Result<std::vector<Candidate>> candidates_of(const Instance& instance) {
  BULKHEAD_TRY(const std::vector<VkPhysicalDevice> devices, instance.devices());
  std::vector<Candidate> candidates;
  for (std::uint32_t i = 0; i < devices.size(); ++i)
    candidates.push_back({devices[i], describe_device(devices[i], i)});
  return candidates;
}

// A folder that can't be made costs compile time at each start, nothing else.
void prepare_cache_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    spdlog::warn("shader cache folder {}: {}; kernels are compiled at each start", folder,
                 failed.message());
    return;
  }
  keep_driver_caches_in(folder);
}

bool validation_by_environment() {
  const char* value = std::getenv("BULKHEAD_VULKAN_VALIDATION");
  return value != nullptr && value[0] != '\0' && std::strcmp(value, "0") != 0;
}

// The driver says in the blob's own header whether it is for this device and driver; one that is
// not must not reach the driver.
bool blob_fits(std::span<const std::byte> blob, const VkPhysicalDeviceProperties& properties) {
  VkPipelineCacheHeaderVersionOne header{};
  if (blob.size() < sizeof(header)) return false;
  std::memcpy(&header, blob.data(), sizeof(header));
  return header.headerVersion == VK_PIPELINE_CACHE_HEADER_VERSION_ONE &&
         header.vendorID == properties.vendorID && header.deviceID == properties.deviceID &&
         std::memcmp(header.pipelineCacheUUID, properties.pipelineCacheUUID, VK_UUID_SIZE) == 0;
}

// VK_KHR_cooperative_matrix is younger than Debian 12's headers: what we need of it, as the specification numbers it.
constexpr const char* kMatrixExtension = "VK_KHR_cooperative_matrix";
struct MatrixFeatures {
  VkStructureType type = static_cast<VkStructureType>(1000506000);
  void* next = nullptr;
  VkBool32 matrices = VK_FALSE;
  VkBool32 robust_buffer_access = VK_FALSE;
};
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

// Whether the device multiplies 16x16 by 16x8 halves into float32 sums, a subgroup together.
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

// Whether memory of our buffers can go to another process and come from one.
struct Sharing {
  bool possible = false;
  bool dedicated = false;  // each buffer needs an allocation of its own kind
};
Sharing sharing_of(VkPhysicalDevice physical) {
  if (!has_extension(physical, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME)) return {};
  VkPhysicalDeviceExternalBufferInfo asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO};
  asked.usage = kBufferUsage;
  asked.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
  VkExternalBufferProperties answer{VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
  vkGetPhysicalDeviceExternalBufferProperties(physical, &asked, &answer);
  const VkExternalMemoryFeatureFlags can = answer.externalMemoryProperties.externalMemoryFeatures;
  constexpr VkExternalMemoryFeatureFlags kBoth =
      VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
  return {(can & kBoth) == kBoth, (can & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) != 0};
}

}  // namespace

bool MakesAnotherPipeline::operator()(const KernelSpec& a, const KernelSpec& b) const {
  const auto small = [](const KernelSpec& spec) {
    return std::tie(spec.push_bytes, spec.required_subgroup_size, spec.constants);
  };
  if (small(a) != small(b)) return small(a) < small(b);
  // The same embedded code most of the time: then its words need not be read.
  if (a.spirv.data() == b.spirv.data() && a.spirv.size() == b.spirv.size()) return false;
  return std::lexicographical_compare(a.spirv.begin(), a.spirv.end(), b.spirv.begin(),
                                      b.spirv.end());
}

Result<std::vector<DeviceInfo>> list_devices() {
  BULKHEAD_TRY(const std::unique_ptr<Instance> instance, Instance::create(false));
  BULKHEAD_TRY(std::vector<Candidate> candidates, candidates_of(*instance));
  std::vector<DeviceInfo> infos;
  for (Candidate& candidate : candidates)
    infos.push_back(std::move(candidate.info));
  return infos;
}

Result<std::unique_ptr<Device>> Device::open(const DeviceOptions& options) {
  prepare_cache_folder(options.cache_folder);
  std::unique_ptr<Device> self(new Device());
  self->impl_ = std::make_unique<Impl>();
  Impl& impl = *self->impl_;
  BULKHEAD_TRY(impl.instance, Instance::create(options.validation || validation_by_environment()));
  BULKHEAD_TRY(const std::vector<Candidate> candidates, candidates_of(*impl.instance));
  BULKHEAD_TRY(Candidate chosen, choose(candidates, options.selector));
  self->physical_ = chosen.physical;
  self->info_ = std::move(chosen.info);

  VkPhysicalDeviceSubgroupSizeControlProperties sizes{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
  VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  properties.pNext = &sizes;
  vkGetPhysicalDeviceProperties2(self->physical_, &properties);
  impl.limits = properties.properties.limits;
  impl.required_subgroup_size_stages = sizes.requiredSubgroupSizeStages;
  impl.max_workgroup_subgroups = sizes.maxComputeWorkgroupSubgroups;
  vkGetPhysicalDeviceMemoryProperties(self->physical_, &impl.memory);

  const QueueFamilies families = find_queue_families(self->physical_);
  self->compute_family_ = *families.compute;  // describe_device has seen that there is one
  self->transfer_family_ = families.transfer.value_or(*families.compute);
  impl.timestamp_bits = families.compute_timestamp_bits;
  impl.transfer_timestamp_bits =
      families.transfer ? families.transfer_timestamp_bits : families.compute_timestamp_bits;
  const std::uint32_t transfer_queues = std::min(families.transfer_queues, 2u);

  const float priorities[] = {1.0f, 1.0f};
  std::vector<VkDeviceQueueCreateInfo> queues;
  const auto add_queues = [&](std::uint32_t family, std::uint32_t count) {
    VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
    queue.queueFamilyIndex = family;
    queue.queueCount = count;
    queue.pQueuePriorities = priorities;
    queues.push_back(queue);
  };
  add_queues(self->compute_family_, 1);
  if (families.transfer) add_queues(self->transfer_family_, transfer_queues);

  std::vector<const char*> extensions;
  impl.has_memory_budget = has_extension(self->physical_, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (impl.has_memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);

  DeviceFeatures features = features_to_enable(self->physical_);
  features.chain();
  impl.has_host_query_reset = features.v12.hostQueryReset != VK_FALSE;
  MatrixFeatures matrix_units;
  self->info_.matrix_units = has_matrix_units(impl.instance->handle(), self->physical_);
  if (self->info_.matrix_units) {
    extensions.push_back(kMatrixExtension);
    matrix_units.matrices = VK_TRUE;
    matrix_units.next = features.base.pNext;
    features.base.pNext = &matrix_units;
  }
  const Sharing sharing = sharing_of(self->physical_);
  if (sharing.possible) extensions.push_back(VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
  VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR};
  impl.statistics =
      options.statistics &&
      has_extension(self->physical_, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
  if (impl.statistics) {
    extensions.push_back(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
    statistics.pipelineExecutableInfo = VK_TRUE;
    statistics.pNext = features.base.pNext;
    features.base.pNext = &statistics;
  }
  VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  info.pNext = &features.base;
  info.queueCreateInfoCount = static_cast<std::uint32_t>(queues.size());
  info.pQueueCreateInfos = queues.data();
  info.enabledExtensionCount = static_cast<std::uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  VkResult result = vkCreateDevice(self->physical_, &info, nullptr, &self->device_);
  if (result != VK_SUCCESS) return vulkan_error(result, "opening " + self->info_.name);

  if (sharing.possible) {
    impl.get_memory_fd = reinterpret_cast<PFN_vkGetMemoryFdKHR>(
        vkGetDeviceProcAddr(self->device_, "vkGetMemoryFdKHR"));
    impl.shares_dedicated = sharing.dedicated;
  }
  self->info_.shares_memory = impl.get_memory_fd != nullptr;

  vkGetDeviceQueue(self->device_, self->compute_family_, 0, &self->compute_queue_);
  self->transfer_queue_ = self->download_queue_ = self->compute_queue_;
  if (families.transfer) {
    vkGetDeviceQueue(self->device_, self->transfer_family_, 0, &self->transfer_queue_);
    vkGetDeviceQueue(self->device_, self->transfer_family_, transfer_queues - 1,
                     &self->download_queue_);
  }

  if (!options.cache_folder.empty()) {
    impl.cache_path = pipeline_cache_path(options.cache_folder, self->info_);
    impl.saved_blob = read_pipeline_cache(impl.cache_path);
    if (!impl.saved_blob.empty() && !blob_fits(impl.saved_blob, properties.properties)) {
      spdlog::warn(
          "pipeline cache {}: written for another device or driver; kernels are compiled again",
          impl.cache_path);
      impl.saved_blob.clear();
    }
  }
  VkPipelineCacheCreateInfo cache{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  cache.initialDataSize = impl.saved_blob.size();
  cache.pInitialData = impl.saved_blob.data();
  result = vkCreatePipelineCache(self->device_, &cache, nullptr, &impl.cache);
  if (result != VK_SUCCESS && cache.initialDataSize > 0) {
    spdlog::warn("pipeline cache {}: the driver refuses it; kernels are compiled again",
                 impl.cache_path);
    impl.saved_blob.clear();
    cache.initialDataSize = 0;
    cache.pInitialData = nullptr;
    result = vkCreatePipelineCache(self->device_, &cache, nullptr, &impl.cache);
  }
  if (result != VK_SUCCESS) return vulkan_error(result, "creating the pipeline cache");
  return self;
}

Device::~Device() {
  if (impl_ == nullptr || device_ == VK_NULL_HANDLE) return;
  if (abandoned_) {
    (void)impl_.release();  // its instance, too
    return;
  }
  for (const auto& [key, kernel] : impl_->kernels)
    vkDestroyPipeline(device_, kernel.pipeline, nullptr);
  for (const auto& [bytes, layout] : impl_->layouts)
    vkDestroyPipelineLayout(device_, layout, nullptr);
  vkDestroyPipelineCache(device_, impl_->cache, nullptr);
  vkDestroyDevice(device_, nullptr);
}

std::uint64_t Device::free_memory_bytes() const {
  return free_device_memory(physical_, impl_->has_memory_budget);
}

std::uint64_t Device::validation_errors() const {
  return impl_->instance->validation_errors();
}

std::uint32_t Device::max_groups(int dimension) const {
  return impl_->limits.maxComputeWorkGroupCount[dimension];
}

std::uint32_t Device::timestamp_bits() const {
  return impl_->timestamp_bits;
}

std::uint32_t Device::transfer_timestamp_bits() const {
  return impl_->transfer_timestamp_bits;
}

bool Device::has_host_query_reset() const {
  return impl_->has_host_query_reset;
}

Result<Kernel> Device::make_kernel(const KernelSpec& spec) {
  if (spec.push_bytes > kMaxPushBytes || spec.push_bytes % 4 != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("kernel {}: {} bytes of push constants; a multiple of 4 up to {} fits",
                             spec.name, spec.push_bytes, kMaxPushBytes));
  }
  if (spec.spirv.empty())
    return Error(ErrorCode::kInvalidArgument, fmt::format("kernel {}: no code", spec.name));
  if (spec.required_subgroup_size != 0 &&
      (spec.required_subgroup_size < info_.min_subgroup_size ||
       spec.required_subgroup_size > info_.max_subgroup_size ||
       (impl_->required_subgroup_size_stages & VK_SHADER_STAGE_COMPUTE_BIT) == 0)) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("kernel {}: needs subgroups of {}; {} has {} to {}", spec.name,
                             spec.required_subgroup_size, info_.name, info_.min_subgroup_size,
                             info_.max_subgroup_size));
  }

  Impl& impl = *impl_;
  Kernel kernel;
  kernel.push_bytes = spec.push_bytes;
  {
    std::unique_lock lock(impl.mutex);
    // One that failed elsewhere is tried again here, for this caller's own error.
    impl.compiled.wait(lock, [&] { return !impl.compiling.contains(spec); });
    if (const auto known = impl.kernels.find(spec); known != impl.kernels.end())
      return known->second;
    VkPipelineLayout& layout = impl.layouts[spec.push_bytes];
    if (layout == VK_NULL_HANDLE) {
      const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, spec.push_bytes};
      VkPipelineLayoutCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
      info.pushConstantRangeCount = spec.push_bytes > 0 ? 1 : 0;
      info.pPushConstantRanges = &range;
      const VkResult result = vkCreatePipelineLayout(device_, &info, nullptr, &layout);
      if (result != VK_SUCCESS) {
        impl.layouts.erase(spec.push_bytes);
        return vulkan_error(result, fmt::format("kernel {}: creating its layout", spec.name));
      }
    }
    kernel.layout = layout;
    impl.compiling.insert(spec);
  }
  struct Compiling {  // however it ends
    Impl& impl;
    const KernelSpec& spec;
    ~Compiling() {
      const std::lock_guard lock(impl.mutex);
      impl.compiling.erase(spec);
      impl.compiled.notify_all();
    }
  } const compiling{impl, spec};

  // Compiling takes milliseconds to seconds: without the lock.
  VkShaderModuleCreateInfo code{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  code.codeSize = spec.spirv.size_bytes();
  code.pCode = spec.spirv.data();
  VkShaderModule module = VK_NULL_HANDLE;
  VkResult result = vkCreateShaderModule(device_, &code, nullptr, &module);
  if (result != VK_SUCCESS)
    return vulkan_error(result, fmt::format("kernel {}: loading its code", spec.name));

  std::vector<VkSpecializationMapEntry> entries;
  for (std::uint32_t i = 0; i < spec.constants.size(); ++i)
    entries.push_back({i, i * 4, 4});
  VkSpecializationInfo constants{};
  constants.mapEntryCount = static_cast<std::uint32_t>(entries.size());
  constants.pMapEntries = entries.data();
  constants.dataSize = spec.constants.size() * 4;
  constants.pData = spec.constants.data();
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{
      VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
  subgroup.requiredSubgroupSize = spec.required_subgroup_size;
  VkComputePipelineCreateInfo pipeline{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  pipeline.layout = kernel.layout;
  if (impl.statistics) pipeline.flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
  pipeline.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  pipeline.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  pipeline.stage.module = module;
  pipeline.stage.pName = "main";
  if (!entries.empty()) pipeline.stage.pSpecializationInfo = &constants;
  if (spec.required_subgroup_size != 0) {
    pipeline.stage.pNext = &subgroup;
    pipeline.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  result = vkCreateComputePipelines(device_, impl.cache, 1, &pipeline, nullptr, &kernel.pipeline);
  vkDestroyShaderModule(device_, module, nullptr);
  if (result != VK_SUCCESS)
    return vulkan_error(result, fmt::format("kernel {}: compiling it", spec.name));
  impl.instance->name(device_, VK_OBJECT_TYPE_PIPELINE,
                      reinterpret_cast<std::uint64_t>(kernel.pipeline), spec.name);

  const std::lock_guard lock(impl.mutex);
  kernel.name = impl.names.emplace_back(spec.name).c_str();
  impl.kernels.emplace(spec, kernel);
  return kernel;
}

std::string Device::statistics(const Kernel& kernel) const {
  std::string text;
  const auto query = reinterpret_cast<PFN_vkGetPipelineExecutableStatisticsKHR>(
      vkGetDeviceProcAddr(device_, "vkGetPipelineExecutableStatisticsKHR"));
  if (!impl_->statistics || query == nullptr) return text;
  const VkPipelineExecutableInfoKHR which{VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, nullptr,
                                          kernel.pipeline, 0};
  std::uint32_t count = 0;
  if (query(device_, &which, &count, nullptr) != VK_SUCCESS) return text;
  VkPipelineExecutableStatisticKHR empty{};
  empty.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
  std::vector<VkPipelineExecutableStatisticKHR> all(count, empty);
  if (query(device_, &which, &count, all.data()) < 0) return text;
  for (const VkPipelineExecutableStatisticKHR& each : all) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", each.name, each.value.u64);
  }
  return text;
}

Status Device::save_pipeline_cache() {
  Impl& impl = *impl_;
  if (impl.cache_path.empty()) return {};
  std::size_t bytes = 0;
  VkResult result = vkGetPipelineCacheData(device_, impl.cache, &bytes, nullptr);
  // A cache only grows: of the same size it is the same.
  if (result == VK_SUCCESS && bytes == impl.saved_blob.size()) return {};
  std::vector<std::byte> blob(bytes);
  if (result == VK_SUCCESS && bytes > 0)
    result = vkGetPipelineCacheData(device_, impl.cache, &bytes, blob.data());
  // VK_INCOMPLETE: another thread compiled meanwhile; what came is whole in itself.
  if (result != VK_SUCCESS && result != VK_INCOMPLETE)
    return vulkan_error(result, "reading the pipeline cache");
  blob.resize(bytes);
  if (blob == impl.saved_blob) return {};
  BULKHEAD_RETURN_IF_ERROR(write_pipeline_cache(impl.cache_path, blob));
  impl.saved_blob = std::move(blob);
  return {};
}

}  // namespace bulkhead::gpu
