// Shows at which kernel a device stopped. The command ring uses this if a setting asks for it.
//
// Vulkan does not show which of a submission's kernels ran when the device hung or was lost. With marks on, each
// command buffer writes the number of a kernel into host memory before the kernel starts, after all work before it.
// So kernels no longer overlap, and a step takes longer.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <vulkan/vulkan.h>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

class KernelMarks {
 public:
  // If `wanted` is false, all functions below do nothing.
  Status init(Device& device, bool wanted);
  bool wanted() const { return word_.valid(); }

  // Call these while a command buffer is recorded: at its start, before each operation, and at its end. `name` must
  // live as long as the device.
  void begin(VkCommandBuffer commands);
  void before(VkCommandBuffer commands, const char* name);
  void end(VkCommandBuffer commands);
  void forget(VkCommandBuffer commands);  // call before the command buffer is freed

  // Says where the device is in its work: "at operation 12 of 214, kernel rms_norm", or "between submissions".
  // Empty if marks are off.
  std::string place() const;

 private:
  struct Names {
    std::uint32_t first = 0;  // the number of the first operation
    std::vector<const char*> operations;
  };
  void write(VkCommandBuffer commands, std::uint32_t number);

  Buffer
      word_;  // the number of the operation that runs; 0: none. The queue runs one command buffer at a time.
  std::uint32_t last_number_ = 0;
  std::unordered_map<VkCommandBuffer, Names> names_;
};

}  // namespace bulkhead::gpu
