#include "gpu/submission.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <iterator>

#include "config/base/log.hpp"
#include "gpu/fault_injection.hpp"

namespace bulkhead::gpu {
namespace {

void barrier(VkCommandBuffer commands, VkPipelineStageFlags2 from_stages, VkAccessFlags2 from,
             VkPipelineStageFlags2 to_stages, VkAccessFlags2 to) {
  VkMemoryBarrier2 memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER_2};
  memory.srcStageMask = from_stages;
  memory.srcAccessMask = from;
  memory.dstStageMask = to_stages;
  memory.dstAccessMask = to;
  VkDependencyInfo dependency{VK_STRUCTURE_TYPE_DEPENDENCY_INFO};
  dependency.memoryBarrierCount = 1;
  dependency.pMemoryBarriers = &memory;
  vkCmdPipelineBarrier2(commands, &dependency);
}

std::atomic<std::uint64_t> begun = 0;

constexpr VkPipelineStageFlags2 kWork =
    VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
constexpr VkAccessFlags2 kWrites =
    VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT;
constexpr VkAccessFlags2 kReads =
    VK_ACCESS_2_SHADER_STORAGE_READ_BIT | VK_ACCESS_2_TRANSFER_READ_BIT;

// Returns how long to wait for a device that may already have used up a whole timeout: at most kLongestDrainMs.
std::uint64_t drain_ns(std::uint32_t timeout_ms) {
  return std::min(timeout_ms, kLongestDrainMs) * kNanosecondsPerMillisecond;
}

void abandon_hung(Device& device, const char* what) {
  if (!device.abandoned()) {
    spdlog::error("{}: the device hangs, so its objects are not freed; end this process", what);
  }
  device.abandon();
}

}  // namespace

Status waited(VkResult result, std::uint32_t timeout_ms, const char* what) {
  if (result == VK_SUCCESS) return {};
  if (result == VK_TIMEOUT) {
    return Error(
        ErrorCode::kDeadlineExceeded,
        fmt::format("{}: the device did not finish within {} ms; one that is only slow needs a "
                    "longer gpu_optimizations.command_buffer_ring.timeout_ms (0: by "
                    "isolation.heartbeat_timeout_ms)",
                    what, timeout_ms));
  }
  return Device::vulkan_error(result, what);
}

Timeline::~Timeline() {
  if (semaphore_ == VK_NULL_HANDLE || device_->abandoned()) return;
  vkDestroySemaphore(device_->handle(), semaphore_, nullptr);
}

Status Timeline::init(Device& device) {
  device_ = &device;
  VkSemaphoreTypeCreateInfo type{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO};
  type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  VkSemaphoreCreateInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
  info.pNext = &type;
  const VkResult result = fault::create_semaphore(device.handle(), info, &semaphore_);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "creating a timeline semaphore");
  return {};
}

Result<std::uint64_t> Timeline::reached() const {
  std::uint64_t value = 0;
  const VkResult result = vkGetSemaphoreCounterValue(device_->handle(), semaphore_, &value);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "reading a timeline semaphore");
  return value;
}

Status Timeline::wait(std::uint64_t value, std::uint32_t timeout_ms, const char* what) const {
  VkSemaphoreWaitInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
  info.semaphoreCount = 1;
  info.pSemaphores = &semaphore_;
  info.pValues = &value;
  return waited(
      fault::wait_semaphores(device_->handle(), info, timeout_ms * kNanosecondsPerMillisecond),
      timeout_ms, what);
}

Status Timeline::signal(std::uint64_t value) {
  VkSemaphoreSignalInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO};
  info.semaphore = semaphore_;
  info.value = value;
  const VkResult result = vkSignalSemaphore(device_->handle(), &info);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "signalling a timeline semaphore");
  return {};
}

Status wait_for(Device& device, const CommandRing::After& after, std::uint32_t timeout_ms,
                const char* what) {
  if (after.semaphore == VK_NULL_HANDLE) return {};
  VkSemaphoreWaitInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
  info.semaphoreCount = 1;
  info.pSemaphores = &after.semaphore;
  info.pValues = &after.value;
  return waited(
      fault::wait_semaphores(device.handle(), info, timeout_ms * kNanosecondsPerMillisecond),
      timeout_ms, what);
}

CommandPool::~CommandPool() {
  if (pool_ == VK_NULL_HANDLE || device_->abandoned()) return;
  vkDestroyCommandPool(device_->handle(), pool_, nullptr);
}

Status CommandPool::init(Device& device, std::uint32_t family) {
  device_ = &device;
  VkCommandPoolCreateInfo info{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  info.queueFamilyIndex = family;
  const VkResult result = fault::create_command_pool(device.handle(), info, &pool_);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "creating a command pool");
  return {};
}

