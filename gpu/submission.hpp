// Submitting command buffers and waiting for them, in bounded time: what the command ring and the
// blit queue share.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <vulkan/vulkan.h>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// A timeline semaphore. Like everything here, it is left alone when its device is abandoned.
class Timeline {
 public:
  Timeline() = default;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline();
  Status init(Device& device);

  VkSemaphore handle() const { return semaphore_; }
  Result<std::uint64_t> reached() const;
  Status wait(std::uint64_t value, std::uint32_t timeout_ms, const char* what) const;
  Status signal(std::uint64_t value);  // from the host

 private:
  Device* device_ = nullptr;
  VkSemaphore semaphore_ = VK_NULL_HANDLE;
};

Status wait_for(Device& device, const CommandRing::After& after, std::uint32_t timeout_ms,
                const char* what);

// What a wait that ended so says: kDeadlineExceeded for VK_TIMEOUT. `what` names the work that was
// waited for.
Status waited(VkResult result, std::uint32_t timeout_ms, const char* what);

// A command pool whose buffers are reset one by one.
class CommandPool {
 public:
  CommandPool() = default;
  CommandPool(const CommandPool&) = delete;
  CommandPool& operator=(const CommandPool&) = delete;
  ~CommandPool();
  Status init(Device& device, std::uint32_t family);

  Device& device() const { return *device_; }
  Result<VkCommandBuffer> allocate();
  void free(VkCommandBuffer commands);

 private:
  Device* device_ = nullptr;
  VkCommandPool pool_ = VK_NULL_HANDLE;
};

Status begin_commands(VkCommandBuffer commands, VkCommandBufferUsageFlags usage);
Status end_commands(VkCommandBuffer commands);
// Command buffers that this process has begun to record, of all devices.
std::uint64_t commands_begun();

// Everything before is visible to everything after: shaders, transfers, indirect arguments.
void full_barrier(VkCommandBuffer commands);
// Between dispatches alone.
void compute_barrier(VkCommandBuffer commands);
// What shaders and transfers have written becomes visible to the host, once a fence or semaphore
// says it is done.
void host_barrier(VkCommandBuffer commands);
// The same two for a queue that has no shaders.
void transfer_barrier(VkCommandBuffer commands);
void transfer_to_host_barrier(VkCommandBuffer commands);

struct Submission {
  VkCommandBuffer commands = VK_NULL_HANDLE;
  std::span<const CommandRing::After> after;
  VkSemaphore signal = VK_NULL_HANDLE;  // timeline, to `value`
  std::uint64_t value = 0;
  VkFence fence = VK_NULL_HANDLE;
};
Status submit_commands(VkQueue queue, const Submission& submission, const char* what);

// Polls the fence for up to 2 ms, as drivers of other interfaces do by default: a host that sleeps
// hears of the end 20 us later after a copy and 80 us later after a step, and is slower for a while
// (H200). The caller must wait afterwards in any case. Don't poll with a CPU device, which needs the
// cores.
void poll(const Device& device, VkFence fence);

// As a plain program does it: a new command buffer, one submit, a new fence, a wait, and all of it
// freed.
Status run_once(CommandPool& pool, VkQueue queue, std::uint32_t timeout_ms, const char* what,
                const std::function<void(VkCommandBuffer)>& record);

// At teardown: whether the semaphore reached `value` within timeout_ms, at most kLongestDrainMs. If it
// did not, this logs that and abandons the device, so what the device may still use is not freed.
// Failures are not injected here.
inline constexpr std::uint32_t kLongestDrainMs = 10000;
bool drained(Device& device, VkSemaphore semaphore, std::uint64_t value, std::uint32_t timeout_ms,
             const char* what);

// Before semaphores are destroyed, once all work on them is drained: waits until the queues are
// idle. Mesa's queue thread (22.3) still touches the semaphores of a submission after its end can
// be seen, and crashes when they are gone. A queue that hangs with the work of others abandons the
// device after as long as drained() waits: false. True, and nothing, for an abandoned device.
bool settle_queues(Device& device, std::uint32_t timeout_ms);

// For TransferLane's fences: as drained().
bool drained(Device& device, VkFence fence, std::uint32_t timeout_ms, const char* what);

inline constexpr std::uint64_t kNanosecondsPerMillisecond = 1000000;

}  // namespace bulkhead::gpu
