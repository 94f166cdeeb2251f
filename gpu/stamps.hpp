// When each submission of a queue ran: a device timestamp at the start and the end of every command
// buffer, read once it is over, for gpu::Activity. For the command ring.
//
// Where timestamps can't be read while other work runs (Mesa's CPU driver), or there are none, the
// host's clock has to do: from the submission, or the end of the one before, until the host saw its
// end.
#pragma once

#include <chrono>
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
  // Not wanted: everything below does nothing.
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
  using Clock = std::chrono::steady_clock;
  struct Run {
    std::uint64_t ticket;
    std::uint32_t pair;
    Clock::time_point submitted;
  };
  void collect_by_host(std::uint64_t finished);

  Device* device_ = nullptr;
  bool by_host_ = false;
  VkQueryPool pool_ = VK_NULL_HANDLE;
  std::uint64_t mask_ = 0;
  std::unordered_map<VkCommandBuffer, std::uint32_t> pairs_;
  std::vector<std::uint32_t> free_;
  std::vector<Run> runs_;  // submitted and not collected, the oldest first
};

}  // namespace bulkhead::gpu
