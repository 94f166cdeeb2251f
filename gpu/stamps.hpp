// When each submission of a queue ran: a device timestamp at the start and the end of every command
// buffer, read once it is over, for gpu::Activity. For the command ring.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <vulkan/vulkan.h>

#include "gpu/device.hpp"

namespace bulkhead::gpu {

class Stamps {
 public:
  Stamps() = default;
  Stamps(const Stamps&) = delete;
  Stamps& operator=(const Stamps&) = delete;
  ~Stamps();
  // Not wanted, or a compute queue without timestamps: everything below does nothing.
  Status init(Device& device, bool wanted);

  // Around what is recorded into a command buffer. More than kBuffers at once: the rest is not
  // timed.
  static constexpr std::uint32_t kBuffers = 64;
  void begin(VkCommandBuffer commands);
  void end(VkCommandBuffer commands);
  void forget(VkCommandBuffer commands);  // before it is freed

  void submitted(VkCommandBuffer commands, std::uint64_t ticket);
  // Tells the device's Activity of the submissions up to `finished`, which is known to be over. Does
  // not wait.
  void collect(std::uint64_t finished);

 private:
  struct Run {
    std::uint64_t ticket;
    std::uint32_t pair;
  };

  Device* device_ = nullptr;
  VkQueryPool pool_ = VK_NULL_HANDLE;
  std::uint64_t mask_ = 0;
  std::unordered_map<VkCommandBuffer, std::uint32_t> pairs_;
  std::vector<std::uint32_t> free_;
  std::vector<Run> runs_;  // submitted and not collected, the oldest first
};

}  // namespace bulkhead::gpu
