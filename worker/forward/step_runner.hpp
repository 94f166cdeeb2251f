// Submits steps and fetches their results. Each step has a slot and a recording, uploads before it and downloads
// after it. Two steps are in flight if all parts of the GPU layer are on.
//
// After a failure, the runner submits nothing more to the device, because the device may still be running.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/optimizations.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/step_attention.hpp"
#include "worker/forward/step_program.hpp"
#include "worker/forward/step_recordings.hpp"
#include "worker/forward/step_slots.hpp"

namespace bulkhead::forward {

class StepRunner {
 public:
  // All arguments must outlive it and must not move. From prepare() on, `parts` must have its parts, and `limits`
  // must be filled in.
  StepRunner(StepContext& context, const engine::ExecutorLimits& limits, gpu::Optimizations& parts)
      : context_(context),
        limits_(limits),
        parts_(parts),
        slots_(context, limits),
        recordings_(context, parts) {}
  // Makes the memory of the slots, for these shapes.
  Status prepare(std::vector<StepShape> shapes);
  const std::vector<StepShape>& shapes() const { return recordings_.shapes(); }

  Status reserve_logits(std::uint32_t outputs) { return slots_.reserve_logits(outputs); }
  Status reserve_adjustments(std::uint64_t edits) { return slots_.reserve_adjustments(edits); }
  // Like Executor::submit, choose, flush and wait, with checks of the engine's promises.
  Status submit(const engine::Step& step);
  Status choose(std::span<const engine::Adjustment> adjustments);
  Status flush();
  Result<std::span<const engine::ColumnOutput>> wait();
  // For a stage of a split model: where the caller puts the rows of the residual stream before it submits a step, and
  // the rows that the most recently awaited step has computed, which are valid until the next step.
  std::span<float> brought_rows() { return floats_of(slots_[slots_.next()].brought); }
  std::span<const float> computed_rows() {
    return floats_of(slots_[slots_.before(slots_.oldest(), 1)].computed);
  }
  // Starts a step of this shape without checks.
  Status start(const engine::Step& step, StepShape shape);
  // Makes everything that start() needs for this shape, for a column at position 0 and for outputs with these wishes,
  // and submits nothing.
  Status record(StepShape shape, const OutputWishes& wishes = {});
  // Waits at most `wait_ms` and returns whether the step submitted last is over.
  Result<bool> finished(std::uint32_t wait_ms);
  // The same for the oldest step.
  Result<bool> oldest_finished(std::uint32_t wait_ms);
  // Runs the most recently awaited step once more with timestamps. No step may be in flight.
  Result<std::vector<gpu::KernelTime>> profile();

  // Forgets the recordings, which the next step then makes again.
  void forget(std::uint32_t columns) { recordings_.forget(columns); }
  void forget_all() { recordings_.forget_all(); }

  const Status& broken() const { return broken_; }
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t steps) { steps_ = steps; }  // the caller excludes steps that served no request
  std::uint64_t computed_again() const { return computed_again_; }
  bool lost() const { return lost_; }  // Executor::lost()
  std::uint64_t plan_ns() const { return recordings_.plan_ns(); }

 private:
  static std::span<float> floats_of(const gpu::BufferSlice& host) {
    return {reinterpret_cast<float*>(host.mapped), host.bytes / sizeof(float)};
  }
  gpu::CommandRing& ring() { return *parts_.command_ring; }
  gpu::BlitQueue& blit() { return *parts_.blit_queue; }
  struct Recordings {
    const StepRecording* step = nullptr;
    const StepRecording* follower = nullptr;  // null: nothing follows the step
  };
  Result<Recordings> recordings_of(std::uint32_t index);
  Status launch(const Recordings& recorded, std::uint32_t index);
  // The parts of a slot that are submitted: the step, the work that follows the step, or both.
  enum class Parts : std::uint8_t { kStep, kFollower, kAll };
  struct Sent {
    Recordings recorded;
    std::uint32_t index = 0;
    Parts parts = Parts::kAll;
    std::span<const gpu::CommandRing::After> after = {};  // what the device waits for
  };
  Status send(std::span<const Sent> all);
  // Keeps a failure, with what was recorded for the slot's step in front.
  const Status& fail(std::uint32_t index, const Status& failure);
  Status finish(std::uint32_t index);
  Status stop_chaining();
  Status compute_again();
  Status lose_steps();

  StepContext& context_;
  const engine::ExecutorLimits& limits_;
  gpu::Optimizations& parts_;
  StepSlots slots_;
  StepRecordings recordings_;
  std::map<std::uint32_t, AttentionBorders> borders_;  // by the columns of a shape
  StepShape last_shape_;
  Recordings last_recorded_;  // of the step submitted last, until the next one or wait()
  // The work that follows the step submitted last. choose() sets it; it is submitted with the next step or before.
  std::optional<Sent> kept_;
  Status broken_;
  std::uint64_t steps_ = 0, computed_again_ = 0;
  std::uint32_t steps_to_lose_ = 0;  // the oldest ones in flight
  bool lost_ = false;
};

}  // namespace bulkhead::forward
