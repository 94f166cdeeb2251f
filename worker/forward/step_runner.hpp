// Submits steps and fetches their results. Each step has a slot and a recording, uploads before it and
// downloads behind it. Two steps are in flight if all parts of the GPU layer are on.
//
// After a failure, the runner gives the device nothing more, because the device may still be running.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/optimizations.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/step_program.hpp"
#include "worker/forward/step_recordings.hpp"
#include "worker/forward/step_slots.hpp"

namespace bulkhead::forward {

class StepRunner {
 public:
  // All must outlive it and stay where they are. `parts` has its parts, and `limits` is filled in,
  // from prepare() on.
  StepRunner(StepContext& context, const engine::ExecutorLimits& limits, gpu::Optimizations& parts)
      : context_(context),
        limits_(limits),
        parts_(parts),
        slots_(context, limits),
        recordings_(context, parts) {}
  // The slots' memory and the shapes that there are.
  Status prepare(std::vector<StepShape> shapes);
  const std::vector<StepShape>& shapes() const { return recordings_.shapes(); }

  Status reserve_logits(std::uint32_t outputs) { return slots_.reserve_logits(outputs); }
  // As Executor::submit and wait, with the engine's promises checked.
  Status submit(const engine::Step& step);
  Result<std::span<const engine::ColumnOutput>> wait();
  // Of a stage of a split model: where the caller puts the residual stream's rows before it submits a step, and where
  // the rows are that the step waited for last has computed, which hold until the next step.
  std::span<float> brought_rows() { return floats_of(slots_[slots_.next()].brought); }
  std::span<const float> computed_rows() {
    return floats_of(slots_[slots_.before(slots_.oldest(), 1)].computed);
  }
  // Unchecked, and of this shape.
  Status start(const engine::Step& step, StepShape shape);
  // Makes what start() needs of this shape and of outputs with these wishes, and submits nothing.
  Status record(StepShape shape, const OutputWishes& wishes = {});
  // Waits for so long at most: whether the step submitted last is over.
  Result<bool> finished(std::uint32_t wait_ms);
  // The step waited for last, once more with timestamps. None may be in flight.
  Result<std::vector<gpu::KernelTime>> profile();

  // Made anew at the next step.
  void forget(StepShape shape) { recordings_.forget(shape); }
  void forget_all() { recordings_.forget_all(); }

  const Status& broken() const { return broken_; }
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t steps) { steps_ = steps; }  // those of no request do not count
  std::uint64_t computed_again() const { return computed_again_; }
  std::uint64_t plan_ns() const { return recordings_.plan_ns(); }

 private:
  static std::span<float> floats_of(const gpu::BufferSlice& host) {
    return {reinterpret_cast<float*>(host.mapped), host.bytes / sizeof(float)};
  }
  gpu::CommandRing& ring() { return *parts_.command_ring; }
  gpu::BlitQueue& blit() { return *parts_.blit_queue; }
  struct Recordings {
    const StepRecording* step = nullptr;
    StepRecordings::Followers followers{};
  };
  Result<Recordings> recordings_of(std::uint32_t index);
  Status launch(const Recordings& recorded, std::uint32_t index);
  Status finish(std::uint32_t index);
  Status read_hidden(std::uint32_t index);  // of a step in flight, before the next one runs
  Status compute_again();

  StepContext& context_;
  const engine::ExecutorLimits& limits_;
  gpu::Optimizations& parts_;
  StepSlots slots_;
  StepRecordings recordings_;
  StepShape last_shape_;
  Status broken_;
  std::uint64_t steps_ = 0, computed_again_ = 0;
};

}  // namespace bulkhead::forward
