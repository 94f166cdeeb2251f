// VkResult -> Error.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "gpu/device.hpp"

namespace bulkhead::gpu {
namespace {

struct ResultRow {
  VkResult result;
  ErrorCode code;
  const char* text;
};
// Vulkan and its extensions add results, so a result without a row is an internal error that shows its
// number.
constexpr ResultRow kResultRows[] = {
    {VK_ERROR_DEVICE_LOST, ErrorCode::kDeviceLost,
     "device lost: the GPU or its driver stopped working"},
    {VK_ERROR_OUT_OF_DEVICE_MEMORY, ErrorCode::kResourceExhausted, "out of device memory"},
    {VK_ERROR_OUT_OF_HOST_MEMORY, ErrorCode::kResourceExhausted, "out of host memory"},
    {VK_ERROR_TOO_MANY_OBJECTS, ErrorCode::kResourceExhausted, "too many Vulkan objects"},
    {VK_TIMEOUT, ErrorCode::kDeadlineExceeded, "the device did not finish in time"},
    {VK_NOT_READY, ErrorCode::kDeadlineExceeded, "the device did not finish in time"},
    {VK_ERROR_INITIALIZATION_FAILED, ErrorCode::kUnavailable, "the driver could not initialise"},
    {VK_ERROR_INCOMPATIBLE_DRIVER, ErrorCode::kNotFound, "no Vulkan driver is installed"},
    {VK_ERROR_LAYER_NOT_PRESENT, ErrorCode::kNotFound, "a Vulkan layer is missing"},
    {VK_ERROR_EXTENSION_NOT_PRESENT, ErrorCode::kUnsupported, "a Vulkan extension is missing"},
    {VK_ERROR_FEATURE_NOT_PRESENT, ErrorCode::kUnsupported, "a Vulkan feature is missing"},
    {VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS, ErrorCode::kResourceExhausted,
     "no room in the device's address space"},
    {VK_ERROR_FRAGMENTATION, ErrorCode::kResourceExhausted,
     "no room in the device's address space"},
};

}  // namespace

Error Device::vulkan_error(VkResult result, const std::string& what) {
  const auto* const row = std::ranges::find(kResultRows, result, &ResultRow::result);
  if (row != std::end(kResultRows)) return Error(row->code, what + ": " + row->text);
  return Error(ErrorCode::kInternal,
               fmt::format("{}: Vulkan error {}", what, static_cast<int>(result)));
}

}  // namespace bulkhead::gpu
