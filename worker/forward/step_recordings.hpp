// The recordings of steps, one for each shape, and the buffers in which they work.
//
// With the pool on, all recordings share one set of buffers, because steps run one after another, and the warm-up's
// recordings are kept. With the pool off, a step's memory is allocated for it and freed after it, and a recording
// stays valid as long as its memory gets the same address again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/optimizations.hpp"
#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

struct StepRecording {
  std::shared_ptr<Activations> activations;
  std::uint64_t block_address = 0;    // of these buffers, when the programs were made
  std::vector<StepProgram> programs;  // by slot
  gpu::CommandRing::RecordingId id = 0;
};

class StepRecordings {
 public:
  // The arguments must outlive this object and must not move; `parts` must have its parts from the first call on.
  StepRecordings(const StepContext& context, gpu::Optimizations& parts)
      : context_(context), parts_(parts) {}

  // Sets the shapes for which the buffers must be large enough. Call it before the first get().
  void set_shapes(std::vector<StepShape> shapes) { shapes_ = std::move(shapes); }
  const std::vector<StepShape>& shapes() const { return shapes_; }

  // Returns the recording, which is made now if necessary. Valid until the next get() or forget.
  Result<const StepRecording*> get(StepShape shape);
  // Returns the recording of what follows the step; null: nothing does. Valid as long as the step's.
  Result<const StepRecording*> follower(const StepRecording& step, const OutputWishes& wishes);

  void forget(std::uint32_t columns);  // for all shapes of so many columns
  void forget_all();  // for all shapes
  // With the pool off: call it when the last step, which has this shape, is over.
  void give_memory_back(StepShape shape);

  std::uint64_t plan_ns() const { return plan_ns_; }

 private:
  bool keeps_memory() const { return parts_.memory_pool->enabled(); }
  Result<std::shared_ptr<Activations>> make_activations(StepShape shape);
  template <typename Build>
  Result<std::unique_ptr<StepRecording>> record(std::shared_ptr<Activations> activations,
                                                gpu::CommandRing::Keep keep, const Build& build);

  const StepContext& context_;
  gpu::Optimizations& parts_;
  std::vector<StepShape> shapes_;
  std::shared_ptr<Activations> shared_;
  std::map<StepShape, std::unique_ptr<StepRecording>> recorded_;
  std::map<OutputWishes, std::unique_ptr<StepRecording>> followers_;  // of steps of any shape
  std::uint64_t plan_ns_ = 0;  // the time for making programs; steady steps make none
};

}  // namespace bulkhead::forward
