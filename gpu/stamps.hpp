// Records when each submission of a queue ran: a device timestamp at the start and at the end of every command
// buffer, which is read once the submission is over. gpu::Activity and the command ring use it.
//
// If timestamps can't be read while other work runs (Mesa's CPU driver), or if there are none, the host's clock is
// used instead: from the submission, or from the end of the one before, until the host saw the end.
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
  // If `wanted` is false, all functions below do nothing.
  Status init(Device& device, bool wanted);

  // The most command buffers with timestamps at a time; further ones are not timed. Each step in flight has a slot, and
  // a slot has up to 88 command buffers: two for each of twelve shapes (one of them for adjusted outputs), and one for
  // each combination of what requests may ask of the outputs.
  static constexpr std::uint32_t kBuffers = 512;
  // Call these around what is recorded into a command buffer.
  void begin(VkCommandBuffer commands);
  void end(VkCommandBuffer commands);
  void forget(VkCommandBuffer commands);  // call before the command buffer is freed

  // Returns whether a command buffer may be submitted. It may not be before collect() has read the timestamps of its
  // earlier run and reset them.
  bool may_run(VkCommandBuffer commands) const;
  void submitted(VkCommandBuffer commands, std::uint64_t ticket);
  // Reports the submissions up to `finished`, which are known to be over, to the device's Activity. Does not wait.
  void collect(std::uint64_t finished);

 private:
  using Clock = std::chrono::steady_clock;
  struct Run {
    std::uint64_t ticket;
    std::uint32_t pair;
    Clock::time_point submitted;
  };
  void collect_by_host(std::uint64_t finished);
  void forget_runs(std::uint32_t pair);

  Device* device_ = nullptr;
  bool by_host_ = false;
  // The host resets queries between runs, if the driver lets it: the reset in a command buffer makes the device wait
  // (NVIDIA: 10 us).
  bool host_resets_ = false;
  VkQueryPool pool_ = VK_NULL_HANDLE;
  std::uint64_t mask_ = 0;
  std::unordered_map<VkCommandBuffer, std::uint32_t> pairs_;
  std::vector<std::uint32_t> free_;
  std::vector<Run> runs_;  // submitted and not collected, the oldest first
};

}  // namespace bulkhead::gpu
