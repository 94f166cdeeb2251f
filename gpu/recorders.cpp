#include "gpu/recorders.hpp"

#include "config/base/log.hpp"
#include "gpu/submission.hpp"

namespace bulkhead::gpu {
namespace {

void bind(VkCommandBuffer commands, const Kernel& kernel, std::span<const std::byte> push) {
  vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, kernel.pipeline);
  if (!push.empty()) {
    vkCmdPushConstants(commands, kernel.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                       static_cast<std::uint32_t>(push.size()), push.data());
  }
}

}  // namespace

template <typename Record>
void CheckedRecorder::operation(const char* name, std::uint64_t bytes_moved, const Record& record) {
  if (!status_.ok()) return;
  comes(name);
  if (const VkCommandBuffer to = commands(); to != VK_NULL_HANDLE) record(to);
  recorded(name, bytes_moved);
}

void CheckedRecorder::fail(const std::string& message) {
  if (status_.ok()) status_ = Error(ErrorCode::kInvalidArgument, "recording: " + message);
}

bool CheckedRecorder::check_kernel(const Kernel& kernel, std::span<const std::byte> push) {
  if (kernel.pipeline == VK_NULL_HANDLE) {
    fail(fmt::format("kernel '{}' was never made", kernel.name));
  } else if (push.size() != kernel.push_bytes) {
    fail(fmt::format("kernel {}: {} bytes of push constants given, it takes {}", kernel.name,
                     push.size(), kernel.push_bytes));
  }
  return status_.ok();
}

void CheckedRecorder::dispatch(const Kernel& kernel, std::span<const std::byte> push,
                               std::uint32_t x, std::uint32_t y, std::uint32_t z,
                               std::uint64_t bytes_moved) {
  if (!check_kernel(kernel, push)) return;
  const std::uint32_t groups[] = {x, y, z};
  for (int i = 0; i < 3; ++i) {
    if (groups[i] > device_.max_groups(i)) {
      return fail(fmt::format("kernel {}: {} workgroups in dimension {}, the device allows {}",
                              kernel.name, groups[i], i, device_.max_groups(i)));
    }
  }
  if (x == 0 || y == 0 || z == 0) return;
  operation(kernel.name, bytes_moved, [&](VkCommandBuffer commands) {
    bind(commands, kernel, push);
    vkCmdDispatch(commands, x, y, z);
  });
}

void CheckedRecorder::dispatch_indirect(const Kernel& kernel, std::span<const std::byte> push,
                                        const BufferSlice& counts, std::uint64_t bytes_moved) {
  if (!check_kernel(kernel, push)) return;
  if (counts.buffer == VK_NULL_HANDLE || counts.bytes < sizeof(VkDispatchIndirectCommand) ||
      counts.offset % 4 != 0) {
    return fail(
        fmt::format("kernel {}: its group counts need 12 bytes, 4-byte aligned; got {} bytes at {}",
                    kernel.name, counts.bytes, counts.offset));
  }
  operation(kernel.name, bytes_moved, [&](VkCommandBuffer commands) {
    bind(commands, kernel, push);
    vkCmdDispatchIndirect(commands, counts.buffer, counts.offset);
  });
}

void CheckedRecorder::copy(const BufferSlice& from, const BufferSlice& to) {
  if (from.bytes == 0) return;
  if (from.buffer == VK_NULL_HANDLE || to.buffer == VK_NULL_HANDLE || to.bytes < from.bytes) {
    return fail(fmt::format("copy: {} bytes do not fit into {}", from.bytes, to.bytes));
  }
  operation("(copy)", 2 * from.bytes, [&](VkCommandBuffer commands) {
    const VkBufferCopy region{from.offset, to.offset, from.bytes};
    vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
  });
}

void CheckedRecorder::fill(const BufferSlice& to, std::uint32_t word) {
  if (to.bytes == 0) return;
  if (to.buffer == VK_NULL_HANDLE || to.offset % 4 != 0 || to.bytes % 4 != 0) {
    return fail(
        fmt::format("fill: {} bytes at {} are not whole 4-byte words", to.bytes, to.offset));
  }
  operation("(fill)", to.bytes, [&](VkCommandBuffer commands) {
    vkCmdFillBuffer(commands, to.buffer, to.offset, to.bytes, word);
  });
}

void OneBufferRecorder::barrier() {
  full_barrier(commands_);
}
void OneBufferRecorder::compute_barrier() {
  gpu::compute_barrier(commands_);
}

}  // namespace bulkhead::gpu