Result<VkCommandBuffer> CommandPool::allocate() {
  VkCommandBufferAllocateInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
  info.commandPool = pool_;
  info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  info.commandBufferCount = 1;
  VkCommandBuffer commands = VK_NULL_HANDLE;
  const VkResult result = vkAllocateCommandBuffers(device_->handle(), &info, &commands);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "allocating a command buffer");
  return commands;
}

void CommandPool::free(VkCommandBuffer commands) {
  if (pool_ != VK_NULL_HANDLE && commands != VK_NULL_HANDLE)
    vkFreeCommandBuffers(device_->handle(), pool_, 1, &commands);
}

std::uint64_t commands_begun() {
  return begun.load(std::memory_order_relaxed);
}

Status begin_commands(VkCommandBuffer commands, VkCommandBufferUsageFlags usage) {
  begun.fetch_add(1, std::memory_order_relaxed);
  VkCommandBufferBeginInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  info.flags = usage;
  const VkResult result = vkBeginCommandBuffer(commands, &info);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "starting to record commands");
  return {};
}

Status end_commands(VkCommandBuffer commands) {
  const VkResult result = vkEndCommandBuffer(commands);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "recording commands");
  return {};
}

void full_barrier(VkCommandBuffer commands) {
  barrier(commands, kWork, kWrites, kWork | VK_PIPELINE_STAGE_2_DRAW_INDIRECT_BIT,
          kReads | kWrites | VK_ACCESS_2_INDIRECT_COMMAND_READ_BIT);
}

void compute_barrier(VkCommandBuffer commands) {
  barrier(commands, VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT,
          VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
          VK_ACCESS_2_SHADER_STORAGE_READ_BIT | VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT);
}

void host_barrier(VkCommandBuffer commands) {
  barrier(commands, kWork, kWrites, VK_PIPELINE_STAGE_2_HOST_BIT, VK_ACCESS_2_HOST_READ_BIT);
}

void transfer_barrier(VkCommandBuffer commands) {
  barrier(commands, VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT, VK_ACCESS_2_TRANSFER_WRITE_BIT,
          VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
          VK_ACCESS_2_TRANSFER_READ_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT);
}

void transfer_to_host_barrier(VkCommandBuffer commands) {
  barrier(commands, VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT, VK_ACCESS_2_TRANSFER_WRITE_BIT,
          VK_PIPELINE_STAGE_2_HOST_BIT, VK_ACCESS_2_HOST_READ_BIT);
}

namespace {

// What vkQueueSubmit2 reads of a submission. It must not move once fill() has run.
struct SubmitInfo {
  std::array<VkSemaphoreSubmitInfo, 4> waits;
  VkSemaphoreSubmitInfo signal{VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO};
  std::array<VkCommandBufferSubmitInfo, CommandRing::kMostTogether> commands{};

  Status fill(const Submission& submission, VkSubmitInfo2& info, const char* what) {
    std::uint32_t wait_count = 0;
    for (const CommandRing::After& after : submission.after) {
      if (after.semaphore == VK_NULL_HANDLE) continue;
      if (wait_count == waits.size())
        return Error(ErrorCode::kInternal, std::string(what) + ": too many semaphores to wait for");
      VkSemaphoreSubmitInfo wait{VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO};
      wait.semaphore = after.semaphore;
      wait.value = after.value;
      wait.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
      waits[wait_count++] = wait;
    }
    signal.semaphore = submission.signal;
    signal.value = submission.value;
    signal.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
    if (submission.commands.size() > commands.size())
      return Error(ErrorCode::kInternal, std::string(what) + ": too many command buffers");
    for (std::size_t i = 0; i < submission.commands.size(); ++i) {
      commands[i].sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO;
      commands[i].commandBuffer = submission.commands[i];
    }
    info = {VK_STRUCTURE_TYPE_SUBMIT_INFO_2};
    info.waitSemaphoreInfoCount = wait_count;
    info.pWaitSemaphoreInfos = waits.data();
    info.commandBufferInfoCount = static_cast<std::uint32_t>(submission.commands.size());
    info.pCommandBufferInfos = commands.data();
    info.signalSemaphoreInfoCount = submission.signal == VK_NULL_HANDLE ? 0 : 1;
    info.pSignalSemaphoreInfos = &signal;
    return {};
  }
};

}  // namespace

