#include "gpu/device.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "config/base/log.hpp"
#include "gpu/device_choice.hpp"
#include "gpu/device_impl.hpp"
#include "gpu/device_info.hpp"
#include "gpu/pipeline_cache.hpp"

namespace bulkhead::gpu {
namespace {

// Vulkan promises 128 bytes of push constants everywhere.
constexpr std::uint32_t kMaxPushBytes = 128;

// If the folder can't be made, the only cost is compile time at each start.
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

// The blob's own header says whether it is for this device and driver. A blob for another one must not reach the
// driver.
bool blob_fits(std::span<const std::byte> blob, const VkPhysicalDeviceProperties& properties) {
  VkPipelineCacheHeaderVersionOne header{};
  if (blob.size() < sizeof(header)) return false;
  std::memcpy(&header, blob.data(), sizeof(header));
  return header.headerVersion == VK_PIPELINE_CACHE_HEADER_VERSION_ONE &&
         header.vendorID == properties.vendorID && header.deviceID == properties.deviceID &&
         std::memcmp(header.pipelineCacheUUID, properties.pipelineCacheUUID, VK_UUID_SIZE) == 0;
}

}  // namespace

bool MakesAnotherPipeline::operator()(const KernelSpec& a, const KernelSpec& b) const {
  const auto small = [](const KernelSpec& spec) {
    return std::tie(spec.push_bytes, spec.required_subgroup_size, spec.constants);
  };
  if (small(a) != small(b)) return small(a) < small(b);
  // Usually both are the same embedded code, and the words need not be compared.
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
  self->read_limits();
  BULKHEAD_RETURN_IF_ERROR(self->make_logical_device(options.statistics));
  BULKHEAD_RETURN_IF_ERROR(self->load_pipeline_cache(options.cache_folder));
  return self;
}

void Device::read_limits() {
  VkPhysicalDeviceSubgroupSizeControlProperties sizes{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
  VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  properties.pNext = &sizes;
  vkGetPhysicalDeviceProperties2(physical_, &properties);
  impl_->limits = properties.properties.limits;
  impl_->required_subgroup_size_stages = sizes.requiredSubgroupSizeStages;
  vkGetPhysicalDeviceMemoryProperties(physical_, &impl_->memory);
}

// Makes one compute queue, and up to two of the family that can only copy. Enables every feature that kernels may use
// and the device has.
Status Device::make_logical_device(bool statistics) {
  Impl& impl = *impl_;
  const QueueFamilies families = find_queue_families(physical_);
  compute_family_ = *families.compute;  // describe_device has checked that there is one
  transfer_family_ = families.transfer.value_or(*families.compute);
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
  add_queues(compute_family_, 1);
  if (families.transfer) add_queues(transfer_family_, transfer_queues);

  std::vector<const char*> extensions;
  impl.has_memory_budget = has_extension(physical_, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (impl.has_memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);

  DeviceFeatures features = features_to_enable(physical_);
  features.chain();
  impl.has_host_query_reset = features.v12.hostQueryReset != VK_FALSE;
  MatrixFeatures matrix_units;
  info_.matrix_units = has_matrix_units(impl.instance->handle(), physical_);
  if (info_.matrix_units) {
    extensions.push_back(kMatrixExtension);
    matrix_units.matrices = VK_TRUE;
    matrix_units.next = features.base.pNext;
    features.base.pNext = &matrix_units;
  }
  const Sharing sharing = sharing_of(physical_, kBufferUsage);
  if (sharing.possible) extensions.push_back(VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
  VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR told{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR};
  impl.statistics =
      statistics && has_extension(physical_, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
  if (impl.statistics) {
    extensions.push_back(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
    told.pipelineExecutableInfo = VK_TRUE;
    told.pNext = features.base.pNext;
    features.base.pNext = &told;
  }
  VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  info.pNext = &features.base;
  info.queueCreateInfoCount = static_cast<std::uint32_t>(queues.size());
  info.pQueueCreateInfos = queues.data();
  info.enabledExtensionCount = static_cast<std::uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  const VkResult result = vkCreateDevice(physical_, &info, nullptr, &device_);
  if (result != VK_SUCCESS) return vulkan_error(result, "opening " + info_.name);

  if (sharing.possible) {
    impl.get_memory_fd =
        reinterpret_cast<PFN_vkGetMemoryFdKHR>(vkGetDeviceProcAddr(device_, "vkGetMemoryFdKHR"));
    impl.shares_dedicated = sharing.dedicated;
  }
  info_.shares_memory = impl.get_memory_fd != nullptr;

  vkGetDeviceQueue(device_, compute_family_, 0, &compute_queue_);
  transfer_queue_ = download_queue_ = compute_queue_;
  if (families.transfer) {
    vkGetDeviceQueue(device_, transfer_family_, 0, &transfer_queue_);
    vkGetDeviceQueue(device_, transfer_family_, transfer_queues - 1, &download_queue_);
  }
  return {};
}

// Loads what the folder has for this device and driver; anything else in it costs only a compilation.
Status Device::load_pipeline_cache(const std::string& folder) {
  Impl& impl = *impl_;
  if (!folder.empty()) {
    VkPhysicalDeviceProperties properties{};
    vkGetPhysicalDeviceProperties(physical_, &properties);
    impl.cache_path = pipeline_cache_path(folder, info_);
    impl.saved_blob = read_pipeline_cache(impl.cache_path);
    if (!impl.saved_blob.empty() && !blob_fits(impl.saved_blob, properties)) {
      spdlog::warn(
          "pipeline cache {}: written for another device or driver; kernels are compiled again",
          impl.cache_path);
      impl.saved_blob.clear();
    }
  }
  VkPipelineCacheCreateInfo cache{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  cache.initialDataSize = impl.saved_blob.size();
  cache.pInitialData = impl.saved_blob.data();
  VkResult result = vkCreatePipelineCache(device_, &cache, nullptr, &impl.cache);
  if (result != VK_SUCCESS && cache.initialDataSize > 0) {
    spdlog::warn("pipeline cache {}: the driver refuses it; kernels are compiled again",
                 impl.cache_path);
    impl.saved_blob.clear();
    cache.initialDataSize = 0;
    cache.pInitialData = nullptr;
    result = vkCreatePipelineCache(device_, &cache, nullptr, &impl.cache);
  }
  if (result != VK_SUCCESS) return vulkan_error(result, "creating the pipeline cache");
  return {};
}

Device::~Device() {
  if (impl_ == nullptr || device_ == VK_NULL_HANDLE) return;
  if (abandoned_) {
    (void)impl_.release();  // its instance was destroyed, too
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

Status Device::check(const KernelSpec& spec) const {
  if (spec.push_bytes > kMaxPushBytes || spec.push_bytes % 4 != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("kernel {}: {} bytes of push constants; a multiple of 4 up to {} fits",
                             spec.name, spec.push_bytes, kMaxPushBytes));
  }
  if (spec.spirv.empty())
    return Error(ErrorCode::kInvalidArgument, fmt::format("kernel {}: no code", spec.name));
  const std::uint32_t size = spec.required_subgroup_size;
  const bool can_ask = (impl_->required_subgroup_size_stages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
  if (size != 0 && (size < info_.min_subgroup_size || size > info_.max_subgroup_size || !can_ask)) {
    const std::string has = can_ask ? fmt::format("has subgroups of {} to {}",
                                                  info_.min_subgroup_size, info_.max_subgroup_size)
                                    : "does not let a kernel ask for the size of its subgroups";
    return Error(
        ErrorCode::kUnsupported,
        fmt::format(
            "kernel {}: it runs in subgroups of {} invocations, and {} (driver {}) {}. Update "
            "the driver, or serve the model on another device (models[].device; `bulkhead "
            "doctor` lists them)",
            spec.name, size, info_.name, info_.driver, has));
  }
  return {};
}

Result<Kernel> Device::make_kernel(const KernelSpec& spec) {
  BULKHEAD_RETURN_IF_ERROR(check(spec));
  Impl& impl = *impl_;
  Kernel kernel;
  kernel.push_bytes = spec.push_bytes;
  {
    std::unique_lock lock(impl.mutex);
    // A kernel that failed in another thread is tried again here, so that this caller gets an error of its own.
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

  BULKHEAD_TRY(kernel.pipeline, compile(spec, kernel.layout));
  const std::lock_guard lock(impl.mutex);
  kernel.name = impl.names.emplace_back(spec.name).c_str();
  impl.kernels.emplace(spec, kernel);
  return kernel;
}

// Takes milliseconds to seconds, so it runs without the lock.
Result<VkPipeline> Device::compile(const KernelSpec& spec, VkPipelineLayout layout) {
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
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  info.layout = layout;
  if (impl_->statistics) info.flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module;
  info.stage.pName = "main";
  if (!entries.empty()) info.stage.pSpecializationInfo = &constants;
  if (spec.required_subgroup_size != 0) {
    info.stage.pNext = &subgroup;
    info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  VkPipeline pipeline = VK_NULL_HANDLE;
  result = vkCreateComputePipelines(device_, impl_->cache, 1, &info, nullptr, &pipeline);
  vkDestroyShaderModule(device_, module, nullptr);
  if (result != VK_SUCCESS)
    return vulkan_error(result, fmt::format("kernel {}: compiling it", spec.name));
  impl_->instance->name(device_, VK_OBJECT_TYPE_PIPELINE, reinterpret_cast<std::uint64_t>(pipeline),
                        spec.name);
  return pipeline;
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
  // A cache only grows, so one with the same size is the same.
  if (result == VK_SUCCESS && bytes == impl.saved_blob.size()) return {};
  std::vector<std::byte> blob(bytes);
  if (result == VK_SUCCESS && bytes > 0)
    result = vkGetPipelineCacheData(device_, impl.cache, &bytes, blob.data());
  // VK_INCOMPLETE: another thread compiled meanwhile; the data that came are complete in themselves.
  if (result != VK_SUCCESS && result != VK_INCOMPLETE)
    return vulkan_error(result, "reading the pipeline cache");
  blob.resize(bytes);
  if (blob == impl.saved_blob) return {};
  BULKHEAD_RETURN_IF_ERROR(write_pipeline_cache(impl.cache_path, blob));
  impl.saved_blob = std::move(blob);
  return {};
}

}  // namespace bulkhead::gpu
