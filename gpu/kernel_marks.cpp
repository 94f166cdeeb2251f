#include "gpu/kernel_marks.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "gpu/submission.hpp"

namespace bulkhead::gpu {

Status KernelMarks::init(Device& device, bool wanted) {
  if (!wanted) return {};
  BULKHEAD_TRY(word_, device.allocate(sizeof(std::uint32_t), Memory::kReadback, "kernel marks"));
  std::memset(word_.mapped().data(), 0, sizeof(std::uint32_t));
  return {};
}

void KernelMarks::begin(VkCommandBuffer commands) {
  if (wanted()) names_[commands] = {last_number_ + 1, {}};
}

void KernelMarks::before(VkCommandBuffer commands, const char* name) {
  if (!wanted()) return;
  names_[commands].operations.push_back(name);
  write(commands, ++last_number_);
}

void KernelMarks::end(VkCommandBuffer commands) {
  if (wanted()) write(commands, 0);
}

void KernelMarks::forget(VkCommandBuffer commands) {
  names_.erase(commands);
}

void KernelMarks::write(VkCommandBuffer commands, std::uint32_t number) {
  full_barrier(commands);
  vkCmdFillBuffer(commands, word_.handle(), 0, sizeof number, number);
  full_barrier(commands);
  host_barrier(commands);
}

std::string KernelMarks::place() const {
  if (!wanted()) return {};
  // The device may be writing the word at this moment.
  std::byte* const at = word_.mapped().data();
  const std::uint32_t number = std::atomic_ref(*reinterpret_cast<std::uint32_t*>(at)).load();
  for (const auto& [commands, names] : names_) {
    const std::uint32_t index = number - names.first;
    if (number < names.first || index >= names.operations.size()) continue;
    return fmt::format("at operation {} of {}, kernel {}", index + 1, names.operations.size(),
                       names.operations[index]);
  }
  return "between submissions";
}

}  // namespace bulkhead::gpu
