// The recorders behind a recording: one writes a command buffer, the other only counts. Both check the operations.
// The command ring and its profiles use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <vulkan/vulkan.h>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "gpu/kernel_marks.hpp"

namespace bulkhead::gpu {

// The checks for every recording. It keeps the first error and ignores the rest of the recording.
class CheckedRecorder : public Recorder {
 public:
  explicit CheckedRecorder(const Device& device) : device_(device) {}

  void dispatch(const Kernel& kernel, std::span<const std::byte> push, std::uint32_t x,
                std::uint32_t y, std::uint32_t z, std::uint64_t bytes_moved) final;
  void dispatch_indirect(const Kernel& kernel, std::span<const std::byte> push,
                         const BufferSlice& counts, std::uint64_t bytes_moved) final;
  void copy(const BufferSlice& from, const BufferSlice& to) final;
  void fill(const BufferSlice& to, std::uint32_t word) final;

  const Status& status() const { return status_; }

 protected:
  virtual VkCommandBuffer commands() = 0;      // null: operations are only counted
  virtual void comes(const char* /*name*/) {}  // before an operation is recorded
  virtual void recorded(const char* name, std::uint64_t bytes_moved) = 0;

 private:
  template <typename Record>
  void operation(const char* name, std::uint64_t bytes_moved, const Record& record);
  void fail(const std::string& message);
  bool check_kernel(const Kernel& kernel, std::span<const std::byte> push);

  const Device& device_;
  Status status_;
};

// Records everything into one command buffer. With a query pool it records a timestamp before the first operation and
// after each operation. With marks it records a mark before each operation.
class OneBufferRecorder final : public CheckedRecorder {
 public:
  struct Operation {
    const char* name;
    std::uint64_t bytes_moved;
  };

  OneBufferRecorder(const Device& device, VkCommandBuffer commands,
                    VkQueryPool queries = VK_NULL_HANDLE, std::uint32_t query_count = 0)
      : CheckedRecorder(device), commands_(commands), queries_(queries), query_count_(query_count) {
    timestamp(0);
  }
  OneBufferRecorder(const Device& device, VkCommandBuffer commands, KernelMarks& marks)
      : CheckedRecorder(device), commands_(commands), marks_(&marks) {}

  void barrier() override;
  void compute_barrier() override;
  const std::vector<Operation>& operations() const { return operations_; }

 private:
  VkCommandBuffer commands() override { return commands_; }
  void comes(const char* name) override {
    if (marks_ != nullptr) marks_->before(commands_, name);
  }
  void recorded(const char* name, std::uint64_t bytes_moved) override {
    if (queries_ == VK_NULL_HANDLE) return;
    operations_.push_back({name, bytes_moved});
    timestamp(static_cast<std::uint32_t>(operations_.size()));
  }

  void timestamp(std::uint32_t index) {
    if (index < query_count_) {
      vkCmdWriteTimestamp2(commands_, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, queries_, index);
    }
  }

  VkCommandBuffer commands_;
  VkQueryPool queries_ = VK_NULL_HANDLE;
  std::uint32_t query_count_ = 0;
  KernelMarks* marks_ = nullptr;
  std::vector<Operation> operations_;
};

class CountingRecorder final : public CheckedRecorder {
 public:
  using CheckedRecorder::CheckedRecorder;
  void barrier() override {}
  std::uint32_t count() const { return count_; }

 private:
  VkCommandBuffer commands() override { return VK_NULL_HANDLE; }
  void recorded(const char*, std::uint64_t) override { ++count_; }
  std::uint32_t count_ = 0;
};

}  // namespace bulkhead::gpu
