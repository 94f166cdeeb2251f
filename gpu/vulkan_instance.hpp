// The VkInstance of one Device or one listing, with the validation layer's messages counted and
// logged.
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
  // kNotFound with advice when there is no driver, or no validation layer where it is asked for.
  static Result<std::unique_ptr<Instance>> create(bool validation);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  VkInstance handle() const { return instance_; }
  // kNotFound with advice when there is none.
  Result<std::vector<VkPhysicalDevice>> devices() const;
  std::uint64_t validation_errors() const {
    return validation_errors_.load(std::memory_order_relaxed);
  }
  // Names an object in validation messages and captures; nothing without validation.
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

// Points Mesa's own shader cache into `folder`, and switches NVIDIA's own off, where the user's environment says
// nothing else. Mesa's software driver keeps nothing in a VkPipelineCache; without its own cache every start compiles
// every kernel again. Changes the environment: call while the process has one thread, before the first VkInstance.
void keep_driver_caches_in(const std::string& folder);

}  // namespace bulkhead::gpu
