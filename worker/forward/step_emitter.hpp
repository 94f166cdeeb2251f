// Appends a step's kernels one after another. DispatchedSteps puts barriers between kernels that depend on each
// other; ChainedLinks makes the kernels wait for each other (gpu/kernels/chain.glsl). The code that builds a step
// names each kernel and says where one depends on the one before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"
#include "worker/forward/step_context.hpp"

namespace bulkhead::forward {

struct StepOp {
  gpu::Kernel kernel;  // without a pipeline: a barrier
  std::array<std::byte, 128> push{};
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t bytes_moved = 0;
};
using StepProgram = std::vector<StepOp>;

// The workgroups of a kernel, and the bytes that they must at least move.
struct Extent {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t bytes_moved = 0;
};

class StepEmitter {
 public:
  StepEmitter(const StepContext& context, StepProgram& program)
      : context_(context), program_(program) {}
  virtual ~StepEmitter() = default;
  StepEmitter(const StepEmitter&) = delete;
  StepEmitter& operator=(const StepEmitter&) = delete;

  virtual Status dispatch(const gpu::KernelSpec& spec, std::span<const std::byte> push,
                          const Extent& extent) = 0;
  // What follows depends on what came before.
  virtual void barrier() = 0;

 protected:
  // Appends a kernel; while loading, only lists it.
  Status append(const gpu::KernelSpec& spec, StepOp op, const Extent& extent);

  const StepContext& context_;
  StepProgram& program_;
};

class DispatchedSteps final : public StepEmitter {
 public:
  using StepEmitter::StepEmitter;
  Status dispatch(const gpu::KernelSpec& spec, std::span<const std::byte> push,
                  const Extent& extent) override;
  void barrier() override { program_.emplace_back(); }
};

// A link consists of the kernels between two places where DispatchedSteps would put barriers.
class ChainedLinks final : public StepEmitter {
 public:
  // `failed`: the address of the word that says whether the step has failed.
  ChainedLinks(const StepContext& context, StepProgram& program, std::uint64_t failed)
      : StepEmitter(context, program), failed_(failed) {}
  Status dispatch(const gpu::KernelSpec& spec, std::span<const std::byte> push,
                  const Extent& extent) override;
  void barrier() override;

 private:
  const std::uint64_t failed_;
  std::uint32_t link_ = 0;
  std::uint32_t groups_ = 0, groups_before_ = 0;  // workgroups of this link, and of the link before it
};

}  // namespace bulkhead::forward
