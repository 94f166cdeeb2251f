#include "gpu/wear_in.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/submission.hpp"

namespace bulkhead::gpu {
namespace {

constexpr std::uint32_t kInFlight = 64;

Status wear_in_queue(Device& device, VkQueue queue, std::uint32_t family, std::uint32_t submissions,
                     std::uint32_t timeout_ms) {
  CommandPool pool;
  BULKHEAD_RETURN_IF_ERROR(pool.init(device, family));
  Timeline done;
  BULKHEAD_RETURN_IF_ERROR(done.init(device));
  BULKHEAD_TRY(const VkCommandBuffer commands, pool.allocate());
  BULKHEAD_RETURN_IF_ERROR(begin_commands(commands, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT));
  transfer_barrier(commands);
  BULKHEAD_RETURN_IF_ERROR(end_commands(commands));
  for (std::uint64_t i = 1; i <= submissions; ++i) {
    Submission submission;
    submission.commands = {&commands, 1};
    submission.signal = done.handle();
    submission.value = i;
    const Status submitted = submit_commands(queue, {&submission, 1}, "a first submission");
    const std::uint64_t last = submitted.ok() ? i : i - 1;
    if (i % kInFlight == 0 || i == submissions || !submitted.ok()) {
      const Status over = done.wait(last, timeout_ms, "a first submission");
      // Waits for the device before the commands and the semaphore are destroyed.
      if (!over.ok()) drained(device, done.handle(), last, timeout_ms, "a first submission");
      BULKHEAD_RETURN_IF_ERROR(over);
    }
    BULKHEAD_RETURN_IF_ERROR(submitted);
  }
  return {};
}

}  // namespace

Status wear_in(Device& device, std::uint32_t submissions, std::uint32_t timeout_ms) {
  std::vector<std::pair<VkQueue, std::uint32_t>> queues;
  for (const auto& queue : {std::pair{device.compute_queue(), device.compute_family()},
                            std::pair{device.transfer_queue(), device.transfer_family()},
                            std::pair{device.download_queue(), device.transfer_family()}}) {
    if (std::ranges::find(queues, queue) == queues.end()) queues.push_back(queue);
  }
  for (const auto& [queue, family] : queues)
    BULKHEAD_RETURN_IF_ERROR(wear_in_queue(device, queue, family, submissions, timeout_ms));
  return {};
}

}  // namespace bulkhead::gpu
