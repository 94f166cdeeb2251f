// The base of AttentionSteps and ExpertSteps. It has the buffers of a step's dispatches, and the list to which they
// are appended.
#pragma once

#include <cstdint>

#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_context.hpp"
#include "worker/forward/step_emitter.hpp"
#include "worker/forward/step_shapes.hpp"

namespace bulkhead::forward {

// Makes parts for a step of this shape in `slot`. All arguments must outlive the object.
class StepPart {
 public:
  StepPart(const StepContext& context, const Activations& activations, const StepShape& shape,
           std::uint32_t slot, StepEmitter& emit)
      : context_(context),
        activations_(activations),
        columns_(shape.columns),
        positions_(shape.positions),
        slot_(slot),
        emit_(emit) {}

 protected:
  std::uint64_t parameters() const { return context_.parameters_of(slot_); }
  std::uint32_t stride(model::ActivationIndex activation) const {
    return stride_of(context_, activation);
  }
  std::uint64_t at(model::ActivationIndex activation) const { return activations_.at(activation); }
  std::uint64_t at(Scratch scratch) const { return activations_.at(context_.plan, scratch); }

  const StepContext& context_;
  const Activations& activations_;
  const std::uint32_t columns_;
  const Positions positions_;
  const std::uint32_t slot_;
  StepEmitter& emit_;
};

}  // namespace bulkhead::forward
