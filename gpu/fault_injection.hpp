// Makes the n-th Vulkan call of certain kinds (those that fail in practice) return an error, so that tests can
// exercise every error path. Compiled in only with BULKHEAD_FAULT_INJECTION; without it `injected` is a constant, and
// the functions below are the plain calls.
//
// The environment variable BULKHEAD_FAIL_GPU_CALL=N[:KIND[:RESULT]] arms it: the N-th call (from 1) of KIND
// (allocate, submit, wait, create; by default any of the first three) fails with RESULT (device_lost, out_of_memory,
// timeout; by default the most common error of such a call).
//
// The calls are also points of config/base/fault_points.hpp: gpu.allocate, gpu.submit, gpu.wait and gpu.create. They
// support all of its actions but "corrupt".
//
// Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <span>

#include <vulkan/vulkan.h>

namespace bulkhead::gpu::fault {

// kCreate: creation of semaphores and command pools, which happens only at the start; kAny does not include it.
enum class Call : std::uint32_t { kAllocate = 1, kSubmit = 2, kWait = 4, kAny = 7, kCreate = 8 };

#ifdef BULKHEAD_FAULT_INJECTION
inline constexpr bool kCompiledIn = true;
// Returns the result that the call must return without being made; VK_SUCCESS: make the call.
VkResult injected(Call call);
// Arms the n-th call of `kinds` from now on to fail, once. n = 0 disarms. With VK_SUCCESS as `result` it fails with
// the default error of its kind.
void arm(std::uint64_t n, Call kinds = Call::kAny, VkResult result = VK_SUCCESS);
// Returns whether the armed failure has happened.
bool fired();
#else
inline constexpr bool kCompiledIn = false;
inline constexpr VkResult injected(Call) {
  return VK_SUCCESS;
}
inline void arm(std::uint64_t, Call = Call::kAny, VkResult = VK_SUCCESS) {}
inline bool fired() {
  return false;
}
#endif

inline VkResult allocate_memory(VkDevice device, const VkMemoryAllocateInfo& info,
                                VkDeviceMemory* memory) {
  if (const VkResult result = injected(Call::kAllocate); result != VK_SUCCESS) return result;
  return vkAllocateMemory(device, &info, nullptr, memory);
}

inline VkResult create_semaphore(VkDevice device, const VkSemaphoreCreateInfo& info,
                                 VkSemaphore* semaphore) {
  if (const VkResult result = injected(Call::kCreate); result != VK_SUCCESS) return result;
  return vkCreateSemaphore(device, &info, nullptr, semaphore);
}

inline VkResult create_command_pool(VkDevice device, const VkCommandPoolCreateInfo& info,
                                    VkCommandPool* pool) {
  if (const VkResult result = injected(Call::kCreate); result != VK_SUCCESS) return result;
  return vkCreateCommandPool(device, &info, nullptr, pool);
}

inline VkResult queue_submit(VkQueue queue, std::span<const VkSubmitInfo2> submits, VkFence fence) {
  if (const VkResult result = injected(Call::kSubmit); result != VK_SUCCESS) return result;
  return vkQueueSubmit2(queue, static_cast<std::uint32_t>(submits.size()), submits.data(), fence);
}

inline VkResult wait_fence(VkDevice device, VkFence fence, std::uint64_t timeout_ns) {
  if (const VkResult result = injected(Call::kWait); result != VK_SUCCESS) return result;
  return vkWaitForFences(device, 1, &fence, VK_TRUE, timeout_ns);
}

inline VkResult wait_semaphores(VkDevice device, const VkSemaphoreWaitInfo& info,
                                std::uint64_t timeout_ns) {
  if (const VkResult result = injected(Call::kWait); result != VK_SUCCESS) return result;
  return vkWaitSemaphores(device, &info, timeout_ns);
}

}  // namespace bulkhead::gpu::fault