Status submit_commands(VkQueue queue, std::span<const Submission> submissions, const char* what) {
  std::array<SubmitInfo, CommandRing::kMostBatches> parts;
  std::array<VkSubmitInfo2, CommandRing::kMostBatches> infos;
  if (submissions.empty() || submissions.size() > parts.size())
    return Error(ErrorCode::kInternal, std::string(what) + ": too many submissions, or none");
  for (std::size_t i = 0; i < submissions.size(); ++i)
    BULKHEAD_RETURN_IF_ERROR(parts[i].fill(submissions[i], infos[i], what));
  const VkResult result = fault::queue_submit(queue, std::span(infos).first(submissions.size()),
                                              submissions.back().fence);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, what);
  return {};
}

void poll(const Device& device, VkFence fence) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongest{2};
  if (device.info().kind == DeviceKind::kCpu) return;
  const Clock::time_point end = Clock::now() + kLongest;
  while (vkGetFenceStatus(device.handle(), fence) == VK_NOT_READY && Clock::now() < end) {
  }
}

Status run_once(CommandPool& pool, VkQueue queue, std::uint32_t timeout_ms, const char* what,
                const std::function<void(VkCommandBuffer)>& record) {
  const VkDevice device = pool.device().handle();
  BULKHEAD_TRY(const VkCommandBuffer commands, pool.allocate());
  VkFenceCreateInfo fence_info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  VkFence fence = VK_NULL_HANDLE;
  bool in_flight = false;
  const auto run = [&]() -> Status {
    const VkResult made = vkCreateFence(device, &fence_info, nullptr, &fence);
    if (made != VK_SUCCESS) return Device::vulkan_error(made, "creating a fence");
    BULKHEAD_RETURN_IF_ERROR(begin_commands(commands, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT));
    record(commands);
    BULKHEAD_RETURN_IF_ERROR(end_commands(commands));
    Submission submission;
    submission.commands = {&commands, 1};
    submission.fence = fence;
    BULKHEAD_RETURN_IF_ERROR(submit_commands(queue, {&submission, 1}, what));
    in_flight = true;
    const VkResult done = fault::wait_fence(device, fence, timeout_ms * kNanosecondsPerMillisecond);
    in_flight = done != VK_SUCCESS;
    return waited(done, timeout_ms, what);
  };
  const Status status = run();
  // After a failed wait the device may still be working: wait once more in bounded time. If it goes on, free nothing
  // that it uses.
  if (in_flight &&
      vkWaitForFences(device, 1, &fence, VK_TRUE, drain_ns(timeout_ms)) == VK_TIMEOUT) {
    abandon_hung(pool.device(), what);
    return status;
  }
  if (fence != VK_NULL_HANDLE) vkDestroyFence(device, fence, nullptr);
  pool.free(commands);
  return status;
}

bool drained(Device& device, VkSemaphore semaphore, std::uint64_t value, std::uint32_t timeout_ms,
             const char* what) {
  VkSemaphoreWaitInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
  info.semaphoreCount = 1;
  info.pSemaphores = &semaphore;
  info.pValues = &value;
  // A lost device counts as drained, because it no longer runs anything.
  if (vkWaitSemaphores(device.handle(), &info, drain_ns(timeout_ms)) != VK_TIMEOUT) return true;
  abandon_hung(device, what);
  return false;
}

bool drained(Device& device, VkFence fence, std::uint32_t timeout_ms, const char* what) {
  if (vkWaitForFences(device.handle(), 1, &fence, VK_TRUE, drain_ns(timeout_ms)) != VK_TIMEOUT)
    return true;
  abandon_hung(device, what);
  return false;
}

bool settle_queues(Device& device, std::uint32_t timeout_ms) {
  if (device.abandoned()) return true;
  const VkQueue queues[] = {device.compute_queue(), device.transfer_queue(),
                            device.download_queue()};
  for (std::size_t i = 0; i < std::size(queues); ++i) {
    if (std::find(queues, queues + i, queues[i]) != queues + i) continue;
    const VkFenceCreateInfo info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO, nullptr, 0};
    VkFence fence = VK_NULL_HANDLE;
    // vkQueueWaitIdle has no bound. A fence after all work has one, and only moments remain to wait for. A failure
    // means a lost device, which no longer runs anything.
    if (vkCreateFence(device.handle(), &info, nullptr, &fence) == VK_SUCCESS &&
        vkQueueSubmit2(queues[i], 0, nullptr, fence) == VK_SUCCESS &&
        !drained(device, fence, timeout_ms, "ending"))
      return false;
    vkQueueWaitIdle(queues[i]);
    if (fence != VK_NULL_HANDLE) vkDestroyFence(device.handle(), fence, nullptr);
  }
  return true;
}

}  // namespace bulkhead::gpu
