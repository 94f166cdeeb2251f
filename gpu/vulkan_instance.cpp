#include "gpu/vulkan_instance.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>

#include "config/base/log.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {
namespace {

constexpr const char* kValidationLayer = "VK_LAYER_KHRONOS_validation";
constexpr const char* kNoDriverAdvice =
    "no Vulkan device was found: install a driver for your GPU, or mesa-vulkan-drivers to run on "
    "the CPU "
    "(apt-get install mesa-vulkan-drivers); VK_LOADER_DEBUG=error says why a driver that is "
    "installed does not load";

bool has_layer(const char* name) {
  std::uint32_t count = 0;
  if (vkEnumerateInstanceLayerProperties(&count, nullptr) != VK_SUCCESS) return false;
  std::vector<VkLayerProperties> layers(count);
  if (vkEnumerateInstanceLayerProperties(&count, layers.data()) < 0) return false;
  for (const VkLayerProperties& layer : layers) {
    if (std::strcmp(layer.layerName, name) == 0) return true;
  }
  return false;
}

void set_unless_set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), /*overwrite=*/0);
}

}  // namespace

void keep_driver_caches_in(const std::string& folder) {
  if (folder.empty()) return;
  // Mesa reads MESA_GLSL_CACHE_DIR in older releases and MESA_SHADER_CACHE_DIR in newer ones, and
  // warns about the older name.
  if (std::getenv("MESA_GLSL_CACHE_DIR") == nullptr)
    set_unless_set("MESA_SHADER_CACHE_DIR", folder);
  // Mesa 25 by default keeps many kernels in one file and changes that file with each new kernel. After a worker's
  // death the daemon deletes what changed late (orchestrator/supervisor/cache_seal.hpp), so the successor would compile
  // the file's other kernels, too. A file for each kernel, as Mesa 22 has, loses only the late kernels.
  set_unless_set("MESA_DISK_CACHE_MULTI_FILE", "1");
  // NVIDIA's driver keeps whole kernels in a VkPipelineCache. With a disk cache of its own beside it, it took 9 ms
  // for each kept kernel, one after the other, instead of 2.5 (driver 580, H200).
  set_unless_set("__GL_SHADER_DISK_CACHE", "0");
}

Result<std::unique_ptr<Instance>> Instance::create(bool validation) {
  std::uint32_t loader_version = VK_API_VERSION_1_0;
  vkEnumerateInstanceVersion(&loader_version);
  if (loader_version < VK_API_VERSION_1_3) {
    return Error(
        ErrorCode::kUnsupported,
        fmt::format(
            "the Vulkan loader (libvulkan1) is version {}.{}, Bulkhead needs 1.3: update it",
            VK_API_VERSION_MAJOR(loader_version), VK_API_VERSION_MINOR(loader_version)));
  }

  VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  application.pApplicationName = "bulkhead";
  application.apiVersion = VK_API_VERSION_1_3;
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  info.pApplicationInfo = &application;

  std::unique_ptr<Instance> self(new Instance());
  const char* extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
  VkDebugUtilsMessengerCreateInfoEXT messages{
      VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT};
  messages.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                             VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
  messages.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
  messages.pfnUserCallback = &Instance::on_message;
  messages.pUserData = self.get();
  if (validation) {
    if (!has_layer(kValidationLayer)) {
      return Error(ErrorCode::kNotFound,
                   "Vulkan validation was asked for, but its layer is not installed "
                   "(apt-get install vulkan-validationlayers)");
    }
    info.enabledLayerCount = 1;
    info.ppEnabledLayerNames = &kValidationLayer;
    info.enabledExtensionCount = 1;
    info.ppEnabledExtensionNames = &extension;
    info.pNext = &messages;  // also covers the creation and the end of the instance itself
  }

  const VkResult result = vkCreateInstance(&info, nullptr, &self->instance_);
  if (result == VK_ERROR_INCOMPATIBLE_DRIVER) return Error(ErrorCode::kNotFound, kNoDriverAdvice);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "starting Vulkan");

  if (validation) {
    const auto create = reinterpret_cast<PFN_vkCreateDebugUtilsMessengerEXT>(
        vkGetInstanceProcAddr(self->instance_, "vkCreateDebugUtilsMessengerEXT"));
    self->set_name_ = reinterpret_cast<PFN_vkSetDebugUtilsObjectNameEXT>(
        vkGetInstanceProcAddr(self->instance_, "vkSetDebugUtilsObjectNameEXT"));
    const VkResult made = create == nullptr
                              ? VK_ERROR_EXTENSION_NOT_PRESENT
                              : create(self->instance_, &messages, nullptr, &self->messenger_);
    if (made != VK_SUCCESS) return Device::vulkan_error(made, "listening to Vulkan validation");
  }
  return self;
}

Instance::~Instance() {
  if (messenger_ != VK_NULL_HANDLE) {
    const auto destroy = reinterpret_cast<PFN_vkDestroyDebugUtilsMessengerEXT>(
        vkGetInstanceProcAddr(instance_, "vkDestroyDebugUtilsMessengerEXT"));
    if (destroy != nullptr) destroy(instance_, messenger_, nullptr);
  }
  if (instance_ != VK_NULL_HANDLE) vkDestroyInstance(instance_, nullptr);
}

Result<std::vector<VkPhysicalDevice>> Instance::devices() const {
  std::uint32_t count = 0;
  VkResult result = vkEnumeratePhysicalDevices(instance_, &count, nullptr);
  std::vector<VkPhysicalDevice> devices(count);
  if (result == VK_SUCCESS && count > 0) {
    result = vkEnumeratePhysicalDevices(instance_, &count, devices.data());
    devices.resize(count);
  }
  // A driver without its hardware fails to initialise; for the user that is "no device".
  if (result == VK_ERROR_INITIALIZATION_FAILED || (result == VK_SUCCESS && devices.empty())) {
    return Error(ErrorCode::kNotFound, kNoDriverAdvice);
  }
  if (result < 0) return Device::vulkan_error(result, "listing Vulkan devices");
  return devices;
}

void Instance::name(VkDevice device, VkObjectType type, std::uint64_t handle,
                    const char* name) const {
  if (set_name_ == nullptr) return;
  VkDebugUtilsObjectNameInfoEXT info{VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT};
  info.objectType = type;
  info.objectHandle = handle;
  info.pObjectName = name;
  set_name_(device, &info);
}

VkBool32 Instance::on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                              VkDebugUtilsMessageTypeFlagsEXT,
                              const VkDebugUtilsMessengerCallbackDataEXT* data, void* self) {
  if ((severity & VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT) != 0) {
    static_cast<Instance*>(self)->validation_errors_.fetch_add(1, std::memory_order_relaxed);
    spdlog::error("vulkan validation: {}", data->pMessage);
  } else {
    spdlog::warn("vulkan validation: {}", data->pMessage);
  }
  return VK_FALSE;
}

}  // namespace bulkhead::gpu
