// VkResult -> Error.
#include <fmt/format.h>

#include "gpu/device.hpp"

namespace bulkhead::gpu {

Error Device::vulkan_error(VkResult result, const std::string& what) {
  switch (result) {
    case VK_ERROR_DEVICE_LOST:
      return Error(ErrorCode::kDeviceLost,
                   what + ": device lost: the GPU or its driver stopped working");
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return Error(ErrorCode::kResourceExhausted, what + ": out of device memory");
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return Error(ErrorCode::kResourceExhausted, what + ": out of host memory");
    case VK_ERROR_TOO_MANY_OBJECTS:
      return Error(ErrorCode::kResourceExhausted, what + ": too many Vulkan objects");
    case VK_TIMEOUT:
    case VK_NOT_READY:
      return Error(ErrorCode::kDeadlineExceeded, what + ": the device did not finish in time");
    case VK_ERROR_INITIALIZATION_FAILED:
      return Error(ErrorCode::kUnavailable, what + ": the driver could not initialise");
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return Error(ErrorCode::kNotFound, what + ": no Vulkan driver is installed");
    case VK_ERROR_LAYER_NOT_PRESENT:
      return Error(ErrorCode::kNotFound, what + ": a Vulkan layer is missing");
    case VK_ERROR_EXTENSION_NOT_PRESENT:
      return Error(ErrorCode::kUnsupported, what + ": a Vulkan extension is missing");
    case VK_ERROR_FEATURE_NOT_PRESENT:
      return Error(ErrorCode::kUnsupported, what + ": a Vulkan feature is missing");
    case VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS:
    case VK_ERROR_FRAGMENTATION:
      return Error(ErrorCode::kResourceExhausted, what + ": no room in the device's address space");
    default:
      return Error(ErrorCode::kInternal,
                   fmt::format("{}: Vulkan error {}", what, static_cast<int>(result)));
  }
}

}  // namespace bulkhead::gpu
