// Submits command buffers and waits for them in bounded time. The command ring and the blit queue share it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <vulkan/vulkan.h>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// A timeline semaphore. It is not destroyed if its device is abandoned; this holds for everything in this file.
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

// Turns the result of a wait into a Status: kDeadlineExceeded for VK_TIMEOUT. `what` names the work in the message.
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
// Returns how many command buffers this process has begun to record, on all devices.
std::uint64_t commands_begun();

// Makes everything before it visible to everything after it: shaders, transfers, indirect arguments.
void full_barrier(VkCommandBuffer commands);
// Makes what earlier dispatches have written visible to later dispatches.
void compute_barrier(VkCommandBuffer commands);
// Makes what shaders and transfers have written visible to the host, once a fence or semaphore reports it as done.
void host_barrier(VkCommandBuffer commands);
// transfer_barrier() does what full_barrier() does, and transfer_to_host_barrier() what host_barrier() does, on a queue
// that has no shaders.
void transfer_barrier(VkCommandBuffer commands);
void transfer_to_host_barrier(VkCommandBuffer commands);

struct Submission {
  std::span<const VkCommandBuffer> commands;  // at most CommandRing::kMostTogether
  std::span<const CommandRing::After> after;
  VkSemaphore signal = VK_NULL_HANDLE;  // a timeline semaphore, which is set to `value`
  std::uint64_t value = 0;
  VkFence fence = VK_NULL_HANDLE;
};
// Hands at most CommandRing::kMostBatches submissions to the queue in one call. Only the last one may have a fence.
Status submit_commands(VkQueue queue, std::span<const Submission> submissions, const char* what);

// Polls the fence for up to 2 ms, as drivers of other interfaces do by default. A host that sleeps learns of the end
// 20 us later after a copy and 80 us later after a step, and then runs slower for a while (H200). The caller must
// wait afterwards in any case. Don't poll with a CPU device, which needs the cores itself.
void poll(const Device& device, VkFence fence);

// Runs work as a plain program does: makes a new command buffer and a new fence, submits once, waits, and frees both.
Status run_once(CommandPool& pool, VkQueue queue, std::uint32_t timeout_ms, const char* what,
                const std::function<void(VkCommandBuffer)>& record);

// For teardown: returns whether the semaphore reached `value` within timeout_ms (at most kLongestDrainMs). If not,
// the function logs that and abandons the device, so memory that the device may still use is not freed. Failures are
// not injected here.
inline constexpr std::uint32_t kLongestDrainMs = 10000;
bool drained(Device& device, VkSemaphore semaphore, std::uint64_t value, std::uint32_t timeout_ms,
             const char* what);

// Call this before semaphores are destroyed, once all work on them is drained: it waits until the queues are idle.
// Mesa's queue thread (22.3) still touches the semaphores of a submission after its end is visible, and crashes if
// they are gone. If a queue hangs with other work, the function abandons the device after as long as drained() waits,
// and returns false. For an abandoned device it does nothing and returns true.
bool settle_queues(Device& device, std::uint32_t timeout_ms);

// The same as drained() for the fences of TransferLane.
bool drained(Device& device, VkFence fence, std::uint32_t timeout_ms, const char* what);

inline constexpr std::uint64_t kNanosecondsPerMillisecond = 1000000;

}  // namespace bulkhead::gpu
