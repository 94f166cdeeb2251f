// The VkInstance of one Device or of one listing. It counts and logs the validation layer's messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <vulkan/vulkan.h>

#include "config/base/error.hpp"

namespace bulkhead::gpu {

class Instance {
 public:
  // kNotFound, with advice, if there is no driver, or if validation is wanted and there is no validation layer.
  static Result<std::unique_ptr<Instance>> create(bool validation);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  VkInstance handle() const { return instance_; }
  // kNotFound, with advice, if there is no device.
  Result<std::vector<VkPhysicalDevice>> devices() const;
  std::uint64_t validation_errors() const {
    return validation_errors_.load(std::memory_order_relaxed);
  }
  // Names an object for validation messages and captures; does nothing without validation.
  void name(VkDevice device, VkObjectType type, std::uint64_t handle, const char* name) const;

 private:
  Instance() = default;
  static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                   VkDebugUtilsMessageTypeFlagsEXT types,
                                                   const VkDebugUtilsMessengerCallbackDataEXT* data,
                                                   void* self);

  VkInstance instance_ = VK_NULL_HANDLE;
  VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
  PFN_vkSetDebugUtilsObjectNameEXT set_name_ = nullptr;
  std::atomic<std::uint64_t> validation_errors_ = 0;
};

// Points Mesa's own shader cache into `folder` and switches off NVIDIA's own, unless the user's environment says
// otherwise. Mesa's software driver keeps nothing in a VkPipelineCache; without its own cache every start compiles
// every kernel again. This changes the environment: call it while the process has one thread, before the first
// VkInstance.
void keep_driver_caches_in(const std::string& folder);

}  // namespace bulkhead::gpu
